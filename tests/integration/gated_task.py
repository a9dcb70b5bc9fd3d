"""A task that tests steer: it prints, it fails when told to, and it stops at gates.

A gate is a file in a directory; whoever holds an exclusive lock on it keeps every worker's training
at that point.  So a test does things in the middle of a job without measuring time.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dtd.tasks.classification import MemoryRows, classification_loss, classification_metrics

ROWS = 1024
FEATURES = 16
# One for every interpreter, and so for every time a worker starts afresh.
INTERPRETER = uuid.uuid4().hex


class Gated:
    """On which side of a plane a random point lies; learned behind gates.

    Args:
        gates: directory of the gates "0", "1", ...
        holds: number of losses computed by this process before it comes to each gate.
        fails_at: number of losses computed before it fails; 0 is never.
    """

    def __init__(
        self, *, gates: str = "", holds: list[int] | None = None, fails_at: int = 0
    ) -> None:
        self._gates = {losses: Path(gates) / str(i) for i, losses in enumerate(holds or [])}
        self._fails_at = fails_at
        self._losses = 0

    def build_model(self) -> nn.Module:
        print("built by", os.getpid(), INTERPRETER)
        return nn.Sequential(
            nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
        )

    def train_dataset(self) -> MemoryRows:
        return _rows(seed=1, count=ROWS)

    def eval_dataset(self) -> MemoryRows:
        return _rows(seed=2, count=ROWS // 4)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._losses += 1
        if self._losses == self._fails_at:
            raise ValueError("row 17 is odd")
        if self._losses in self._gates:
            with self._gates[self._losses].open() as gate:
                fcntl.flock(gate, fcntl.LOCK_SH)
        return classification_loss(model, batch)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        return classification_metrics(model, batch)


def _rows(*, seed: int, count: int) -> MemoryRows:
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return MemoryRows(inputs=inputs, labels=(inputs.sum(dim=1) > 0).to(torch.int64))
