"""Summaries of a figure over several moments: how many values, their sum, least and greatest.

A *row* is one moment of one track, a value for each of its columns.  A summary of several rows is a
list of cells, one for each column.  A value that is not finite is in no summary: it is known only
as long as its own row is kept.  Pure.
"""

from __future__ import annotations

import math
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
