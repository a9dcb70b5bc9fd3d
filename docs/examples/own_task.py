"""A task of your own: three methods.  This one learns a sine wave from noisy points.

dtdctl submit docs/examples/own_task.toml
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class NoisySine:
    def __init__(self, points: int = 2000, noise: float = 0.1) -> None:
        self.points, self.noise = points, noise

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def train_dataset(self) -> TensorDataset:
        draw = torch.Generator().manual_seed(0)  # the same points on every worker
        x = torch.rand(self.points, 1, generator=draw) * 6 - 3
        return TensorDataset(x, x.sin() + self.noise * torch.randn(x.shape, generator=draw))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
