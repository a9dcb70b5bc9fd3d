"""Tasks that a third worker cannot join, or that no worker can."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtd.tasks.classification import MemoryRows


class SmallSlices:
    """Its loss compares the rows of a slice, and raises where there is one.

    Args:
        gates: directory of a gate "0".
        holds: the loss before which every process comes to the gate.
    """

    def __init__(self, gates: str, holds: list[int]) -> None:
        self._gate, self._hold = Path(gates) / "0", holds[0]
        self._losses = 0

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.BatchNorm2d(8),
            nn.Flatten(),
            nn.Linear(8, 1),
        )

    def train_dataset(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(240, 3, 4, 4, generator=generator)
        return MemoryRows(inputs=images, labels=images.mean((1, 2, 3))[:, None])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._losses += 1
        if self._losses == self._hold:
            with self._gate.open() as gate:
                fcntl.flock(gate, fcntl.LOCK_SH)
        x, y = batch
        if len(x) < 2:
            raise ValueError("one row has nothing to be compared with")
        return nn.functional.mse_loss(model(x), y)


class OtherSchedule(SmallSlices):
    """Where the file `mark` exists the task has no schedule, and the state does not fit."""

    def __init__(self, gates: str, holds: list[int], mark: str) -> None:
        super().__init__(gates, holds)
        if not Path(mark).exists():
            self.build_schedule = _constant


def _constant(optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, total_steps)


class Forgetful(SmallSlices):
    """Its own state is never loaded, and is another where the file `mark` exists."""

    def __init__(self, gates: str, holds: list[int], mark: str) -> None:
        super().__init__(gates, holds)
        self._made = float(Path(mark).exists())

    def state_dict(self) -> dict[str, Any]:
        return {"made": self._made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing."""


class NeverAlike(Forgetful):
    """Its own state is another in each process."""

    def __init__(self, gates: str, holds: list[int]) -> None:
        super().__init__(gates, holds, mark="")
        self._made = float(os.getpid())


class LateMask(SmallSlices):
    """A buffer that the first forward registers."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if not hasattr(model, "mask"):
            model.register_buffer("mask", torch.ones(1))
        return super().loss(model, batch)


class Largest(nn.Linear):
    """The largest input so far is its extra state, as in float8 layers."""

    largest = 0.0

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.largest])

    def set_extra_state(self, state: Tensor) -> None:
        self.largest = float(state)

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, float(x.detach().abs().max()))
        return super().forward(x)


class ExtraState(SmallSlices):
    """It has such a layer."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), Largest(48, 1))


class OwnStateDict(SmallSlices):
    """Its model saves the last layer alone."""

    def build_model(self) -> nn.Module:
        return LastLayer(*super().build_model().children())


class LastLayer(nn.Sequential):
    """The last layer is missing from its state_dict."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        whole = super().state_dict(*args, **kwargs)
        return {name: value for name, value in whole.items() if name.startswith("4.")}
