"""`--set table.key=value`: changes to a job file's values before they are checked.

The value is read as TOML (`0.1`, `true`, `[1, 2]`, `"text"`), and as a plain string where that
fails.  The last of several overrides counts, and setting one of `job.epochs` and
`job.steps` takes the other one away, so that a job written in epochs can be tried for a few steps.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date, time
from typing import Any, Final

from dtd.shown import shown
from dtd.toml_source import CONTENT_ERRORS, KeyPath

_RIVALS: Final = {("job", "epochs"): "steps", ("job", "steps"): "epochs"}


def apply_overrides(
    raw: dict[str, Any], overrides: Sequence[str]
) -> tuple[set[KeyPath], list[str]]:
    """Change `raw` in place; returns which keys were set, and what is wrong with the overrides."""
    assigned: set[KeyPath] = set()
    faults: list[str] = []
    for override in overrides:
        dotted, equals, text = override.partition("=")
        path = tuple(part.strip() for part in dotted.split("."))
        if not equals or len(path) < 2 or not all(path):
            faults.append(f"--set {shown(override)}: must read table.key=value")
        elif not _assign(raw, path, _value(text.strip())):
            faults.append(f"--set {shown(override)}: {'.'.join(path[:-1])} is not a table")
        else:
            assigned.add(path)
            if path in _RIVALS:
                raw["job"].pop(_RIVALS[path], None)
    return assigned, faults


def _assign(raw: dict[str, Any], path: KeyPath, value: object) -> bool:
    table: Any = raw
    for key in path[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            return False
    table[path[-1]] = value
    return True


def _value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except CONTENT_ERRORS:
        return text
    value = parsed.pop("value")
    # A line break would bring in further keys, and no field takes a date: both are plain text.
    return text if parsed or isinstance(value, date | time) else value
