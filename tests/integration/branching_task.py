"""A model whose rows take one of two branches, and so use its parameters in two orders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

ROWS = 512
WIDTH = 8


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        inner = (self.one, self.two) if float(x[:, 0].max()) <= 0 else (self.two, self.one)
        for layer in inner:
            x = torch.tanh(layer(x))
        return self.last(x)  # type: ignore[no-any-return]


class Branching:
    """One row of so many takes the other branch, and with it the rows of its micro-batch."""

    def __init__(self, every: int) -> None:
        self.every = every

    def build_model(self) -> nn.Module:
        return Branches()

    def train_dataset(self) -> TensorDataset:
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
        x[:, 0] = -1.0
        x[self.every - 1 :: self.every, 0] = 1.0
        return TensorDataset(x, x.flip(1))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return (model(x) - y).square().mean()
