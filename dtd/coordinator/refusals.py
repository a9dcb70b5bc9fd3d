"""Who was turned away lately, and why: so that a flood does not fill the log.

What an operator is told of it is `dtd.core.troubles`.  Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dtd.core.allowance import Allowance

MAX_REFUSALS: Final = 32
LOG_EVERY_S: Final = 60.0
MAX_LOGGED_PER_S: Final = 1.0
LOG_BURST: Final = 16.0


class Refusals:
    """When the last refusals were logged, by host and reason, those of the past first."""

    def __init__(self) -> None:
        self._logged_s: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._may_log = Allowance(MAX_LOGGED_PER_S, LOG_BURST)

    def note(self, host: str, reason: str, now: float) -> bool:
        """Take one down; returns whether it should be logged."""
        logged_s = self._logged_s.pop((host, reason), None)
        due = logged_s is None or now - logged_s >= LOG_EVERY_S
        # However many hosts knock, the log grows by so much only.
        logs = due and self._may_log.takes(1, now)
        self._logged_s[host, reason] = now if logs or logged_s is None else logged_s
        while len(self._logged_s) > MAX_REFUSALS:
            self._logged_s.popitem(last=False)
        return logs
