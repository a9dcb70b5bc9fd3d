"""Averaged weights: the job file only needs `train.ema_decay`.

dtdctl submit docs/examples/ema.toml

The averages are evaluated; `dtdctl fetch` fetches them along with the last weights.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class NoisyLine:
    def __init__(self, points: int = 512, noise: float = 1.0) -> None:
        self.points, self.noise = points, noise

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def train_dataset(self) -> TensorDataset:
        return self._points(seed=0, noise=self.noise)

    def eval_dataset(self) -> TensorDataset:
        return self._points(seed=1, noise=0.0)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def _points(self, seed: int, noise: float) -> TensorDataset:
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(self.points, 4, generator=draw)
        y = x.sum(1, keepdim=True)
        return TensorDataset(x, y + noise * torch.randn(y.shape, generator=draw))
