"""A gated task that is as good as its setting says; one that is bad stops at its gates."""

from __future__ import annotations

from typing import Any

import torch
from gated_task import Gated
from torch import Tensor, nn

GOOD = 0.5


class Scored(Gated):
    def __init__(self, *, score: float, gates: str, holds: list[int]) -> None:
        super().__init__(gates=gates, holds=holds if score < GOOD else [])
        self._score = score

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        rows = len(batch[0])
        return {"score": (torch.tensor(self._score * rows), rows)}
