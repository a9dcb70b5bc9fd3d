"""When a daemon that died is started again: at once, then later and later, then no more.

Pure; the same idea as systemd's Restart=on-failure with a start limit.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 30.0
MOST_IN_WINDOW: Final = 6
FIRST_DELAY_S: Final = 0.25
# A daemon that has lived this long was killed from outside rather than by its own start.
SETTLED_S: Final = 3.0
EX_CONFIG: Final = 78


class RestartPolicy:
    """The restarts of one daemon."""

    def __init__(self) -> None:
        self._early_deaths_s: deque[float] = deque()

    def next_start_s(self, exit_code: int, now_s: float, *, lived_s: float) -> float | None:
        """When to start it again, or None for never.

        At once when it had lived for a while.  It is not started again when it left in good order
        (code 0), when another start cannot help (EX_CONFIG), or when it has died too often soon
        after it was started.
        """
        if exit_code in (0, EX_CONFIG):
            return None
        if lived_s >= SETTLED_S:
            return now_s
        deaths_s = self._early_deaths_s
        while deaths_s and deaths_s[0] <= now_s - WINDOW_S:
            deaths_s.popleft()
        recent = len(deaths_s)
        if recent >= MOST_IN_WINDOW:
            return None
        deaths_s.append(now_s)
        return now_s + (FIRST_DELAY_S * 2 ** (recent - 1) if recent else 0.0)
