"""So much a second, and some of it at once: the token bucket behind every rate that is bounded.

Pure: the clock is handed in.  What an allowance is for, and what becomes of the rest, is the
business of whoever keeps one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Allowance:
    """What somebody may still do or send.

    Attributes:
        rate_per_s: what is added each second.
        burst: the most that is saved up; there at the start.
    """

    rate_per_s: float
    burst: float
    _left: float = -1.0
    _filled_s: float | None = None

    def left(self, now: float) -> float:
        """What there is at this moment; below 0 it is being waited for."""
        if self._filled_s is None:
            self._left = self.burst
        else:
            earned = max(0.0, now - self._filled_s) * self.rate_per_s
            self._left = min(self.burst, self._left + earned)
        self._filled_s = now
        return self._left

    def takes(self, amount: float, now: float) -> bool:
        """Take this much if there is as much."""
        if self.left(now) < amount:
            return False
        self._left -= amount
        return True

    def spend(self, amount: float, now: float) -> None:
        """Take this much in any case; what is lacking has to be earned."""
        self.left(now)
        self._left -= amount

    def wait_s(self, now: float) -> float:
        """How long until nothing is owed; 0 when nothing is."""
        return max(0.0, -self.left(now) / self.rate_per_s)
