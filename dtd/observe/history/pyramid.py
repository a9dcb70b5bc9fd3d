"""A track at several resolutions: each level summarises `FACTOR` buckets of the level below.

Level 0 has every row, at its own position: a step, or a second of Unix time.  A bucket of level k
covers `width(k)` positions.  Every level covers all positions, so that when the rows of old ones
have been removed, coarser buckets still show them, and a plot reads no more than it can draw.

`Pyramid` holds the newest bucket of each level, which is still growing.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dtd.observe.history.cells import Cell, cells_of, merged_rows

FACTOR: Final = 8
LEVELS: Final = 6
"""The coarsest bucket covers 32768 positions: 30 of them show a million steps."""


class Bucket(NamedTuple):
    """The summary of the positions `bucket * width(level)` and up, `width(level)` of them."""

    level: int
    bucket: int
    cells: list[Cell]


def width(level: int) -> int:
    """The positions that a bucket of a level covers."""
    return int(FACTOR**level)


class Pyramid:
    """The growing end of one track.

    Args:
        newest: the last position; -1 of an empty track.
        growing: the newest bucket of each level above 0 that has one.
    """

    def __init__(self, newest: int = -1, growing: Iterable[Bucket] = ()) -> None:
        self.newest = newest
        self._growing = {one.level: one for one in growing}
        self._rows: dict[int, list[Sequence[float]]] = {}

    def add(self, position: int, values: Sequence[float]) -> None:
        """Add a row behind the newest one; rows between two `take_changed` are of one length."""
        assert position > self.newest, "rows are added in order"
        self.newest = position
        self._rows.setdefault(position // FACTOR, []).append(values)

    def take_changed(self) -> list[Bucket]:
        """The buckets that have changed since the last call."""
        added = {number: cells_of(rows) for number, rows in self._rows.items()}
        self._rows = {}
        changed: list[Bucket] = []
        for level in range(1, LEVELS):
            for number, cells in added.items():
                before = self._growing.get(level)
                known = before.cells if before is not None and before.bucket == number else []
                grown = Bucket(level, number, merged_rows(known, cells))
                self._growing[level] = grown
                changed.append(grown)
            added = _of_the_next(added)
        return changed


def _of_the_next(added: dict[int, list[Cell]]) -> dict[int, list[Cell]]:
    """Merge the added cells into the buckets of the level above."""
    above: dict[int, list[Cell]] = {}
    for number, cells in added.items():
        above[number // FACTOR] = merged_rows(above.get(number // FACTOR, []), cells)
    return above


def summarised(level: int, number: int, below: Iterable[Sequence[Cell]]) -> Bucket | None:
    """One bucket, made again of those that the level below has of it; None of nothing."""
    cells: list[Cell] | None = None
    for one in below:
        cells = merged_rows(cells or [], one)
    return None if cells is None else Bucket(level, number, cells)
