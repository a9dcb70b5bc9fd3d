"""Buckets of a plot, and their reduction to as many points as it wants.

A plot takes the coarsest level that still has at least as many buckets as points.  Where the rows
of that level have been removed, coarser ones stand in for them.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dtd.observe.history.pyramid import LEVELS, width

MOST_POINTS: Final = 20_000
"""Most points of all columns of an answer: packing them must not hold the event loop up."""


class Piece(NamedTuple):
    """The buckets `first` to `last` of a level."""

    level: int
    first: int
    last: int


class Slot(NamedTuple):
    """Buckets side by side that become one point.

    Attributes:
        begin: the first position.
        end: the last one.
        first: the place of the first bucket among those that were read.
        stop: the place behind the last one.
    """

    begin: int
    end: int
    first: int
    stop: int


def level_for(begin: int, end: int, points: int) -> int:
    """The coarsest level with at least `points` buckets from `begin` to `end`; 0 if none has."""
    span = end - begin + 1
    fitting = [level for level in range(LEVELS) if span // width(level) >= points]
    return max(fitting, default=0)


def pieces(begin: int, end: int, level: int, kept_from: Sequence[int]) -> list[Piece]:
    """Return the pieces to read, the oldest first, so that no position is read twice.

    Args:
        begin: the first position wanted.
        end: the last one.
        level: the finest level to use.
        kept_from: of each level, the first position that it still has, a multiple of the width of
            the level above; of a coarser level it is never later.
    """
    found: list[Piece] = []
    upper = end
    for one in range(level, LEVELS):
        lower = max(begin, kept_from[one])
        if lower <= upper:
            found.append(Piece(one, lower // width(one), upper // width(one)))
            upper = kept_from[one] - 1
        if upper < begin:
            break
    return found[::-1]


def slots_of(buckets: Iterable[tuple[int, int]], begin: int, end: int, points: int) -> list[Slot]:
    """Return at most `points` slots of buckets, which are given in order, by level and number."""
    span = max(1, end - begin + 1)
    made: list[Slot] = []
    newest = -1
    for place, (level, number) in enumerate(buckets):
        first = number * width(level)
        here = max(0, min(points - 1, (first - begin) * points // span))
        last = min(end, first + width(level) - 1)  # the newest bucket is not full
        if here == newest:
            made[-1] = Slot(made[-1].begin, last, made[-1].first, place + 1)
        else:
            made.append(Slot(first, last, place, place + 1))
            newest = here
    return made


def columns_at_once(points: int) -> int:
    """Return the most columns that one answer may have, with so many points each."""
    return max(1, MOST_POINTS // points)
