"""A stream of rows, read from one file after another: tomorrow's temperatures.

dtdctl submit docs/examples/streaming.toml
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

WINDOW = 8


class Readings:
    """Lines of several files; in this example they are computed instead of read.

    `rows` is read by every worker, so it is cheap; `decode` is called for this worker's own rows.
    """

    def __init__(self, files: int, lines: int) -> None:
        self.files, self.lines = files, lines

    def rows(self, position: dict[str, int] | None) -> Iterator[tuple[str, dict[str, int]]]:
        at = position or {"file": 0, "line": 0}
        for file in range(at["file"], self.files):
            for line in range(at["line"] if file == at["file"] else 0, self.lines):
                yield self._read(file, line), {"file": file, "line": line + 1}

    def _read(self, file: int, line: int) -> str:
        days = range(line, line + WINDOW + 1)
        return ",".join(f"{math.sin(day / 9 + file):.4f}" for day in days)

    def decode(self, item: str) -> tuple[Tensor, Tensor]:
        values = torch.tensor([float(value) for value in item.split(",")])
        return values[:-1] + 0.01 * torch.randn(WINDOW), values[-1:]  # drawn per row: redone alike


class Tomorrow:
    def __init__(self, files: int = 5, lines: int = 1000) -> None:
        self.files, self.lines = files, lines

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WINDOW, 32), nn.ReLU(), nn.Linear(32, 1))

    def train_dataset(self) -> Any:
        return Readings(self.files, self.lines)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        past, next_day = batch
        return nn.functional.mse_loss(model(past), next_day)
