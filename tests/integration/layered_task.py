"""Layers of one shape, which nothing but their names tells apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtd.tasks.classification import MemoryRows

ROWS = 128
WIDTH = 6


class Net(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if tied:
            self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Layered:
    """A task whose optimizer has the layers in a given order.

    Args:
        order: of the layers in the optimizer.
        frozen: layers that are not trained.
        tied: the first and the last layer have one weight.
        mark: a file that does not exist yet; the process that enters itself there has the layers
            the other way round.
        inside: attribute of a further module that has the layers; empty for none.
        lr: learning rate.
    """

    def __init__(
        self,
        order: str = "abc",
        frozen: str = "",
        *,
        tied: bool = False,
        mark: str = "",
        inside: str = "",
        lr: float = 0.01,
    ) -> None:
        self._order = order[::-1] if mark and self._is_first(Path(mark)) else order
        self._frozen, self._tied, self._inside, self._lr = frozen, tied, inside, lr

    @staticmethod
    def _is_first(mark: Path) -> bool:
        try:
            with mark.open("x") as mine:
                mine.write(str(os.getpid()))
        except FileExistsError:
            return mark.read_text() == str(os.getpid())
        return True

    def build_model(self) -> nn.Module:
        model: nn.Module = Net(tied=self._tied)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name[0] not in self._frozen)
        if self._inside:
            outer = nn.Module()
            outer.add_module(self._inside, model)
            outer.forward = model.forward  # type: ignore[method-assign]
            return outer
        return model

    def build_optimizer(self, named_parameters: Any) -> torch.optim.Optimizer:
        named = [(name.rpartition(".")[0][-1], one) for name, one in named_parameters]
        layers = [one for layer in self._order for name, one in named if name == layer]
        return torch.optim.Adam(layers, lr=self._lr)

    def train_dataset(self) -> Any:
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
        return MemoryRows(inputs=x, labels=x.roll(1, dims=1).sin())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
