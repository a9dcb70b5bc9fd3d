"""How long somebody who waits puts up with a coordinator that is away.

Training does not notice when the coordinator restarts, so neither does whoever waits for a job or
follows events; only a coordinator that never answered is reported at once.
"""

from __future__ import annotations

import time
from typing import Final

from dtd.ctl import output
from dtd.errors import CoordinatorUnreachable

RECONNECT_FOR_S: Final = 60.0
RECONNECT_EVERY_S: Final = 0.5


class Patience:
    """Tells after each failure whether to try again; pauses before it says yes."""

    def __init__(self) -> None:
        self._give_up_at_s: float | None = time.monotonic()

    def answered(self) -> None:
        """The coordinator is there."""
        self._give_up_at_s = None

    def pause_or_raise(self, error: CoordinatorUnreachable) -> None:
        """Wait a moment before the next try.

        Raises:
            CoordinatorUnreachable: the same error, when it has been away for too long.
        """
        now_s = time.monotonic()
        if self._give_up_at_s is None:
            output.say(f"{error.message}; waiting for it to come back")
            self._give_up_at_s = now_s + RECONNECT_FOR_S
        if now_s >= self._give_up_at_s:
            raise error
        time.sleep(RECONNECT_EVERY_S)
