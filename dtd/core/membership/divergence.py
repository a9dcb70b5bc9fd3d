"""Replicas that differ without a majority: is it chance, or will it happen again for ever?

A bit that flipped will not flip again: the job goes back to its newest checkpoint and passes the
point.  A state that dtd does not know (an optimizer that the task steps itself) differs again at
the same step, in the same entry.  Pure: functions over what the job remembers, which is kept in the
coordinator's store with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MAX_DIVERGENCES: Final = 4
"""So many of them that did not get beyond the earliest, whatever differed, end the job."""


class Divergence(NamedTuple):
    """In this generation states differed after so many steps, first in this entry, if known."""

    generation: int
    step: int
    entry: str


def remembered(known: Sequence[Sequence[Any]]) -> list[Divergence]:
    """What a job's record holds, which may have been read from a file."""
    return [Divergence(int(one[0]), int(one[1]), str(one[2])) for one in known]


def noted(known: Sequence[Divergence], new: Divergence) -> list[Divergence]:
    """What is worth remembering now: the job has got past earlier points.

    All members of a generation report the same; whose ring broke first may not know the entry.
    """
    last = known[-1] if known else None
    if last is not None and last.generation == new.generation:
        return [*known[:-1], last if last.entry else new]
    return [*(one for one in known if one.step >= new.step), new]


def last_generation(known: Sequence[Divergence]) -> int:
    """In which states differed last; 0: in none."""
    return known[-1].generation if known else 0


def why_hopeless(known: Sequence[Divergence]) -> str:
    """Why it makes no sense to go on after the last of these; empty when it does."""
    last = known[-1]
    where = f" after step {last.step}"
    if any((one.step, one.entry) == (last.step, last.entry) for one in known[:-1]):
        again = f", again in {last.entry}" if last.entry else ""
        return f"replicas differ again{where}{again}"
    if len(known) >= MAX_DIVERGENCES:
        return f"replicas have differed {len(known)} times, the last time{where}"
    return ""
