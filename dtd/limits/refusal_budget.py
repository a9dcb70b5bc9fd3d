"""Bounds the refusals in the audit log, so that unknown callers cannot fill it.

Each caller has its own budget, unknown callers share one, and all refusals together have one.
Refusals that are not entered are counted, and the caller's next entry states the count.  Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

BURST: Final = 16.0
EVERY_S: Final = 60.0
ALL_BURST: Final = 128.0
ALL_EVERY_S: Final = 10.0
MAX_CALLERS: Final = 64


@dataclass(slots=True)
class _Bucket:
    """A budget that regains one entry per interval."""

    most: float
    every_s: float
    left: float
    at_s: float

    def has(self, now: float) -> bool:
        self.left = min(self.most, self.left + max(0.0, now - self.at_s) / self.every_s)
        self.at_s = now
        return self.left >= 1

    def take(self) -> None:
        self.left -= 1


class RefusalBudget:
    """Recent refusals of each caller."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _Bucket] = OrderedDict()
        self._skipped: dict[str, int] = {}
        self._all = _Bucket(ALL_BURST, ALL_EVERY_S, ALL_BURST, 0.0)

    def spend(self, caller: str, now: float) -> int | None:
        """Count one more refusal of this caller.

        Returns:
            None when it is not to be entered, else the number of earlier ones that were not.
        """
        bucket = self._callers.pop(caller, None) or _Bucket(BURST, EVERY_S, BURST, now)
        self._callers[caller] = bucket
        self._forget()
        if not (bucket.has(now) and self._all.has(now)):
            self._skipped[caller] = self._skipped.get(caller, 0) + 1
            return None
        bucket.take()
        self._all.take()
        return self._skipped.pop(caller, 0)

    def _forget(self) -> None:
        """Forget the least recently refused caller, whose budget is full again."""
        while len(self._callers) > MAX_CALLERS:
            caller, _ = self._callers.popitem(last=False)
            self._skipped.pop(caller, None)
