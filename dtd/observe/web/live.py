"""Answers shared by all viewers, and live data as server-sent events.

All who may log in may read these (`dtd.security.permissions.VIEWER_MAY`), so an answer does not
depend on the caller: twenty pages that draw the same curves cost the store one query.  There is
one look at the coordinator a second for all watchers, and none without watchers.

The page shows a state, not a sequence, so a browser that is slow gets the newest of each topic
and misses those between; nothing piles up.  A browser gets the difference to what it was sent last,
of figures that are rounded to what the page shows, in one compressed stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from dtd.errors import DtdError
from dtd.observe.report.facts import Look
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import CONTENT_ENCODING, HTTP_TOO_MANY, dumped, encoded, refused, safe
from dtd.observe.web.logins import Session
from dtd.wire import messages as m

SHOWN_DIGITS: Final = 4
CURVE_DIGITS: Final = 5
_SHORT: Final = 1e6
"""Numbers from here on, such as times of day, keep their milliseconds."""


def rounded(value: Any, digits: int) -> Any:
    """A value whose fractions have at most so many significant digits."""
    match value:
        case float() if math.isfinite(value):
            return float(f"{value:.{digits}g}") if abs(value) < _SHORT else round(value, 3)
        case dict():
            return {key: rounded(one, digits) for key, one in value.items()}
        case list() | tuple():
            return [rounded(one, digits) for one in value]
        case _:
            return value


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
        found = await self.look(message)
        if isinstance(message, m.GetMetrics):
            return await asyncio.to_thread(lambda: dumped(rounded(safe(found), CURVE_DIGITS)))
        return await encoded(found)

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


def change(old: Any, new: Any) -> Any:
    """The change that makes `new` of `old`, which differ.

    In an object or array of the same shape: an object of the changes by key or index.  Another
    object or array is replaced by the only element of an array, anything else by the new value.
    """
    match old, new:
        case dict(), dict() if old.keys() == new.keys():
            return {key: change(old[key], one) for key, one in new.items() if old[key] != one}
        case list(), list() if len(old) == len(new):
            pairs = enumerate(zip(old, new, strict=True))
            return {str(at): change(a, b) for at, (a, b) in pairs if a != b}
        case ((dict() | list()), _):
            return [new]
        case _:
            return new


class _Watcher:
    """The data that one browser has been sent, and the newest of each topic, to be sent next."""

    def __init__(self, session: Session, *, compressed: bool) -> None:
        self.session = session
        self.pending: dict[str, Any] = {}
        self.wake = asyncio.Event()
        self._sent: dict[str, Any] = {}
        self._deflate = zlib.compressobj() if compressed else None

    def put(self, topic: str, value: Any) -> None:
        self.pending[topic] = value
        self.wake.set()

    def take(self) -> bytes:
        found, self.pending = self.pending, {}
        self.wake.clear()
        parts = []
        for topic, value in found.items():
            if value != self._sent.get(topic):
                body = dumped(change(self._sent.get(topic), value))
                parts.append(b"event: %b\ndata: %b\n\n" % (topic.encode(), body))
                self._sent[topic] = value
        return self.packed(b"".join(parts) or b": still here\n\n")

    def packed(self, text: bytes, *, last: bool = False) -> bytes:
        if self._deflate is None:
            return text
        flush = zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
        return self._deflate.compress(text) + self._deflate.flush(flush)


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
        self._last: dict[str, Any] = {}
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def watch(self, request: web.Request, session: Session) -> web.StreamResponse:
        """Send updates to a browser until it leaves or its session ends."""
        if len(self._watchers) >= MAX_WATCHERS:
            why = f"{MAX_WATCHERS} pages are watching already"
            return refused(HTTP_TOO_MANY, why, "close some, or reload later")
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        compressed = "deflate" in request.headers.get("Accept-Encoding", "")
        if compressed:
            headers[CONTENT_ENCODING] = "deflate"
        response = web.StreamResponse(headers=headers)
        watcher = _Watcher(session, compressed=compressed)
        watcher.pending.update(self._last)
        watcher.wake.set()
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
        value = await asyncio.to_thread(lambda: rounded(safe(value), SHOWN_DIGITS))
        if self._last.get(topic) == value:
            return
        self._last[topic] = value
        for watcher in tuple(self._watchers):
            watcher.put(topic, value)
