"""Whether this process itself ran: only then does the silence of others, or of a thread, count.

A process that somebody stops, or whose machine sleeps, sees a long time pass between two looks that
should have followed one another.  Pure; times are seconds of any monotonic clock.
"""

from __future__ import annotations

import math
from typing import Final

LATE_TICKS: Final = 2.0
"""A look that is later than so many ticks comes from a process that stood still."""


class OwnClock:
    """What is known of one process's own running.

    Attributes:
        ran_until: up to here it ran, as far as the last look tells.
    """

    def __init__(self) -> None:
        self.ran_until = math.inf

    def look(self, now: float, *, tick_s: float) -> float:
        """This process runs, and looks again within `tick_s`.

        Returns:
            For how long it stood still before, in seconds.
        """
        stood_still_s = max(0.0, now - self.ran_until)
        self.ran_until = now + LATE_TICKS * tick_s
        return stood_still_s
