"""Live data as server-sent events.

All who may log in may read it (`dtd.security.permissions.VIEWER_MAY`), so there is one look at the
coordinator a second for all watchers, and none without watchers.

The page shows a state, not a sequence, so a browser that is slow gets the newest of each topic
and misses those between; nothing piles up.  Figures are rounded to what the page shows.  All of a
browser's events are one compressed stream, in which what has not changed takes next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from dtd.errors import DtdError
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import HTTP_TOO_MANY, dumped, refused, safe
from dtd.observe.web.logins import Session, holder_of
from dtd.wire import messages as m

EVERY_S: Final = 1.0
MAX_WATCHERS: Final = 64
MAX_OF_HOLDER: Final = 8
"""Pages of one token or credential, so that others can watch, too."""
STILL_HERE_S: Final = 15.0
BUFFER_BYTES: Final = 64 * 1024
RETRY_MS: Final = 2000


class _Watcher:
    """The newest event of each topic that one browser has not been sent yet."""

    def __init__(self, session: Session, pending: dict[str, bytes], *, compressed: bool) -> None:
        self.session = session
        self.pending = pending
        self.wake = asyncio.Event()
        self.wake.set()
        self._deflate = zlib.compressobj() if compressed else None

    def put(self, topic: str, event: bytes) -> None:
        self.pending[topic] = event
        self.wake.set()

    def take(self) -> bytes:
        found, self.pending = self.pending, {}
        self.wake.clear()
        return self.packed(b"".join(found.values()) or b": still here\n\n")

    def packed(self, text: bytes, *, last: bool = False) -> bytes:
        if self._deflate is None:
            return text
        flush = zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
        return self._deflate.compress(text) + self._deflate.flush(flush)


class Live:
    """All browsers that watch, and the looks at the coordinator for them."""

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
        holders = [holder_of(one.session) for one in self._watchers]
        if len(holders) >= MAX_WATCHERS or holders.count(holder_of(session)) >= MAX_OF_HOLDER:
            why = f"{MAX_WATCHERS} pages, or {MAX_OF_HOLDER} of this login, are watching already"
            return refused(HTTP_TOO_MANY, why, "close some, or reload later")
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        compressed = "deflate" in request.headers.get("Accept-Encoding", "")
        if compressed:
            headers["Content-Encoding"] = "deflate"
        response = web.StreamResponse(headers=headers)
        watcher = _Watcher(session, dict(self._last), compressed=compressed)
        self._watchers.add(watcher)
        self._begin()
        try:
            await response.prepare(request)
            if request.transport is not None:
                request.transport.set_write_buffer_limits(high=BUFFER_BYTES)
            await response.write(watcher.packed(b"retry: %d\n\n" % RETRY_MS))
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
            await response.write(watcher.take())
        await response.write(watcher.packed(b"event: ended\ndata: {}\n\n", last=True))

    def close(self) -> None:
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
        event = await asyncio.to_thread(_event, topic, value)
        if self._last.get(topic) == event:
            return
        self._last[topic] = event
        for watcher in tuple(self._watchers):
            watcher.put(topic, event)


def _event(topic: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (topic.encode(), dumped(safe(value, shortened=True)))
