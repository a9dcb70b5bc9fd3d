"""Which rows the steps of a simulated job use, and what they sum to.

A rank adds up a number for each row of its slice; the ring adds those of all ranks, and the sum
goes into the state.  So a row that is left out, or used twice, changes what the state is.  Workers
ask the product which rows are theirs (`dtd.core.data.sampler`, `dtd.train.data.sampling`) and keep
its ledger; what the judge expects is worked out here, another way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Final

from dtd.core.data.sampler import position_of_step, slice_bounds, steps_per_epoch
from dtd.train.data.sampling import ordered_rows

SEED: Final = 11
ROW_BITS: Final = 32
RANK_BITS: Final = 64
"""Below the sum of rows an element has a bit for each rank that is in it."""


@dataclass(frozen=True, slots=True)
class Data:
    """A dataset and how it is cut: `length` rows, `batch` of them in a step."""

    length: int
    batch: int


def value(epoch: int, row: int) -> int:
    """The number of a row in an epoch."""
    mixed = (epoch * 0x9E3779B1 + row * 0x85EBCA77 + 0x165667B1) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    return (mixed * 0x2C1B3C6D & 0xFFFFFFFF) | 1


def places(data: Data, step: int, *, rank: int, world_size: int) -> tuple[int, list[int]]:
    """(epoch, places in its order) of a rank's slice of a step, as the product has them."""
    position = position_of_step(step, global_batch_size=data.batch, length=data.length)
    rows = min(data.batch, data.length - position.offset)
    start, stop = slice_bounds(rows, world_size, rank)
    return position.epoch, list(range(position.offset + start, position.offset + stop))


@cache
def share(data: Data, step: int, *, rank: int, world_size: int) -> int:
    """What a rank adds up in a step."""
    epoch, mine = places(data, step, rank=rank, world_size=world_size)
    if not mine:
        return 0
    rows = ordered_rows(SEED, epoch, mine[0], mine[-1] + 1, data.length)
    return sum(value(epoch, int(row)) for row in rows)


def steps_in(data: Data, epochs: int) -> int:
    """Steps of so many epochs, as the product counts them."""
    return epochs * steps_per_epoch(data.length, data.batch)


# --- what the judge expects ----------------------------------------------------------------------


@cache
def expected(data: Data, step: int) -> int:
    """The sum over all ranks in a step: each row of an epoch once, the last batch being short."""
    batches = -(-data.length // data.batch)
    epoch, batch = step // batches, step % batches
    stop = min((batch + 1) * data.batch, data.length)
    return sum(value(epoch, row) for row in _order(data, epoch)[batch * data.batch : stop])


@cache
def _order(data: Data, epoch: int) -> list[int]:
    """The rows of an epoch; an order that is none is left with what it has twice, or not at all."""
    rows = [int(row) for row in ordered_rows(SEED, epoch, 0, data.length, data.length)]
    wrong = Counter(rows) - Counter(range(data.length))
    assert not wrong, f"rows {sorted(wrong)} come twice in an epoch of {data.length}"
    return rows


@cache
def entered(data: Data, step: int) -> tuple[int, int]:
    """(epoch, rows of it that are committed) after so many steps."""
    batches = -(-data.length // data.batch)
    return step // batches, (step % batches) * data.batch
