"""An observer: told of training in a thread of its own, it cannot hold it up.

dtdctl submit docs/examples/observers.toml
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dtd.train.callbacks import Moment


class Diary:
    """Appends a line to a file for each evaluation, wherever that file is."""

    every_rank = False  # told on rank 0 only

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.steps = 0

    def on_step(self, at: Moment) -> None:
        self.steps += 1

    def on_evaluation(self, at: Moment) -> None:
        self._write(step=at.step, steps_seen=self.steps, **at.metrics)

    def on_checkpoint(self, at: Moment) -> None:
        self._write(step=at.step, saved_in=at.directory)

    def on_finish(self, at: Moment) -> None:
        self._write(step=at.step, finished=True)

    def _write(self, **entry: Any) -> None:
        line = json.dumps(entry)
        print(line)  # in `dtdctl logs`
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")


class WatchedLine:
    def __init__(self, diary: str = "") -> None:
        self.diary = Path(diary) if diary else None

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_dataset(self) -> TensorDataset:
        return self._draw(seed=0, points=400)

    def eval_dataset(self) -> TensorDataset:
        return self._draw(seed=1, points=100)

    def _draw(self, *, seed: int, points: int) -> TensorDataset:
        draw = torch.Generator().manual_seed(seed)
        x = torch.rand(points, 1, generator=draw)
        return TensorDataset(x, 2 * x + 1 + 0.1 * torch.randn(x.shape, generator=draw))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def observers(self) -> list[Diary]:
        return [Diary(self.diary)]
