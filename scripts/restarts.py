"""When a daemon that died is started again: at once, then later and later, then no more.

Pure; the same idea as systemd's Restart=on-failure with a start limit.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 30.0
MOST_IN_WINDOW: Final = 6
FIRST_DELAY_S: Final = 0.25
EX_CONFIG: Final = 78


class RestartPolicy:
    """The restarts of one daemon."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque()

    def next_start_s(self, exit_code: int, now_s: float) -> float | None:
        """When to start it again, or None for never.

        It is not started again when it left in good order (code 0), when another start cannot help
        (EX_CONFIG), or when it has died too often.
        """
        if exit_code in (0, EX_CONFIG):
            return None
        while self._times_s and self._times_s[0] <= now_s - WINDOW_S:
            self._times_s.popleft()
        recent = len(self._times_s)
        if recent >= MOST_IN_WINDOW:
            return None
        self._times_s.append(now_s)
        return now_s + (FIRST_DELAY_S * 2 ** (recent - 1) if recent else 0.0)
