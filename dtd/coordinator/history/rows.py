"""Layout of rows and summaries in the store: little-endian 64-bit floats.

A row of level 0 has one float for each column, a bucket above it four: count, sum, least, greatest.
Columns that a track has got later are missing at the end of its earlier rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from dtd.observe.history.cells import EMPTY, Cell, cell_of

VALUE_BYTES: Final = 8
CELL_BYTES: Final = 4 * VALUE_BYTES
_VALUE: Final = struct.Struct("<d")
_CELL: Final = struct.Struct("<4d")


def pack_values(values: Sequence[float]) -> bytes:
    """A row."""
    return struct.pack(f"<{len(values)}d", *values)


def pack_cells(cells: Sequence[Cell]) -> bytes:
    """A bucket above level 0."""
    return b"".join(_CELL.pack(*cell) for cell in cells)


def unpack_cells(level: int, data: bytes) -> list[Cell]:
    """The summaries of all columns of a bucket."""
    if level:
        return [Cell(int(values), *rest) for values, *rest in _CELL.iter_unpack(data)]
    return [cell_of(value) for (value,) in _VALUE.iter_unpack(data)]


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
            found.append(_CELL.unpack_from(data, begin))
        else:
            found.append(cell_of(*_VALUE.unpack_from(data, begin)))
    return found
