"""A task whose rows are of the kind that its argument names."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

LENGTH = 32


@dataclass
class Row:
    x: torch.Tensor
    y: float


class Records:
    """Rows of a database that is made in memory, for the thread that makes it."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE numbers (x REAL)")
        values = [(row / LENGTH,) for row in range(LENGTH)]
        self.database.executemany("INSERT INTO numbers VALUES (?)", values)

    def __len__(self) -> int:
        (length,) = self.database.execute("SELECT COUNT(*) FROM numbers").fetchone()
        return int(length)

    def __getitem__(self, row: int) -> Any:
        found = self.database.execute("SELECT x FROM numbers WHERE rowid = ?", [row + 1])
        (x,) = found.fetchone()
        return Row(torch.tensor([x]), 2 * x)


class Fetched(Records):
    def fetch(self, row_ids: list[int], *, epoch: int, seed: int) -> Any:
        return Task.collate([self[row] for row in row_ids])


class Task:
    """Learns to double numbers."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind == "fetched":
            self.collate = None

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_dataset(self) -> Any:
        if self.kind == "fetched":
            return Fetched()
        return Records() if self.kind == "records" else DataLoader(Records(), batch_size=4)

    def eval_dataset(self) -> Any:
        return Records() if self.kind == "records" else None

    @staticmethod
    def collate(rows: list[Row]) -> Row:
        return Row(torch.stack([row.x for row in rows]), torch.tensor([[row.y] for row in rows]))

    def loss(self, model: nn.Module, batch: Row) -> torch.Tensor:
        return (model(batch.x) - batch.y).square().mean()
