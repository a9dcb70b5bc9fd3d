"""Reported figures and environments as JSON can represent them: NaN is no number there.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

MAX_CHARACTERS: Final = 200
"""Most characters of a value of an environment."""


def finite(value: Any) -> Any:
    """The value, with None for numbers that are not finite, in nested lists and maps too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


REQUIRED: Final = "packages"
"""The entry with the versions of what the job requires; workers must not differ in it."""


def told(environment: Mapping[str, str]) -> tuple[str, ...]:
    """An environment as WARMED has it."""
    return tuple(f"{key}={value[:MAX_CHARACTERS]}" for key, value in environment.items())


def heard(entries: Iterable[str]) -> dict[str, str]:
    """The environment of `told`."""
    pairs = (entry.partition("=") for entry in entries)
    return {key: value for key, _, value in pairs}
