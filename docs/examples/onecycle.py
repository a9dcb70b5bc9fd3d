"""The task's own schedule: OneCycleLR, which changes the momentum as well as the rate.

dtdctl submit docs/examples/onecycle.toml
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class OneCycleWave:
    def __init__(self, points: int = 512, max_lr: float = 0.1) -> None:
        self.points, self.max_lr = points, max_lr

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def build_optimizer(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.max_lr, momentum=0.9)

    def build_schedule(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.max_lr, total_steps=total_steps
        )

    def train_dataset(self) -> TensorDataset:
        x = torch.rand(self.points, 1, generator=torch.Generator().manual_seed(0)) * 6 - 3
        return TensorDataset(x, x.sin())

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
