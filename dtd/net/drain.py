"""Whoever waits until the kernel has taken all that was sent on a connection."""

from __future__ import annotations

import asyncio


class Drain:
    """Belongs to one connection, on its event loop."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def awaited(self) -> asyncio.Future[None]:
        """A future of the moment when nothing is queued any more."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def done(self) -> None:
        """Nothing is queued, or the connection is gone."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
