"""Pages of answers: so many rows, and so many bytes; what is left is asked for by a cursor.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 512 * 1024
_OF_A_VALUE: Final = 8
"""What a number, a key or the end of a text takes, roughly."""


def page(rows: Iterable[dict[str, Any]], *, most_bytes: int = PAGE_BYTES) -> list[dict[str, Any]]:
    """The first rows, as many as fit; never none of some, or nobody would get past a large one."""
    kept: list[dict[str, Any]] = []
    room = most_bytes
    for row in rows:
        room -= size_of(row)
        if kept and room < 0:
            break
        kept.append(row)
    return kept


def size_of(value: Any) -> int:
    """About how many bytes a value takes in an answer."""
    if isinstance(value, str | bytes):
        return len(value) + _OF_A_VALUE
    if isinstance(value, dict):
        return sum(size_of(key) + size_of(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value)) + _OF_A_VALUE
    return _OF_A_VALUE
