"""The software and hardware that a job trains with, as its workers report them.

A report is a list of `KEY=VALUE`; what a job remembers of it is a bounded map.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

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
