"""A compiled model: build_model() returns what torch.compile returns.  It learns an 8-input wave.

dtdctl submit docs/examples/compiled.toml

Weights are saved under the names of the uncompiled model, so a plain model loads them.
"aot_eager" needs no compiler; "inductor" makes a model fast, but needs a C++ compiler on
every worker, and half a minute at the first step and whenever a batch has a new size.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class CompiledWave:
    def __init__(self, backend: str = "aot_eager", points: int = 512) -> None:
        self.backend, self.points = backend, points

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 1))
        return torch.compile(model, backend=self.backend)

    def train_dataset(self) -> TensorDataset:
        return self._points(seed=0)

    def eval_dataset(self) -> TensorDataset:
        return self._points(seed=1)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def _points(self, seed: int) -> TensorDataset:
        x = torch.randn(self.points, 8, generator=torch.Generator().manual_seed(seed))
        return TensorDataset(x, x.sum(1, keepdim=True).sin())
