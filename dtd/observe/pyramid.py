"""A track at three resolutions: each level summarises `FACTOR` buckets of the level below.

Level 0 has every row, at its own position: a step, or a second of Unix time.  A bucket of level k
covers `width(k)` positions.  Every level covers all positions, so that when the rows of old ones
have been removed, coarser buckets still show them, and a plot reads no more than it can draw.

A row has a value for each column of its track, and is stored as little-endian 64-bit floats; a
bucket above level 0 has a cell for each column: count, sum, least, greatest.  Columns that a track
has got later are missing at the end of its earlier rows.  A value that is not finite is in no
summary: it is known only as long as its own row is kept.  Pure.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FACTOR: Final = 32
LEVELS: Final = 3
"""The coarsest bucket covers 1024 positions: 1000 of them show a million steps."""

_VALUE: Final = struct.Struct("<d")
_CELL: Final = struct.Struct("<4d")


class Cell(NamedTuple):
    """A summary of one column; with no values the other fields mean nothing."""

    values: float
    total: float
    least: float
    greatest: float

    @property
    def mean(self) -> float | None:
        """None without values."""
        return self.total / self.values if self.values else None


EMPTY: Final = Cell(0, 0.0, 0.0, 0.0)


def cell_of(values: Sequence[float]) -> Cell:
    """Return the summary of some values."""
    total = sum(values)
    if not math.isfinite(total):  # one of them is not, or their sum is too large
        values = [value for value in values if math.isfinite(value)]
        total = sum(values)
    return Cell(len(values), total, min(values), max(values)) if values else EMPTY


def merged(cells: Iterable[Sequence[float]]) -> Cell:
    """The summary of several, each given as the fields of a `Cell`."""
    known = [cell for cell in cells if cell[0]]
    if not known:
        return EMPTY
    values, totals, least, greatest = zip(*known, strict=True)
    return Cell(sum(values), sum(totals), min(least), max(greatest))


def width(level: int) -> int:
    """The positions that a bucket of a level covers."""
    return int(FACTOR**level)


def aligned(level: int, position: int) -> int:
    """The last bucket of a level, at or before a position, with which one of the next begins."""
    above = width(min(level + 1, LEVELS - 1))
    return position // above * above // width(level)


def pack_row(values: Sequence[float]) -> bytes:
    """The data of a row."""
    return struct.pack(f"<{len(values)}d", *values)


def summarised(level: int, below: Sequence[bytes]) -> bytes:
    """The data of one bucket of a level above 0, of its rows or its buckets of the level below."""
    if level == 1:
        rows = [struct.unpack(f"<{len(data) // _VALUE.size}d", data) for data in below]
        columns = itertools.zip_longest(*rows, fillvalue=math.nan)
        return b"".join(_CELL.pack(*cell_of(column)) for column in columns)
    buckets = [_CELL.iter_unpack(data) for data in below]
    return b"".join(
        _CELL.pack(*merged(column)) for column in itertools.zip_longest(*buckets, fillvalue=EMPTY)
    )


def unpack_column(rows: Iterable[tuple[int, bytes]], place: int) -> list[Sequence[float]]:
    """The fields of the summaries of the column at a place, of level and data of each bucket."""
    in_row, in_bucket = place * _VALUE.size, place * _CELL.size
    found: list[Sequence[float]] = []
    for level, data in rows:
        begin = in_bucket if level else in_row
        if begin >= len(data):
            found.append(EMPTY)
        elif level:
            found.append(_CELL.unpack_from(data, begin))
        else:
            found.append(cell_of(_VALUE.unpack_from(data, begin)))
    return found
