"""For how long something was in flight, however many things were at a time.  Pure."""

from __future__ import annotations


class BusyTime:
    """Time during which at least one of several things was under way.

    Attributes:
        busy_s: so far, without what is under way now.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._in_flight = 0
        self._since_s = 0.0

    def begin(self, now: float) -> None:
        """Something more is under way; `now` in seconds, on any clock."""
        if self._in_flight == 0:
            self._since_s = now
        self._in_flight += 1

    def end(self, now: float) -> None:
        """One of them has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self.busy_s += now - self._since_s
