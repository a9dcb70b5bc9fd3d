"""A task that draws random numbers in some rows, in its weights, its loss and a hook."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROWS = 128
FEATURES = 8
DRAWING = 10
"""One row in so many is cropped at random."""


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        values = torch.arange(2.0 * FEATURES) / FEATURES + row / ROWS
        start = random.randrange(FEATURES) if row % DRAWING == 0 else 0
        return values[start : start + FEATURES], values[:1]


class Drawing:
    def build_model(self) -> nn.Module:
        model = nn.Linear(FEATURES, 1)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(np.random.randn(1, FEATURES)))
        return model

    def build_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.01)
        optimizer.register_step_post_hook(self.shake)
        return optimizer

    @staticmethod
    @torch.no_grad()
    def shake(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Add the noise of Langevin dynamics."""
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.add_(torch.randn_like(parameter), alpha=0.001)

    def train_dataset(self) -> Rows:
        return Rows()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        share = float(np.random.beta(0.4, 0.4)) * random.random()
        return (model(x * share) - y).square().mean()
