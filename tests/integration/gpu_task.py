"""A task in whose step one worker's GPU computes for long, while the thread waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gated_task import Gated
from torch import Tensor, nn

_CYCLES_AT_ONCE = 1_000_000_000


class Gpu(Gated):
    """On which side of a plane a random point lies.

    Args:
        order: a file; the first worker that finds it in step `at` takes it away and computes.
        at: number of losses computed before.
        cycles: of the GPU's clock.
    """

    def __init__(self, *, order: str, at: int, cycles: int) -> None:
        super().__init__()
        self._order, self._at, self._cycles = Path(order), at, cycles

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self._losses + 1 == self._at:
            try:
                self._order.unlink()
            except FileNotFoundError:
                pass
            else:
                for _ in range(self._cycles // _CYCLES_AT_ONCE):
                    torch.cuda._sleep(_CYCLES_AT_ONCE)
        return super().loss(model, batch)
