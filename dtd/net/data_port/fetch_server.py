"""Serves the clients that fetch from a worker's data port: the counterpart of `fetch_client`.

A state is offered at a step boundary, by every worker that holds it, and withdrawn before it
changes; a client that asks too early waits and regularly receives a sign of life.  Runs on the
event loop; only files are read in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.coding_link import Coding, CodingLink
from dtd.net.data_port.resources import PROBE_SCOPE, ZEROS, Blob, Resource
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.frames import MAX_HEADER_BYTES

MAX_FETCH_BYTES: Final = 4 * 1024 * 1024
MAX_REQUESTS_AHEAD: Final = 16
READ_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""With more than this waiting to be sent, no further range is read: the next one is coded while
those before it are on their way."""
STORED: Final = ("checkpoint/", "model/", "profile/", "data/")
"""Resources that are files, and stay open when a state is withdrawn."""
STILL_WAITING_S: Final = 0.25
INFO_BLOBS: Final = MAX_HEADER_BYTES // 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opened:
    """A resource that one link fetches; ranges are served one after the other."""

    resource: Resource
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class FetchHandler:
    """The resources offered here, and the clients that fetch them.

    Args:
        open_on_disk: returns the resource of "checkpoint/DIRECTORY/NAME", "model/VERSION",
            "profile/NAME" or "data/DIGEST", run in a thread; raises DtdError when there is none.
    """

    def __init__(self, open_on_disk: Callable[[str], Resource]) -> None:
        self._open_on_disk = open_on_disk
        self._offers: dict[str, asyncio.Future[Resource]] = {}
        self._scopes: dict[Link, str] = {}
        self._open: dict[Link, _Opened] = {}
        self._unanswered: Counter[Link] = Counter()
        self._coding = Coding("auto")
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._coding.close()

    def offer(self, resource: str, content: Resource) -> None:
        """Let clients fetch this until `withdraw`."""
        future = self._offer(resource)
        if not future.done():
            future.set_result(content)

    def withdraw(self) -> None:
        """End all offers, including those that clients wait for; checkpoints stay open."""
        offers, self._offers = self._offers, {}
        ended = [future.result() for future in offers.values() if future.done()]
        for future in offers.values():
            future.cancel()
        for link, opened in tuple(self._open.items()):
            if any(opened.resource is resource for resource in ended):
                del self._open[link]
                if link.queued_bytes():
                    link.abort()  # queued payloads are in memory that will change
                else:
                    link.fail(ProtocolError(ErrorCode.REFUSED, "the state is no longer offered"))

    def _offer(self, resource: str) -> asyncio.Future[Resource]:
        if resource not in self._offers:
            self._offers[resource] = asyncio.get_running_loop().create_future()
        return self._offers[resource]

    # --- links -------------------------------------------------------------------------------

    def admit(self, link: CodingLink, resource: str) -> None:
        """Allow this link to fetch this one resource."""
        link.coding = self._coding
        self._scopes[link] = resource

    def request(self, link: CodingLink, message: m.Message) -> None:
        """A client requests a resource, or a range of the open one.

        Raises:
            ProtocolError: it is not such a request, or exceeds the number of open requests.
        """
        if self._unanswered[link] >= MAX_REQUESTS_AHEAD:
            raise ProtocolError(
                ErrorCode.REFUSED, f"{MAX_REQUESTS_AHEAD} requests have not been answered yet"
            )
        if isinstance(message, m.FetchRange) and self._answer_at_once(link, message):
            return
        if isinstance(message, m.FetchOpen):
            self._check_scope(link, message.resource)
            task = asyncio.create_task(self._answer_open(link, message.resource))
        elif isinstance(message, m.FetchRange):
            task = asyncio.create_task(self._answer_range(link, message))
        else:
            raise ProtocolError(ErrorCode.WRONG_STATE, "not served here")
        self._unanswered[link] += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_scope(self, link: Link, resource: str) -> None:
        if resource != self._scopes.get(link):
            allowed = self._scopes.get(link) or "nothing"
            raise ProtocolError(
                ErrorCode.REFUSED, f"{resource} was asked for with a key that opens {allowed}"
            )

    def forget(self, link: Link) -> None:
        self._scopes.pop(link, None)
        self._open.pop(link, None)
        self._unanswered.pop(link, None)

    # --- answers -----------------------------------------------------------------------------

    async def _answer_open(self, link: Link, name: str) -> None:
        try:
            resource = await self._find(link, name)
        except DtdError as error:
            link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
            return
        except OSError as error:  # retention has just deleted it, or the disk fails
            link.fail(ProtocolError(ErrorCode.REFUSED, f"{name} cannot be read: {error}"))
            return
        except asyncio.CancelledError:
            link.fail(ProtocolError(ErrorCode.REFUSED, f"{name} is no longer offered"))
            raise
        if link.closing:
            return
        self._open[link] = _Opened(resource=resource)
        infos = [m.BlobInfo(name=b.name, size_bytes=b.size_bytes) for b in resource.blobs]
        for start in range(0, max(1, len(infos)), INFO_BLOBS):
            more = start + INFO_BLOBS < len(infos)
            page = tuple(infos[start : start + INFO_BLOBS])
            link.send(m.FetchInfo(blobs=page, more=more), b"" if more else resource.manifest)
        self._answered(link)

    async def _find(self, link: Link, name: str) -> Resource:
        if name.startswith(STORED):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, self._open_on_disk, name)
        if name == PROBE_SCOPE:
            return ZEROS
        offer = self._offer(name)
        while not offer.done():
            await asyncio.wait([offer], timeout=STILL_WAITING_S)
            if link.closing:
                raise asyncio.CancelledError
            if not offer.done():  # empty: this side is alive and preparing it
                link.send(m.FetchInfo(blobs=(), more=True))
        if self._offers.get(name) is not offer:  # withdrawn before this task ran
            raise asyncio.CancelledError
        return offer.result()

    def _answered(self, link: Link) -> None:
        if link in self._unanswered:
            self._unanswered[link] -= 1

    def _answer_at_once(self, link: CodingLink, request: m.FetchRange) -> bool:
        """Answer at once if the blob is in memory and nothing is queued; return whether it was."""
        opened = self._open.get(link)
        if self._unanswered[link] or link.queued_bytes() or opened is None:
            return False
        blob = _blob_of(opened, request)
        if blob.in_memory:
            _send_range(link, request, blob, blob.read(request.offset, request.length))
        return blob.in_memory

    async def _answer_range(self, link: CodingLink, request: m.FetchRange) -> None:
        opened = self._open.get(link)
        async with opened.turn if opened is not None else contextlib.nullcontext():
            try:
                blob = _blob_of(self._open.get(link), request)
                data = await _read(blob, request)
            except ProtocolError as error:
                link.fail(error)
                return
            except OSError as error:
                link.fail(ProtocolError(ErrorCode.REFUSED, f"cannot be read: {error}"))
                return
            _send_range(link, request, blob, data)
            self._answered(link)
            while link.queued_bytes() > READ_AHEAD_BYTES and (drained := link.drained()):
                await drained


async def _read(blob: Blob, request: m.FetchRange) -> bytes | memoryview:
    if blob.in_memory:
        return blob.read(request.offset, request.length)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, blob.read, request.offset, request.length)


def _send_range(
    link: CodingLink, request: m.FetchRange, blob: Blob, data: bytes | memoryview
) -> None:
    message = m.FetchData(blob=request.blob, offset=request.offset)
    link.send(message, memoryview(data), blob.item_bytes)


def _blob_of(opened: _Opened | None, request: m.FetchRange) -> Blob:
    """The blob that contains the range."""
    if opened is None or request.blob >= len(opened.resource.blobs):
        raise ProtocolError(ErrorCode.BAD_FIELD, "FETCH_RANGE.blob: no such blob is open")
    blob = opened.resource.blobs[request.blob]
    end = request.offset + request.length
    if not 0 < request.length <= MAX_FETCH_BYTES or end > blob.size_bytes:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"FETCH_RANGE: {request.length} bytes at {request.offset}"
            f" of {blob.size_bytes} is out of range",
        )
    return blob
