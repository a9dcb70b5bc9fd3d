"""Figures that others report, as JSON can hold them, and answers in pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

# --- pages of answers: so many rows, and so many bytes; what is left is asked for by a cursor ---
#
# Pure.


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


# --- figures that others report, as JSON can hold them: a diverged loss is no number there -----
#
# Whatever a worker says of a job's result is written into the store with the job and shown by
# `dtdctl`, so what does not belong there is left out when it comes in.  Pure: values in, new values
# out, none is changed in place.


MAX_FIGURES: Final = 64
"""Entries of a result, or of an evaluation; what comes after them is left out."""

MAX_NAME_CHARACTERS: Final = 255
MAX_WORDS: Final = 4000
"""Characters of a text."""

_TEXTS: Final = frozenset({"ended_early"})
"""Entries of a result that are words; all others are figures."""


def finite(value: Any) -> Any:
    """The value, with None for what JSON has no number for, down to the last list and map."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


def metrics(said: Mapping[str, float]) -> dict[str, float | None]:
    """Figures of an evaluation; None for one that is not finite."""
    kept = [name for name in said if len(name) <= MAX_NAME_CHARACTERS][:MAX_FIGURES]
    return {name: finite(said[name]) for name in kept}


def result(said: Mapping[str, Any]) -> dict[str, Any]:
    """A job's result: its figures, None for one that is not finite, and the words it may have."""
    known = {name: one for name, one in said.items() if _belongs(name, one)}
    return {name: _bounded(known[name]) for name in list(known)[:MAX_FIGURES]}


def _belongs(name: Any, value: Any) -> bool:
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
        return False
    if isinstance(value, str):
        return name in _TEXTS
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _bounded(value: Any) -> Any:
    return value[:MAX_WORDS] if isinstance(value, str) else finite(value)
