"""Which of several files holds the credential that counts: the given one, or one that renews it.

A renewed credential takes the place of its file where that may be written.  Where not (a service
manager hands it over read-only) it goes into the state directory, and whoever starts next takes the
newest of the same credential.  Looks at the heads of the files alone, and loads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LEAF: Final = "renewed.credential"
SHARED: Final = "workers"
"""Beside the workers' state directories, one for all workers of a host, made by systemd."""
_MOST_LINES: Final = 16


def newest(path: Path, others: Iterable[Path]) -> Path:
    """The file of a credential that was issued last: this one, or one that renews it.

    Files that cannot be read or are of another credential are passed over.
    """
    given = head_of(path)
    best, best_issued = path, given.get("issued", "")
    for other in others:
        head = head_of(other)
        same = all(head.get(key) == given.get(key) for key in ("role", "name"))
        related = given.get("credential") in (None, head.get("credential"))
        if same and related and head.get("issued", "") > best_issued:  # ISO times in UTC
            best, best_issued = other, head["issued"]
    return best


def place_of_renewed(path: Path, state_dir: Path | None) -> Path:
    """The file that a renewed credential is written to; without a state directory its own."""
    if state_dir is None or (os.access(path.parent, os.W_OK) and path.name != LEAF):
        return path
    shared = state_dir.parent / SHARED
    return (shared if os.access(shared, os.W_OK) else state_dir) / LEAF


def places_of_renewed(state_dir: Path) -> tuple[Path, ...]:
    """Where workers of this host have put renewed credentials that they could not put in place."""
    return state_dir / LEAF, state_dir.parent / SHARED / LEAF


def head_of(path: Path) -> dict[str, str]:
    """`# key: value` lines before the key; empty when the file cannot be read."""
    values: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, colon, value = line.removeprefix("#").partition(":")
                if not line.startswith("#") or len(values) >= _MOST_LINES:
                    break
                if colon:
                    values[key.strip()] = value.strip()
    except OSError:
        return {}
    return values
