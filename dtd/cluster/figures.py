"""Reported figures and environments as JSON can represent them: NaN is no number there.

A worker's report of a job's result is stored with the job and shown by `dtdctl`, so anything else
is removed on arrival.  Pure: values in, new values out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

MAX_FIGURES: Final = 64
"""Most entries of a result, or of an evaluation; further ones are dropped."""

MAX_NAME_CHARACTERS: Final = 255
MAX_WORDS: Final = 4000
"""Most characters of a text."""

_TEXTS: Final = frozenset({"ended_early"})
"""Entries of a result that are text; all others are figures."""


def finite(value: Any) -> Any:
    """The value, with None for numbers that are not finite, in nested lists and maps too."""
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
    """A job's result: its figures (None for one that is not finite) and allowed text entries."""
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


MAX_ENTRIES: Final = 32
"""Most entries of a report; further ones are dropped."""
MAX_CHARACTERS: Final = 200
"""Most characters of a key or a value."""


def told(environment: Mapping[str, str]) -> tuple[str, ...]:
    """An environment as WARMED has it."""
    return tuple(f"{key}={value[:MAX_CHARACTERS]}" for key, value in environment.items())


def heard(entries: Iterable[str]) -> dict[str, str]:
    """Read a worker's report of its environment, without entries that are no `KEY=VALUE`."""
    found: dict[str, str] = {}
    for entry in entries:
        key, sign, value = entry.partition("=")
        if sign and key and len(found) < MAX_ENTRIES:
            found[key[:MAX_CHARACTERS]] = value[:MAX_CHARACTERS]
    return found
