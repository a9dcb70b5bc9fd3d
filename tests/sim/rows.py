"""The rows used by the steps of a simulated job, and their sums.

A rank sums a number for each row of its slice; the ring adds the sums of all ranks, and the result
becomes part of the state.  A row that is omitted, or used twice, therefore changes the state.
Workers determine their rows with the product's code (`dtd.engine.sampler`,
`dtd.train.data.sampling`); the values that the oracle expects are computed here independently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from dtd.engine.sampler import advance, position_of_step, slice_bounds
from dtd.engine.shares import applies, starts
from dtd.train.data.sampling import ordered_rows

SEED: Final = 11
LEAST_ROWS: Final = 2
"""Of a rank, where rows are divided by speed."""
RANK_BITS: Final = 64
"""Lower bits of an element, one for each rank that contributed; the sum of rows is above."""


@dataclass(frozen=True, slots=True)
class Data:
    """A dataset of `length` rows, `batch` of them per step, and the length of rounds.

    Attributes:
        round_steps: initial number of steps between two exchanges.
        local_from: before this step, every step has an exchange.
        double_every: number of steps after which the length of rounds doubles; 0: never.
        longest: maximum number of steps in a round.
    """

    length: int
    batch: int
    round_steps: int = 1
    local_from: int = 0
    double_every: int = 0
    longest: int = 1


def data_of(spec: Mapping[str, Any]) -> Data:
    """The data defined by a job's specification."""
    model, strategy = spec["model"], spec.get("strategy", {})
    round_steps = int(strategy.get("inner_steps", 1))
    return Data(
        length=int(model["rows"]),
        batch=int(model["batch"]),
        round_steps=round_steps,
        local_from=int(strategy.get("local_start_step", 0)),
        double_every=int(strategy.get("inner_steps_double_every", 0)),
        longest=max(round_steps, int(strategy.get("inner_steps_max", 0))),
    )


def value(epoch: int, row: int) -> int:
    """The number that a row contributes in an epoch."""
    mixed = (epoch * 0x9E3779B1 + row * 0x85EBCA77 + 0x165667B1) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    return (mixed * 0x2C1B3C6D & 0xFFFFFFFF) | 1


def places(
    data: Data, step: int, *, rank: int, world_size: int, costs: tuple[int, ...] = ()
) -> tuple[int, list[int]]:
    """(epoch, positions in its order) of a rank's slice of a step, computed by the product."""
    position = position_of_step(step, global_batch_size=data.batch, length=data.length)
    rows = min(data.batch, data.length - position.offset)
    start, stop = slice_bounds(rows, world_size, rank)
    if costs and applies(rows, world_size, LEAST_ROWS):
        start, stop = starts(rows, costs, LEAST_ROWS)[rank : rank + 2]
    return position.epoch, list(range(position.offset + start, position.offset + stop))


@cache
def follows(data: Data, step: int) -> bool:
    """Whether, by the product's count, the next step begins where this one ends."""
    here, after = (
        position_of_step(one, global_batch_size=data.batch, length=data.length)
        for one in (step, step + 1)
    )
    return advance(here, len(places(data, step, rank=0, world_size=1)[1]), data.length) == after


@cache
def share(data: Data, step: int, *, rank: int, world_size: int, costs: tuple[int, ...] = ()) -> int:
    """The sum of a rank's rows in a step."""
    epoch, mine = places(data, step, rank=rank, world_size=world_size, costs=costs)
    if not mine:
        return 0
    rows = ordered_rows(SEED, epoch, mine[0], mine[-1] + 1, data.length)
    return sum(value(epoch, int(row)) for row in rows)


# --- values that the judge expects ---------------------------------------------------------------


@cache
def expected(data: Data, step: int) -> int:
    """The sum over all ranks in a step: each row of an epoch once; the last batch may be short."""
    epoch, own = _batch(data, step)
    return sum(value(epoch, row) for row in own)


@cache
def expected_share(
    data: Data, end: int, *, rank: int, world_size: int, costs: tuple[int, ...] = ()
) -> int:
    """The sum of a rank's rows in the round that ends at this step.

    Whether they are fairly divided is not judged here, only that they are what was divided.
    """
    total = 0
    for step in range(round_begin(data, end), end):
        epoch, batch = _batch(data, step)
        bounds = [len(batch) * one // world_size for one in range(world_size + 1)]
        if costs and len(batch) >= LEAST_ROWS * world_size:
            bounds = [*starts(len(batch), costs, LEAST_ROWS)]
        start, stop = bounds[rank : rank + 2]
        total += sum(value(epoch, row) for row in batch[start:stop])
    return total


@cache
def round_begin(data: Data, end: int) -> int:
    """First step of the round that ends at this step; a job's last round may end early."""
    begin = 0
    while True:
        after = _round_end(data, begin)
        if after >= end:
            return begin
        begin = after


def _round_end(data: Data, begin: int) -> int:
    if begin < data.local_from:
        return begin + 1
    length, doubles_at = data.round_steps, data.local_from + data.double_every
    while data.double_every and length < data.longest and begin >= doubles_at:
        length, doubles_at = min(2 * length, data.longest), doubles_at + data.double_every
    grows = data.double_every and length < data.longest
    return min(begin + length, doubles_at) if grows else begin + length


def _batch(data: Data, step: int) -> tuple[int, list[int]]:
    batches = -(-data.length // data.batch)
    epoch, batch = step // batches, step % batches
    stop = min((batch + 1) * data.batch, data.length)
    return epoch, _order(data, epoch)[batch * data.batch : stop]


@cache
def _order(data: Data, epoch: int) -> list[int]:
    """The rows of an epoch in order; an invalid order keeps its duplicates and gaps."""
    rows = [int(row) for row in ordered_rows(SEED, epoch, 0, data.length, data.length)]
    wrong = Counter(rows) - Counter(range(data.length))
    assert not wrong, f"rows {sorted(wrong)} come twice in an epoch of {data.length}"
    return rows
