"""Who was turned away lately, and why: for the status, and so that a flood does not fill the log.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_REFUSALS: Final = 32
LOG_EVERY_S: Final = 60.0
MAX_LOGGED_PER_S: Final = 1.0
LOG_BURST: Final = 16.0


@dataclass(slots=True)
class Refusal:
    """One host that was refused for one reason, so often; times are of the daemon's clock."""

    host: str
    reason: str
    first_s: float
    last_s: float
    logged_s: float
    count: int = 1


class Refusals:
    """The last refusals, by host and reason, those of the past first."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Refusal] = OrderedDict()
        self._log_tokens = LOG_BURST
        self._log_filled_s = 0.0

    def note(self, host: str, reason: str, now: float) -> bool:
        """Take one down; returns whether it should be logged."""
        known = self._known.pop((host, reason), None)
        due = known is None or now - known.logged_s >= LOG_EVERY_S
        logs = due and self._may_log(now)
        if known is None:
            known = Refusal(host, reason, now, now, now)
        else:
            known.count += 1
            known.last_s = now
            known.logged_s = now if logs else known.logged_s
        self._known[host, reason] = known
        while len(self._known) > MAX_REFUSALS:
            self._known.popitem(last=False)
        return logs

    def latest(self) -> tuple[Refusal, ...]:
        """All that are remembered, the latest last."""
        return tuple(self._known.values())

    def _may_log(self, now: float) -> bool:
        """However many hosts knock, the log grows by so much only."""
        earned = (now - self._log_filled_s) * MAX_LOGGED_PER_S
        self._log_tokens = min(LOG_BURST, self._log_tokens + earned)
        self._log_filled_s = now
        if self._log_tokens < 1:
            return False
        self._log_tokens -= 1
        return True
