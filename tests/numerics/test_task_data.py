"""Rows and batches of unusual kinds, each compared with the same numbers in plain tuples."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from dtd.errors import TaskError

pytestmark = pytest.mark.numerics

LENGTH = 24


def numbers(row: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([row / LENGTH, 1 - row / LENGTH, 0.5], dtype=torch.float64)
    return x, x.sum(0, keepdim=True)


class Plain:
    """Rows as plain torch would have them."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, row: int) -> Any:
        return numbers(row)


class Line:
    """Learns the sum of three numbers."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def build_model(self) -> nn.Module:
        return nn.Linear(3, 1).double()

    def train_dataset(self) -> Any:
        return self.rows

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return (model(x) - y).square().mean()


@dataclass(frozen=True)
class Row:
    x: torch.Tensor
    y: torch.Tensor


class Example(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Sized(tuple[Any, ...]):
    """A batch that is made of two parts, not of a sequence."""

    def __new__(cls, x: torch.Tensor, y: torch.Tensor) -> Sized:
        return super().__new__(cls, (x, y))


class Dataclasses(Plain):
    def __getitem__(self, row: int) -> Row:
        return Row(*numbers(row))


class Examples(Plain):
    def __getitem__(self, row: int) -> Example:
        return Example(*numbers(row))


class Collated(Line):
    """Makes a dataclass of dataclasses."""

    @staticmethod
    def collate(rows: list[Row]) -> Row:
        return Row(torch.stack([row.x for row in rows]), torch.stack([row.y for row in rows]))

    def loss(self, model: nn.Module, batch: Row) -> torch.Tensor:
        return super().loss(model, (batch.x, batch.y))


class OwnTuples(Line):
    @staticmethod
    def collate(rows: list[Any]) -> Sized:
        return Sized(*(torch.stack(part) for part in zip(*rows, strict=True)))


class NamedBatches(Line):
    def loss(self, model: nn.Module, batch: Example) -> torch.Tensor:
        return super().loss(model, (batch.x, batch.y))


def ends_alike(arena: Any, task: Any, **train: Any) -> None:
    train = {"grad_accumulation": 2, **train}
    expected = arena.train(Line(Plain()), arena.spec(train=train), 2)
    found = arena.train(task, arena.spec(train=train), 2)
    for mine, theirs in zip(found[0].parameters(), expected[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    "task", [Collated(Dataclasses()), OwnTuples(Plain()), NamedBatches(Examples())]
)
def test_batches_of_any_class_train_as_plain_ones(arena: Any, task: Any) -> None:
    ends_alike(arena, task)


class Database(Plain):
    """Connects when the first row is read, and can be sent elsewhere until then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database: sqlite3.Connection | None = None

    def __getitem__(self, row: int) -> Any:
        if self.database is None:
            self.database = sqlite3.connect(self.path)
        (read,) = self.database.execute("SELECT ?", [row]).fetchone()
        return numbers(read)


class Fetched(Database):
    def fetch(self, row_ids: list[int], *, epoch: int, seed: int) -> Any:
        return tuple(
            torch.stack(part) for part in zip(*map(self.__getitem__, row_ids), strict=True)
        )


class Lazy(Line):
    """Reads rows before the model is built."""

    def build_model(self) -> nn.Module:
        return nn.LazyLinear(1).double()


class Querying(Line):
    def train_dataset(self) -> Any:
        return Fetched(self.rows)


def test_what_is_opened_with_the_first_row_stays_in_the_loaders_thread(
    arena: Any, tmp_path: Path
) -> None:
    ends_alike(arena, Querying(tmp_path / "rows.sqlite3"))


def test_what_is_opened_with_the_first_row_is_opened_in_a_loader_process(
    arena: Any, tmp_path: Path
) -> None:
    rows = Database(tmp_path / "rows.sqlite3")
    arena.start(Lazy(rows), arena.spec(train={"loader_workers": 1}))
    assert rows.database is None


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_connection_of_the_training_thread_is_refused_before_training(
    arena: Any, tmp_path: Path
) -> None:
    rows = Fetched(tmp_path / "rows.sqlite3")
    rows[0]
    with pytest.raises(TaskError, match=r"SQLite objects .*connect in the first fetch\(\)"):
        arena.start(Line(rows), arena.spec())
    with pytest.raises(TaskError, match=r"cannot be sent to loader processes.*when the first row"):
        arena.start(Line(rows), arena.spec(train={"loader_workers": 1}))


class Pooled(Line):
    """One value per row and channel where BatchNorm is, though it is one for images."""

    def build_model(self) -> nn.Module:
        layers = (nn.Linear(3, 4), nn.Unflatten(1, (4, 1, 1)), nn.BatchNorm2d(4), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(4, 1)).double()


class Adversarial(Pooled):
    """Two optimizers."""

    def build_optimizers(self, named_parameters: Any) -> Any:
        parameters = [parameter for _, parameter in named_parameters]
        halves = {"first": parameters[:2], "second": parameters[2:]}
        return {name: torch.optim.SGD(half, lr=0.1) for name, half in halves.items()}

    def loss(self, model: nn.Module, batch: Any, update: str = "") -> torch.Tensor:
        return super().loss(model, batch)


@pytest.mark.parametrize(
    ("task", "strategy"),
    [(Pooled, {}), (Adversarial, {}), (Pooled, {"name": "sharded", "stage": 3})],
)
def test_more_ranks_than_batch_norm_has_rows_for_train_as_fewer(
    arena: Any, task: type[Line], strategy: dict[str, Any]
) -> None:
    spec = arena.spec(job={"global_batch_size": 4}, strategy=strategy)
    many, few = arena.train(task(Plain()), spec, 4), arena.train(task(Plain()), spec, 2)
    losses = [[step.loss for step in ranks[0].recorder.steps] for ranks in (many, few)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert len(losses[0]) == 9


@pytest.mark.parametrize("strategy", [{}, {"name": "sharded", "stage": 1}])
def test_a_batch_of_one_row_is_refused_in_the_warm_up(arena: Any, strategy: dict[str, Any]) -> None:
    spec = arena.spec(job={"global_batch_size": 1}, strategy=strategy)
    with pytest.raises(TaskError, match="micro-batch of step 0 has 1 row"):
        arena.start(Pooled(Plain()), spec)
