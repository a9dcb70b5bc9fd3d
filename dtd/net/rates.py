"""Rates of callers: an amount per second, and a burst.  Pure: the clock is an argument.

The owner of an allowance decides what it is for, and what happens to the excess.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final


@dataclass(slots=True)
class Allowance:
    """A token bucket: the amount that a caller may still do or send.

    Attributes:
        burst: largest saved amount, available at the start.
    """

    rate_per_s: float
    burst: float
    _left: float = -1.0
    _filled_s: float | None = None

    def left(self, now: float) -> float:
        """The amount available now; below 0 while a debt is being repaid."""
        if self._filled_s is None:
            self._left = self.burst
        else:
            earned = max(0.0, now - self._filled_s) * self.rate_per_s
            self._left = min(self.burst, self._left + earned)
        self._filled_s = now
        return self._left

    def takes(self, amount: float, now: float) -> bool:
        """Take this amount if it is available; returns whether it was."""
        if self.left(now) < amount:
            return False
        self._left -= amount
        return True

    def spend(self, amount: float, now: float) -> None:
        """Take this amount in any case; a shortfall becomes a debt."""
        self.left(now)
        self._left -= amount

    def wait_s(self, now: float) -> float:
        """The time until the debt is repaid; 0 without debt."""
        return max(0.0, -self.left(now) / self.rate_per_s)


MAX_PACED: Final = 4096
"""The least recent caller is forgotten: by then it has nothing to wait for."""


@dataclass(slots=True, kw_only=True)
class Pacing:
    """The same rate for each of many callers: one that exceeds it waits, and is not refused."""

    rate_per_s: float
    burst: float
    _paced: OrderedDict[Hashable, Allowance] = field(default_factory=OrderedDict)

    def wait_s(self, who: Hashable, now: float, amount: float = 1.0) -> float:
        """Return the seconds to wait before asking again; 0: continue, `amount` has been taken."""
        allowance = self._paced.pop(who, None) or Allowance(self.rate_per_s, self.burst)
        self._paced[who] = allowance
        while len(self._paced) > MAX_PACED:
            self._paced.popitem(last=False)
        wait_s = allowance.wait_s(now)
        if not wait_s:
            allowance.spend(amount, now)
        return wait_s
