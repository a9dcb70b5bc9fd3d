"""Answers shared by all viewers, and live data as server-sent events.

All who may log in may read these (`dtd.security.permissions.VIEWER_MAY`), so an answer does not
depend on the caller: twenty pages that draw the same curves cost the store one query.  There is
one look at the coordinator a second for all watchers, and none without watchers.

The page shows a state, not a sequence, so a browser that is slow gets the newest of each topic
and misses those between; nothing piles up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from dtd.errors import DtdError
from dtd.observe.report.facts import Look
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import HTTP_TOO_MANY, encoded, refused
from dtd.observe.web.logins import Session
from dtd.wire import messages as m

FRESH_S: Final = 2.0
MAX_KEPT: Final = 64


@dataclass(slots=True)
class _Kept:
    task: asyncio.Task[bytes]
    until_s: float = 0.0


class SharedAnswers:
    """Recent answers as JSON.

    Args:
        look: asks the coordinator with the rights that all callers here have.
    """

    def __init__(self, look: Look) -> None:
        self.look = look
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def body(self, message: m.Message) -> bytes:
        """The answer to a request that changes nothing, at most `FRESH_S` old.

        Raises:
            DtdError: it cannot be answered.
        """
        return await self.made(repr(message), lambda: self._answer(message))

    async def made(self, key: str, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Return the recent answer for this key, or make one now.

        Raises:
            DtdError: it cannot be made.
        """
        clock = asyncio.get_running_loop().time
        now_s = clock()
        kept = self._kept.get(key)
        if kept is None or (kept.task.done() and now_s >= kept.until_s):
            kept = self._kept[key] = _Kept(asyncio.create_task(make()))
            kept.task.add_done_callback(lambda task: _settle(kept, task, clock() + FRESH_S))
            self._kept.move_to_end(key)
            self._forget()
        return await asyncio.shield(kept.task)

    async def _answer(self, message: m.Message) -> bytes:
        return await encoded(await self.look(message))

    def _forget(self) -> None:
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def close(self) -> None:
        """Cancel pending answers."""
        for kept in self._kept.values():
            kept.task.cancel()
        self._kept.clear()


def _settle(kept: _Kept, task: asyncio.Task[bytes], until_s: float) -> None:
    """Keep an answer for a while, but no failure."""
    if not task.cancelled() and task.exception() is None:
        kept.until_s = until_s


EVERY_S: Final = 1.0
MAX_WATCHERS: Final = 64
STILL_HERE_S: Final = 15.0
BUFFER_BYTES: Final = 64 * 1024
RETRY_MS: Final = 2000


class _Watcher:
    """The messages to send to one browser next, the newest of each topic."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pending: dict[str, bytes] = {}
        self.wake = asyncio.Event()

    def put(self, topic: str, body: bytes) -> None:
        self.pending[topic] = body
        self.wake.set()

    def take(self) -> bytes:
        found, self.pending = self.pending, {}
        self.wake.clear()
        return b"".join(b"event: %b\ndata: %b\n\n" % (t.encode(), b) for t, b in found.items())


class Live:
    """All browsers that watch.

    Args:
        backend: the coordinator.
        house: the caller of these looks.
        is_open: whether a session still counts.
    """

    def __init__(
        self,
        backend: Backend,
        house: WebCaller,
        is_open: Callable[[Session], bool],
    ) -> None:
        self._backend = backend
        self._house = house
        self._is_open = is_open
        self._watchers: set[_Watcher] = set()
        self._last: dict[str, bytes] = {}
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def watch(self, request: web.Request, session: Session) -> web.StreamResponse:
        """Send updates to a browser until it leaves or its session ends."""
        if len(self._watchers) >= MAX_WATCHERS:
            why = f"{MAX_WATCHERS} pages are watching already"
            return refused(HTTP_TOO_MANY, why, "close some, or reload later")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        watcher = _Watcher(session)
        watcher.pending.update(self._last)
        watcher.wake.set()
        self._watchers.add(watcher)
        self._begin()
        try:
            await response.prepare(request)
            if request.transport is not None:
                request.transport.set_write_buffer_limits(high=BUFFER_BYTES)
            await response.write(b"retry: %d\n\n" % RETRY_MS)
            await self._send(response, watcher)
        except ConnectionError:
            pass  # the browser is gone, or has read nothing: `dtd.observe.web.server` cuts it
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self.close()
        return response

    async def _send(self, response: web.StreamResponse, watcher: _Watcher) -> None:
        while self._is_open(watcher.session):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watcher.wake.wait(), STILL_HERE_S)
            await response.write(watcher.take() or b": still here\n\n")
        await response.write(b"event: ended\ndata: {}\n\n")

    def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        self._tasks = ()
        self._last = {}

    # --- looking -------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._tasks:
            looks = (self._states, self._incidents)
            self._tasks = tuple(asyncio.create_task(self._forever(look)) for look in looks)

    async def _forever(self, look: Callable[[], Awaitable[None]]) -> None:
        """Read periodically; a failed read, as of a disk, is retried."""
        while True:
            try:
                await look()
            except (DtdError, OSError) as error:
                await self._put("trouble", {"error": str(error)})
            await asyncio.sleep(EVERY_S)

    async def _states(self) -> None:
        await self._put("status", await self._backend.ask(self._house, m.GetStatus()))
        await self._put("figures", await self._backend.ask(self._house, m.GetFigures()))

    async def _incidents(self) -> None:
        """Send the newest incident's number; the page requests the incident."""
        newest = 0
        while True:
            found = await self._backend.ask(
                self._house, m.ReadEvents(after=newest, follow=newest > 0)
            )
            newest = found["next"]
            await self._put("incidents", {"newest": newest})
            if not newest:
                return

    async def _put(self, topic: str, value: dict[str, Any]) -> None:
        body = await encoded(value)
        if self._last.get(topic) == body:
            return
        self._last[topic] = body
        for watcher in tuple(self._watchers):
            watcher.put(topic, body)
