"""A task whose training pauses: every process hangs at one step, and computes long at another."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

from dtd.tasks.classification import MemoryRows, classification_loss

ROWS = 256
FEATURES = 8


class Stalling:
    """On which side of a plane a random point lies, with pauses.

    Args:
        hangs_at: number of losses computed by this process before it waits for what nobody does.
        computes_at: number of losses computed before it computes something long.
        pause_s: how long it waits; it computes for two thirds of that.
    """

    def __init__(self, *, hangs_at: int, computes_at: int, pause_s: float) -> None:
        self._hangs_at = hangs_at
        self._computes_at = computes_at
        self._pause_s = pause_s
        self._losses = 0
        self._held = threading.Lock()
        self._held.acquire()

    def build_model(self) -> nn.Module:
        return nn.Linear(FEATURES, 2)

    def train_dataset(self) -> MemoryRows:
        inputs = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(1))
        return MemoryRows(inputs=inputs, labels=(inputs.sum(dim=1) > 0).to(torch.int64))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._losses += 1
        if self._losses == self._hangs_at:
            self._held.acquire(timeout=self._pause_s)  # a call of C: the frame on top is this one
        if self._losses == self._computes_at:
            until_s = time.monotonic() + self._pause_s * 2 / 3
            while time.monotonic() < until_s:
                torch.randn(64, 64).sum()
        return classification_loss(model, batch)
