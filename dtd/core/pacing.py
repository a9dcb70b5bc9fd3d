"""When somebody may go on: rates of many callers, each of whom waits for its own.

Nothing is refused and nothing is lost: whoever is faster than its rate is simply heard later.
Pure: the clock is handed in, and the wait is handed back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from dtd.core.allowance import Allowance

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
