"""Warnings that would come again and again: the first one, and then a count now and then.

A full disk fails every checkpoint; an operator needs to know once, and that it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Warn = Callable[[str, str], None]
"""(event, message)."""


@dataclass(slots=True)
class _Kept:
    """What is known of one kind of event."""

    told_s: float
    count: int = 0


class Seldom:
    """Passes warnings on, of each event no more than one in a while.

    Args:
        warn: where they go.
        every_s: the while.
        clock: seconds.
    """

    def __init__(
        self, warn: Warn, *, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._warn = warn
        self._every_s = every_s
        self._clock = clock
        self._events: dict[str, _Kept] = {}

    def __call__(self, event: str, message: str) -> None:
        """Pass it on, or count it."""
        now = self._clock()
        kept = self._events.get(event)
        if kept is not None and now - kept.told_s < self._every_s:
            kept.count += 1
            return
        more = f"; {kept.count} more like it since the last report" if kept and kept.count else ""
        self._events[event] = _Kept(told_s=now)
        self._warn(event, message + more)
