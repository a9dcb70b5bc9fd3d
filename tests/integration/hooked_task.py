"""A task whose optimizer has a hook: on norms, on a teacher in the model, or elementwise."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

ROWS = 64
WIDTH = 8


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH))
        self.teacher = copy.deepcopy(self.student).requires_grad_(requires_grad=False)


class Hooked:
    def __init__(self, hook: str) -> None:
        self.hook = hook

    def build_model(self) -> nn.Module:
        self.pair = Pair()
        return self.pair

    def build_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        if self.hook == "clip":
            optimizer.register_step_pre_hook(self.clip)
        else:
            optimizer.register_step_post_hook(getattr(self, self.hook))
        return optimizer

    def clip(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(torch.clamp(0.05 / parameter.grad.norm(), max=1.0))

    @torch.no_grad()
    def follow(self, *_: Any) -> None:
        pairs = zip(self.pair.teacher.parameters(), self.pair.student.parameters(), strict=True)
        for teacher, student in pairs:
            teacher.lerp_(student, 0.1)

    @torch.no_grad()
    def clamp(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.clamp_(-0.1, 0.1)

    clamp.elementwise = True  # type: ignore[attr-defined]

    def train_dataset(self) -> TensorDataset:
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.flip(1))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        made = model.student(x)
        with torch.no_grad():
            taught = model.teacher(x)
        return nn.functional.mse_loss(made, y) + nn.functional.mse_loss(made, taught)
