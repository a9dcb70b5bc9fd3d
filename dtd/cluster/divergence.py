"""Replicas that differ without a majority: distinguishes chance from a repeating cause.

A flipped bit will not flip again: the job returns to its newest checkpoint and passes the point.  A
state that dtd does not know (an optimizer that the task steps itself) differs again at
the same step, in the same entry.  Pure: functions over the job's record, which is kept in the
coordinator's store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MAX_DIVERGENCES: Final = 4
"""This number of divergences without progress beyond the earliest ends the job."""


class Divergence(NamedTuple):
    """States differed in this generation after this many steps, first in this entry, if known."""

    generation: int
    step: int
    entry: str


def remembered(known: Sequence[Sequence[Any]]) -> list[Divergence]:
    """The divergences of a job's record, which may come from a file."""
    return [Divergence(int(one[0]), int(one[1]), str(one[2])) for one in known]


def noted(known: Sequence[Divergence], new: Divergence) -> list[Divergence]:
    """The divergences to keep: the job has passed earlier points.

    All members of a generation report the same; one whose ring broke first may not know the entry.
    """
    last = known[-1] if known else None
    if last is not None and last.generation == new.generation:
        return [*known[:-1], last if last.entry else new]
    return [*(one for one in known if one.step >= new.step), new]


def last_generation(known: Sequence[Divergence]) -> int:
    """The last generation in which states differed; 0: none."""
    return known[-1].generation if known else 0


def why_hopeless(known: Sequence[Divergence]) -> str:
    """Why continuing after the last of these is pointless; empty when it is not."""
    last = known[-1]
    where = f" after step {last.step}"
    if any((one.step, one.entry) == (last.step, last.entry) for one in known[:-1]):
        again = f", again in {last.entry}" if last.entry else ""
        return f"replicas differ again{where}{again}"
    if len(known) >= MAX_DIVERGENCES:
        return f"replicas have differed {len(known)} times, the last time{where}"
    return ""
