"""An event loop of real sockets whose clock is played.

Time passes only when nothing else can happen: when no socket is ready, the clock goes to the next
timer at once.  Hence a limit of minutes costs nothing, and no limit depends on how fast this
machine is.  What other threads do takes no time either, so nobody may wait for a thread here with
a limit that such a thread could miss.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

SETTLED_S = 0.005
"""Bytes written to a socket of this host are ready at once, at the latest after this long."""


class _PlayedSelector(selectors.DefaultSelector):
    """Waits for sockets; where a real one would wait for a timer, the clock advances.

    Attributes:
        now_s: the time of the clock.
    """

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        ready = super().select(None if timeout is None else SETTLED_S)
        if not ready and timeout is not None:
            self.now_s += timeout
        return ready


class PlayedLoop(asyncio.SelectorEventLoop):
    """An event loop on which time is played."""

    def __init__(self) -> None:
        self._played = _PlayedSelector()
        super().__init__(self._played)

    def time(self) -> float:
        return self._played.now_s
