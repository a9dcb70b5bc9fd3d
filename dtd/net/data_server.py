"""A worker's data port: neighbours connect their rings here, and whoever needs bytes fetches them.

Two roles are served on one port.  *ring*: a HELLO that names the generation, roster and rank we
expect is handed to that generation's endpoint; one that comes early waits without a WELCOME, a
stale one is refused.  *fetch*: read-only ranges of what was offered (a live state at a step
boundary) or lies in the checkpoint directory.  Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from dtd import __version__
from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold
from dtd.wire.header import MAX_HEADER_BYTES

MAX_EARLY_RINGS: Final = 64
MAX_FETCH_BYTES: Final = 4 * 1024 * 1024
RING_STAGING_BYTES: Final = 512
INFO_BLOBS: Final = MAX_HEADER_BYTES // 512

Reader = Callable[[int, int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes that may be fetched: `read(offset, length)` gives a range."""

    name: str
    size_bytes: int
    read: Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What one FETCH_OPEN opens."""

    manifest: bytes
    blobs: Sequence[Blob]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Opened:
    """A resource that one link fetches; ranges are answered one after the other."""

    resource: Resource
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class RingAcceptor(Protocol):
    """A generation that waits for its previous neighbour."""

    def accept_ring(self, link: Link) -> None:
        """The previous neighbour's link; the acceptor becomes its handler."""
        ...


def welcome(name: str) -> m.Welcome:
    """Our answer to a HELLO on the data port."""
    return m.Welcome(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        name=name,
        max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
    )


class DataServer:
    """The data port.

    Args:
        name: this worker's name, said in WELCOME.
        open_checkpoint: gives the resource of "checkpoint/JOB/NAME", run in a thread; raises
            CheckpointError when there is none.
    """

    def __init__(self, name: str, open_checkpoint: Callable[[str], Resource]) -> None:
        self._name = name
        self._open_checkpoint = open_checkpoint
        self._server = Server(self._new_link)
        self._offers: dict[str, asyncio.Future[Resource]] = {}
        self._open: dict[Link, _Opened] = {}
        self._early: dict[tuple[int, int, int], Link] = {}
        self._expected: dict[tuple[int, int, int], RingAcceptor] = {}
        self._generation = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: Address) -> Address:
        """Bind; returns the bound address."""
        return await self._server.listen(address)

    def close(self) -> None:
        """Close everything."""
        for task in self._tasks:
            task.cancel()
        self._server.close(m.Goodbye(reason="the worker stops"))

    # --- for the generation at hand ----------------------------------------------------------

    def expect_ring(self, generation: int, roster_id: int, rank: int, by: RingAcceptor) -> None:
        """Hand the ring link of this generation, roster and rank to `by`; older ones are fenced."""
        self._generation = generation
        key = (generation, roster_id, rank)
        self._expected = {key: by}
        for old in [known for known in self._early if known[0] < generation]:
            self._refuse_stale(self._early.pop(old), old[0])
        early = self._early.pop(key, None)
        if early is not None:
            by.accept_ring(early)

    def offer(self, resource: str, content: Resource) -> None:
        """Let others fetch this until `withdraw`."""
        future = self._offer(resource)
        if not future.done():
            future.set_result(content)

    def withdraw(self) -> None:
        """End all offers, also those that are waited for; checkpoints stay open."""
        offers, self._offers = self._offers, {}
        ended = [future.result() for future in offers.values() if future.done()]
        for future in offers.values():
            future.cancel()
        self._open = {
            link: opened
            for link, opened in self._open.items()
            if not any(opened.resource is resource for resource in ended)
        }

    def _offer(self, resource: str) -> asyncio.Future[Resource]:
        if resource not in self._offers:
            self._offers[resource] = asyncio.get_running_loop().create_future()
        return self._offers[resource]

    # --- links -------------------------------------------------------------------------------

    def _new_link(self) -> Link:
        accepts = frozenset({m.Role.RING, m.Role.FETCH})
        connection = Connection(opened=False, accepts=accepts)
        return Link(self, connection, staging_bytes=RING_STAGING_BYTES)

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Somebody says what he wants."""
        assert isinstance(message, m.Hello)
        if message.role == m.Role.FETCH:
            link.welcome(welcome(self._name))
            return
        key = (message.generation, message.roster_id, message.rank)
        if key in self._expected:
            self._expected[key].accept_ring(link)
        elif message.generation <= self._generation:
            self._refuse_stale(link, message.generation)
        elif len(self._early) >= MAX_EARLY_RINGS:
            raise ProtocolError(ErrorCode.REFUSED, "too many rings wait for their generation")
        else:
            self._early[key] = link

    def _refuse_stale(self, link: Link, generation: int) -> None:
        link.fail(
            ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"ring of generation {generation}; {self._name} is in {self._generation}",
            )
        )

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Those who fetch send no payloads."""
        if payload_bytes:
            raise ProtocolError(ErrorCode.BAD_PAYLOAD, "a request to fetch has no payload")
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A request to fetch."""
        if isinstance(message, m.FetchOpen):
            task = asyncio.create_task(self._answer_open(link, message.resource))
        elif isinstance(message, m.FetchRange):
            task = asyncio.create_task(self._answer_range(link, message))
        else:
            raise ProtocolError(ErrorCode.WRONG_STATE, "not served here")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """Whoever fetched is gone, or a ring that came early."""
        self._open.pop(link, None)
        self._early = {key: early for key, early in self._early.items() if early is not link}

    # --- fetching ----------------------------------------------------------------------------

    async def _answer_open(self, link: Link, name: str) -> None:
        try:
            resource = await self._find(name)
        except DtdError as error:
            link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
            return
        except asyncio.CancelledError:
            link.fail(ProtocolError(ErrorCode.REFUSED, f"{name} is not offered any more"))
            raise
        self._open[link] = _Opened(resource=resource)
        infos = [m.BlobInfo(name=b.name, size_bytes=b.size_bytes) for b in resource.blobs]
        for start in range(0, max(1, len(infos)), INFO_BLOBS):
            more = start + INFO_BLOBS < len(infos)
            page = tuple(infos[start : start + INFO_BLOBS])
            link.send(m.FetchInfo(blobs=page, more=more), b"" if more else resource.manifest)

    async def _find(self, name: str) -> Resource:
        if name.startswith("checkpoint/"):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, self._open_checkpoint, name)
        return await asyncio.shield(self._offer(name))

    async def _answer_range(self, link: Link, request: m.FetchRange) -> None:
        opened = self._open.get(link)
        async with opened.turn if opened is not None else contextlib.nullcontext():
            try:
                data = await self._read(self._open.get(link), request)
            except ProtocolError as error:
                link.fail(error)
                return
            except OSError as error:
                link.fail(ProtocolError(ErrorCode.REFUSED, f"cannot be read: {error}"))
                return
            link.send(m.FetchData(blob=request.blob, offset=request.offset), data)
            drained = link.drained()
            if drained is not None:
                await drained

    async def _read(self, opened: _Opened | None, request: m.FetchRange) -> bytes | memoryview:
        if opened is None or request.blob >= len(opened.resource.blobs):
            raise ProtocolError(ErrorCode.BAD_FIELD, "FETCH_RANGE.blob: no such blob is open")
        blob = opened.resource.blobs[request.blob]
        end = request.offset + request.length
        if not 0 < request.length <= MAX_FETCH_BYTES or end > blob.size_bytes:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"FETCH_RANGE: {request.length} bytes at {request.offset}"
                f" of {blob.size_bytes} cannot be had",
            )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, blob.read, request.offset, request.length)


def memory_blob(name: str, view: memoryview) -> Blob:
    """A blob that lies in memory; ranges of it are not copied."""
    return Blob(
        name=name, size_bytes=len(view), read=lambda offset, length: view[offset : offset + length]
    )


def file_blob(path: Path) -> Blob:
    """A blob that lies in a file."""

    def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return Blob(name=path.name, size_bytes=path.stat().st_size, read=read)
