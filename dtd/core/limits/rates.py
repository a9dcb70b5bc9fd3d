"""Rates of many callers: a token bucket each, and when somebody may go on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

# ---
# So much a second, and some of it at once: the token bucket behind every rate that is bounded.
#
# Pure: the clock is handed in.  What an allowance is for, and what becomes of the rest, is the
# business of whoever keeps one.


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


# --- when somebody may go on: rates of many callers, each of whom waits for its own ------------
#
# Nothing is refused and nothing is lost: whoever is faster than its rate is simply heard later.
# Pure: the clock is handed in, and the wait is handed back.


MAX_PACED: Final = 4096
"""The one that was heard longest ago is forgotten: by then it has nothing to wait for."""


@dataclass(slots=True, kw_only=True)
class Pacing:
    """One rate, for each of many.

    Attributes:
        rate_per_s: of each.
        burst: what each may do at once.
    """

    rate_per_s: float
    burst: float
    _paced: OrderedDict[Hashable, Allowance] = field(default_factory=OrderedDict)

    def wait_s(self, who: Hashable, now: float, amount: float = 1.0) -> float:
        """How long to wait and then ask again; 0: go on, and `amount` has been taken."""
        allowance = self._paced.pop(who, None) or Allowance(self.rate_per_s, self.burst)
        self._paced[who] = allowance
        while len(self._paced) > MAX_PACED:
            self._paced.popitem(last=False)
        wait_s = allowance.wait_s(now)
        if not wait_s:
            allowance.spend(amount, now)
        return wait_s
