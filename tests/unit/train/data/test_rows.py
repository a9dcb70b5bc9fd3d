"""Rows that are loaded, and which of them went through the model."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

from dtd.errors import TaskError
from dtd.strategy.scalars import USED_WORDS
from dtd.train.data.rows import (
    BatchRequest,
    LoadedBatch,
    UsedRows,
    checksum,
    load_rows,
    map_tensors,
)

Point = namedtuple("Point", "x y")


def test_a_failing_row_is_named_and_its_traceback_kept() -> None:
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> int:
            return 10 // (2 - row)

    with pytest.raises(TaskError, match="row 2 of the dataset raised ZeroDivisionError") as caught:
        load_rows(Broken(), [0, 2, 1], epoch=0, seed=0, reseed=False)
    assert "10 // (2 - row)" in "".join(caught.value.__notes__)


def test_a_failing_fetch_names_the_row_that_fails_alone() -> None:
    class Broken:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> int:
            raise AssertionError("fetch comes first")

        def fetch(self, row_ids: list[int], *, epoch: int, seed: int) -> list[int]:
            if row_ids == [0, 1]:
                raise ValueError("never together")
            return [10 // (2 - row) for row in row_ids]

    with pytest.raises(TaskError, match=r"row 2 of the dataset raised ZeroDivisionError"):
        load_rows(Broken(), [0, 3, 2], epoch=0, seed=0, reseed=False)
    with pytest.raises(TaskError, match=r"fetching rows 0, 1 of the dataset raised ValueError"):
        load_rows(Broken(), [0, 1], epoch=0, seed=0, reseed=False)


class Pair(tuple):
    """Takes two values, not a sequence of them, and remembers a name."""

    def __new__(cls, one, other, name=""):
        made = super().__new__(cls, (one, other))
        made.name = name
        return made


class Named(list):
    def __init__(self, *values, name=""):
        super().__init__(values)
        self.name = name


class Tagged(dict):
    def __init__(self, tag, **values):
        super().__init__(values)
        self.tag = tag


@dataclass(frozen=True, slots=True)
class Batch:
    x: torch.Tensor
    size: torch.Size
    inner: Pair


def test_containers_of_every_class_keep_it_and_what_else_they_know() -> None:
    one = torch.ones(1)
    pair, named = Pair(one, 3, name="p"), Named(one, "text", name="n")
    tagged = Tagged("t", x=one)
    batch = Batch(x=one, size=one.shape, inner=Pair(one, named))
    for value in (pair, named, tagged, batch):
        doubled = map_tensors(value, lambda tensor: tensor * 2)
        assert type(doubled) is type(value)
    assert map_tensors(pair, lambda tensor: tensor * 2).name == "p"
    assert map_tensors(named, lambda tensor: tensor * 2).name == "n"
    assert map_tensors(tagged, lambda tensor: tensor * 2).tag == "t"
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    assert doubled.x == doubled.inner[0] == doubled.inner[1][0] == 2
    assert doubled.size == one.shape
    assert batch.x == pair[0] == named[0] == tagged["x"] == 1


def test_a_container_that_cannot_be_made_anew_is_refused_by_name() -> None:
    class Closed(list):
        def __setitem__(self, index, value):
            raise TypeError("it is closed")

    with pytest.raises(TaskError, match=r"holds a Closed, .*it is closed.*plain tuples"):
        map_tensors(Closed([torch.ones(1)]), torch.Tensor.double)


def test_rows_that_the_default_cannot_collate_say_what_to_write() -> None:
    rows = [Batch(x=torch.ones(1), size=torch.Size(), inner=Pair(1, 2))]
    with pytest.raises(TaskError, match=r"found .*Batch.*give the task a collate\(rows\)"):
        load_rows(rows, [0], epoch=0, seed=0, reseed=False)


def used(asked: tuple[int, ...], loaded: tuple[int, ...], epoch: int = 0) -> UsedRows:
    tally = UsedRows()
    tally.add(
        BatchRequest(step=0, epoch=0, rows=asked),
        LoadedBatch(batch=None, epoch=epoch, rows=loaded),
    )
    return tally


def summed(tallies: list[UsedRows]) -> UsedRows:
    """The ring's sums of them: integers, added up modulo 2**64."""
    words = torch.tensor([tally.words() for tally in tallies], dtype=torch.int64)
    assert words.shape[1] == USED_WORDS
    return UsedRows.of_words(words.sum(dim=0).tolist())


@pytest.mark.parametrize(
    ("loaded", "epoch", "amiss"),
    [
        ((1, 2, 3), 0, (0, 0)),
        ((1, 3, 2), 0, (0, 0)),
        ((1, 2, 4), 0, (1, 1)),
        ((1, 2, 2), 0, (1, 1)),
        ((1, 2), 0, (1, 0)),
        ((1, 2, 3, 3), 0, (0, 1)),
        ((), 0, (3, 0)),
        ((1, 2, 3), 1, (3, 3)),
    ],
)
def test_a_rank_knows_what_it_did_not_get(loaded, epoch, amiss) -> None:
    tally = used((1, 2, 3), loaded, epoch)
    assert summed([tally, used((8,), (8,))]).against(checksum(0, (1, 2, 3, 8)), 4) == amiss
    assert bool(tally.example) == (epoch != 0 or loaded != (1, 2, 3))
