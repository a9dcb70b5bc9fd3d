"""Answers to requests: on each connection in order, each when the last one was read."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from dtd.coordinator.containment import Containment
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.net.rates import Pacing
from dtd.wire import messages as m

UNREAD_S: Final = 30.0
"""Time without any byte being read, after which the client is considered gone."""

MAX_UNANSWERED: Final = 64
"""Most unanswered requests of one connection."""


class Answers:
    """Answers the requests of each connection in order, each when the last answer was read."""

    def __init__(self, containment: Containment) -> None:
        self._contain = containment.around
        self._waiting: dict[Link, deque[tuple[str, Callable[[], Awaitable[None]]]]] = {}
        self._tasks: dict[Link, asyncio.Task[None]] = {}

    def begin(
        self,
        link: Link,
        request: m.Message,
        answer: Callable[[], Awaitable[None]],
        *,
        most: int = MAX_UNANSWERED,
    ) -> None:
        """Await `answer` in its turn, unless the connection ends; an error closes it."""
        waiting = self._waiting.setdefault(link, deque())
        if len(waiting) >= most:
            raise ProtocolError(ErrorCode.REFUSED, f"{most} requests are unanswered")
        waiting.append((m.message_name(type(request)), answer))
        if link not in self._tasks:
            self._tasks[link] = asyncio.create_task(self._serve(link, waiting))

    def forget(self, link: Link) -> None:
        self._waiting.pop(link, deque()).clear()
        task = self._tasks.pop(link, None)
        if task is not None:
            task.cancel()

    async def _serve(
        self, link: Link, waiting: deque[tuple[str, Callable[[], Awaitable[None]]]]
    ) -> None:
        while waiting and not link.closing:
            name, answer = waiting[0]
            with self._contain(f"answering {name}", link):
                await _answered(link, answer)
                await drain(link)
            if waiting:  # the connection may have ended meanwhile
                waiting.popleft()
        self.forget(link)


async def _answered(link: Link, answer: Callable[[], Awaitable[None]]) -> None:
    try:
        await answer()
    except DtdError as error:
        link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
    except (OSError, sqlite3.Error) as error:
        why = f"the coordinator's store failed: {error}"
        link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy="check its disk"))


async def acquire(pacing: Pacing, who: Hashable) -> None:
    """Return when a client may continue; clients do not block each other."""
    clock = asyncio.get_running_loop().time
    wait_s = pacing.wait_s(who, clock())
    while wait_s:
        await asyncio.sleep(wait_s)
        wait_s = pacing.wait_s(who, clock())


async def drain(link: Link) -> None:
    """Return when the peer has read the answer; a peer that reads nothing is disconnected."""
    while (drained := link.drained()) is not None:
        before = link.queued_bytes()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drained, UNREAD_S)
        if drained.cancelled() and link.queued_bytes() >= before:
            link.abort()
            return
