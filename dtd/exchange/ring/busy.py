"""The time during which something was in flight, with overlaps counted once.  Pure."""

from __future__ import annotations


class BusyTime:
    """Time during which at least one of several operations was in progress.

    Attributes:
        busy_s: total so far, without the current busy period.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._in_flight = 0
        self._since_s = 0.0

    def begin(self, now: float) -> None:
        """One more operation begins; `now` in seconds, on any clock."""
        if self._in_flight == 0:
            self._since_s = now
        self._in_flight += 1

    def end(self, now: float) -> None:
        """One operation has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self.busy_s += now - self._since_s
