"""The task that the hosts train: as slow as one likes, until a file says that it is enough.

It is shipped to the workers with the job.  A step's time is spent asleep, so that two processors
have time for a cluster; the model is small and learns.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

ROWS = 1024
FEATURES = 16


class Paced:
    """On which side of a plane a random point lies.

    Args:
        pause_ms: how long a step takes at least.
        hurry: path of a file; where it exists, steps take no time.
    """

    def __init__(self, *, pause_ms: float, hurry: str) -> None:
        self._pause_s = pause_ms / 1000
        self._hurry = Path(hurry)

    def build_model(self) -> nn.Module:
        """16 numbers -> 2 classes, 700 parameters."""
        return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))

    def train_dataset(self) -> TensorDataset:
        """The same rows on every worker."""
        rows = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(1))
        return TensorDataset(rows, (rows.sum(dim=1) > 0).to(torch.int64))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross entropy, after a while."""
        if not self._hurry.exists():
            time.sleep(self._pause_s)
        rows, sides = batch
        return nn.functional.cross_entropy(model(rows), sides)
