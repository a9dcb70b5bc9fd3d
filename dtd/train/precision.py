"""Element type of the forward pass, and loss scaling for float16.

Parameters, gradients and optimizer stay float32; autocast narrows the forward pass.  bfloat16 has
the range of float32 and needs nothing else.  float16 underflows, so the loss is multiplied by a
scale which is divided out of the averaged gradients.  The scale changes only by what all ranks see
alike (were the averaged gradients finite?), so it is the same everywhere and part of the state.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from dtd.errors import TaskError
from dtd.job import Precision

_GROWTH = 2.0
_GROWTH_EVERY = 2000
_BACKOFF = 0.5
_LARGEST_SCALE = 2.0**24
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class LossScaler:
    """Scale of the loss; 1 and constant unless `enabled`.

    Attributes:
        enabled: whether the precision needs it.
        scale: what the loss is multiplied by.
        good_steps: finite steps since the scale last changed.
    """

    enabled: bool
    scale: float = 1.0
    good_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Learn from one step: halve after overflow, double after a long time without."""
        if not self.enabled:
            return
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale = max(1.0, self.scale * _BACKOFF)
        elif self.good_steps == _GROWTH_EVERY:
            self.scale, self.good_steps = min(_LARGEST_SCALE, self.scale * _GROWTH), 0


def loss_scaler(precision: Precision) -> LossScaler:
    """The scaler that a job begins with."""
    if precision == "float16":
        return LossScaler(enabled=True, scale=2.0**16)
    return LossScaler(enabled=False)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse what the device cannot do.

    Raises:
        TaskError: float16 on a CPU.
    """
    if precision == "float16" and device.type != "cuda":
        raise TaskError(
            f"train.precision float16 needs a CUDA device, and this worker trains on {device}",
            remedy='set train.precision to "bfloat16" or "float32"',
        )


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Context of the forward pass."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])
