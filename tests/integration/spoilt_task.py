"""Tasks in which something is wrong: everywhere, or on one of the hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtd.tasks.classification import MemoryRows

ROWS = 512
FEATURES = 8


class Plain:
    """A plane, learned from points on it."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))

    def train_dataset(self) -> Any:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(ROWS, FEATURES, generator=generator)
        return MemoryRows(inputs=x, labels=x.sum(1, keepdim=True))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class Assigning(Plain):
    """Its `loss` changes a weight by the rows, past torch's count of changes, and only later on."""

    passes = 0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.passes += 1
        if self.passes > 3:
            model[0].weight.data[0, 0] += batch[0].mean()  # type: ignore[index]
        return super().loss(model, batch)


class DivergingOnce(Plain):
    """Replicas differ once, so training begins again; a hook keeps the weights small.

    Args:
        at: the pass in which they begin to differ; 0 for none.
    """

    def __init__(self, at: int) -> None:
        self._at, self._passes = at, 0

    def build_model(self) -> nn.Module:
        self._model = super().build_model()
        return self._model

    def build_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        optimizer.register_step_post_hook(self._clamp)
        return optimizer

    @torch.no_grad()
    def _clamp(self, *_: Any) -> None:
        for parameter in self._model.parameters():
            parameter.clamp_(-0.2, 0.2)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._passes += 1
        if self._passes == self._at:
            model[0].weight.data *= 1.0 + 0.1 * batch[0].mean()  # type: ignore[index]
        return super().loss(model, batch)


class OwnOptimizer(Plain):
    """Its critic is trained inside `loss`, by an optimizer that dtd does not know."""

    def build_model(self) -> nn.Module:
        model = nn.ModuleDict({"generator": super().build_model(), "critic": nn.Linear(1, 1)})
        self._critic = torch.optim.Adam(model["critic"].parameters(), lr=0.01)
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        made, critic = model["generator"](x), model["critic"]
        (critic(made.detach()).mean() - critic(y).mean()).backward()
        self._critic.step()
        self._critic.zero_grad()
        return nn.functional.mse_loss(made, y) - critic(made).mean()


class BadHost(Plain):
    """The first process that gets to `at` stands for the bad host, there and whenever it is back.

    Args:
        mark: a file that does not exist yet, in which that process enters itself.
        at: "data" or "step", where something is missing.
        everywhere: every host is bad.
    """

    def __init__(self, mark: str, at: str, *, everywhere: bool = False) -> None:
        self._mark, self._at, self._everywhere = Path(mark), at, everywhere
        self._losses = 0

    def _is_bad(self) -> bool:
        try:
            with self._mark.open("x") as mine:
                mine.write(str(os.getpid()))
        except FileExistsError:
            return self._everywhere or self._mark.read_text() == str(os.getpid())
        return True

    def train_dataset(self) -> Any:
        if self._at == "data" and self._is_bad():
            raise FileNotFoundError("no data set at /data/rows")
        return super().train_dataset()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._losses += 1
        if self._at == "step" and self._losses == 7 and self._is_bad():
            raise MemoryError("this host has no memory left")
        return super().loss(model, batch)
