"""A track at several resolutions: each level summarises `FACTOR` buckets of the level below.

Level 0 has every row, at its own position: a step, or a second of Unix time.  A bucket of level k
covers `width(k)` positions.  Every level covers all positions, so that when the rows of old ones
have been removed, coarser buckets still show them, and a plot reads no more than it can draw.

A row has a value for each column of its track, and is stored as little-endian 64-bit floats; a
bucket above level 0 has a cell for each column: count, sum, least, greatest.  Columns that a track
has got later are missing at the end of its earlier rows.  A value that is not finite is in no
summary: it is known only as long as its own row is kept.  Pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple


class Cell(NamedTuple):
    """A summary of one column; with no values the other fields mean nothing."""

    values: int
    total: float
    least: float
    greatest: float

    @property
    def mean(self) -> float | None:
        """None of no values."""
        return self.total / self.values if self.values else None


EMPTY: Final = Cell(0, 0.0, 0.0, 0.0)


def cell_of(value: float) -> Cell:
    """The summary of one value."""
    return Cell(1, value, value, value) if math.isfinite(value) else EMPTY


def cells_of(rows: Sequence[Sequence[float]]) -> list[Cell]:
    """The summary of rows of equal length, column by column."""
    return [_cell_of_column(column) for column in zip(*rows, strict=True)]


def _cell_of_column(column: Sequence[float]) -> Cell:
    total = sum(column)
    if not math.isfinite(total):  # one of them is not, or their sum is too large
        column = [value for value in column if math.isfinite(value)]
        total = sum(column)
    return Cell(len(column), total, min(column), max(column)) if column else EMPTY


def summary(cells: Iterable[Sequence[float]]) -> Cell:
    """The summary of several, each given as the fields of a `Cell`."""
    known = [cell for cell in cells if cell[0]]
    if not known:
        return EMPTY
    values, totals, least, greatest = zip(*known, strict=True)
    return Cell(int(sum(values)), sum(totals), min(least), max(greatest))


def merged(one: Cell, other: Cell) -> Cell:
    """The summary of both."""
    if not one.values:
        return other
    if not other.values:
        return one
    return Cell(
        one.values + other.values,
        one.total + other.total,
        min(one.least, other.least),
        max(one.greatest, other.greatest),
    )


def merged_rows(one: Sequence[Cell], other: Sequence[Cell]) -> list[Cell]:
    """The summary of both, column by column; columns that one lacks were added later."""
    shared = [merged(a, b) for a, b in zip(one, other, strict=False)]
    return [*shared, *one[len(shared) :], *other[len(shared) :]]


VALUE_BYTES: Final = 8
CELL_BYTES: Final = 4 * VALUE_BYTES
_PACKED_VALUE: Final = struct.Struct("<d")
_PACKED_CELL: Final = struct.Struct("<4d")


def pack_values(values: Sequence[float]) -> bytes:
    """A row."""
    return struct.pack(f"<{len(values)}d", *values)


def pack_cells(cells: Sequence[Cell]) -> bytes:
    """A bucket above level 0."""
    return b"".join(_PACKED_CELL.pack(*cell) for cell in cells)


def unpack_cells(level: int, data: bytes) -> list[Cell]:
    """The summaries of all columns of a bucket."""
    if level:
        return [Cell(int(values), *rest) for values, *rest in _PACKED_CELL.iter_unpack(data)]
    return [cell_of(value) for (value,) in _PACKED_VALUE.iter_unpack(data)]


def unpack_column(
    rows: Iterable[tuple[int, bytes]], place: int
) -> list[tuple[float, float, float, float]]:
    """The fields of the summaries of one column.

    Args:
        rows: level and data of each bucket.
        place: the column's.
    """
    in_row, in_bucket = place * VALUE_BYTES, place * CELL_BYTES
    found: list[tuple[float, float, float, float]] = []
    for level, data in rows:
        begin = in_bucket if level else in_row
        if begin >= len(data):
            found.append(EMPTY)
        elif level:
            found.append(_PACKED_CELL.unpack_from(data, begin))
        else:
            found.append(cell_of(*_PACKED_VALUE.unpack_from(data, begin)))
    return found


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


def aligned(level: int, position: int) -> int:
    """The last bucket of a level, at or before a position, with which one of the next begins."""
    above = width(min(level + 1, LEVELS - 1))
    return position // above * above // width(level)


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
