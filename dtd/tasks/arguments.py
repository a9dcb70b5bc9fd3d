"""Checks of `[task]` table values that several built-in tasks share."""

from __future__ import annotations

from dtd.errors import TaskError


def require_positive(**values: object) -> None:
    """Raise TaskError for the first value that is not a whole number of at least 1."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise TaskError(
                f"[task] {name} must be a whole number of at least 1, not {value!r}",
                remedy=f"change {name} in the job file",
            )


def require_share(**values: object) -> None:
    """Raise TaskError for the first value that is not a number with 0 <= value < 1."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise TaskError(
                f"[task] {name} must be a number from 0 up to but not including 1, not {value!r}",
                remedy=f"change {name} in the job file",
            )
