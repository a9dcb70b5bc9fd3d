"""A task whose rows take their time: a test slows one rank down, and lets it recover."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtd.tasks.synthetic import MadeUpRows

ROW_S = 0.004
SLOWER = 4.0


class Paced:
    """Each row is a pause; of a rank whose number is in the file `slow`, a longer one.

    Args:
        slow: path of that file; nobody is slow while it does not exist.
    """

    def __init__(self, *, slow: str) -> None:
        self._slow = Path(slow)
        self._rank: int | None = None

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_dataset(self) -> MadeUpRows:
        return MadeUpRows(features=torch.zeros(256, 1), width=1)

    def on_start(self, at: Any) -> None:
        self._rank = at.rank

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self._rank is not None:
            slow = self._slow.exists() and self._slow.read_text() == str(self._rank)
            time.sleep(len(batch[0]) * ROW_S * (SLOWER if slow else 1.0))
        loss: Tensor = model(batch[0]).square().mean()
        return loss
