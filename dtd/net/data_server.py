"""A worker's data port: ring neighbours and clients that fetch bytes connect here.

One port serves four roles, and every caller proves that it holds a key. *ring*: a caller that
states the expected generation, roster and rank is handed to that generation's endpoint. *star*:
likewise, for a link with a parameter server. *lifeline*: an idle link for the same endpoint.
*fetch*: read-only ranges of the state from which the generation starts, for its members, or of the
resource that a ticket names. A caller from a generation that this worker does not know yet waits
without a WELCOME; one from an older generation is refused. No caller is attached to anything before
PROVE, so a replayed HELLO gains nothing, and an address whose callers repeatedly fail to prove
themselves is blocked for a while (`dtd.net.limits`). Runs on the event loop.

A state is offered at a step boundary, by every worker that holds it, and withdrawn before it
changes; a client that asks too early waits and regularly receives a sign of life.  Only files are
read in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.net.coding_link import Coding, CodingLink
from dtd.net.limits import ConnectionLimiter
from dtd.net.link import HANDSHAKE_TIMEOUT_S, Link
from dtd.net.server import Server
from dtd.planes import PLANES
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.wire.frames import MAX_HEADER_BYTES, Hold
from dtd.wire.session import DATA_ROLES, welcome

# --- what can be fetched ---------------------------------------------------------------------

MEASURE_PREFIX: Final = "measure/"
MAX_MEASURED_BYTES: Final = 64 * 1024 * 1024
ZEROS_BYTES: Final = 4 * 1024 * 1024
_ZEROS: Final = memoryview(bytes(ZEROS_BYTES))

Reader = Callable[[int, int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes that may be fetched: `read(offset, length)` returns a range.

    Attributes:
        in_memory: reading never blocks.
        item_bytes: width of the elements as which it is coded.  Files have several: most of their
            elements are float32, and of those of 16 bits every second one is shortened.
    """

    name: str
    size_bytes: int
    read: Reader
    in_memory: bool = False
    item_bytes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The resource that one FETCH_OPEN opens."""

    manifest: bytes
    blobs: Sequence[Blob]


def memory_blob(name: str, view: memoryview, item_bytes: int) -> Blob:
    """A blob in memory; its ranges are not copied."""
    return Blob(
        name=name,
        size_bytes=len(view),
        read=lambda offset, length: view[offset : offset + length],
        in_memory=True,
        item_bytes=item_bytes,
    )


def file_blob(path: Path) -> Blob:
    """A blob in a file."""

    def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return Blob(name=path.name, size_bytes=path.stat().st_size, read=read)


def zeros(name: str) -> Resource:
    """The resource "measure/BYTES": BYTES zeros, to measure a link without touching any state.

    All ranges come from one small buffer that all clients share.

    Raises:
        RequestRefused: BYTES is not a number, or is too large.
    """
    digits = name.removeprefix(MEASURE_PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_MEASURED_BYTES))):
        raise RequestRefused(f"{name!r} does not state a number of bytes")
    size_bytes = int(digits)
    if not 0 < size_bytes <= MAX_MEASURED_BYTES:
        raise RequestRefused(f"{name!r} is not in 1..{MAX_MEASURED_BYTES} bytes")
    blob = Blob(name="zeros", size_bytes=size_bytes, read=_read_zeros, in_memory=True)
    return Resource(manifest=b"", blobs=[blob])


def _read_zeros(offset: int, length: int) -> memoryview:
    """Ranges are checked against the blob and against the largest range before."""
    del offset
    return _ZEROS[:length]


# --- serving those that fetch ---------------------------------------------------------------------

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
        """Stop serving."""
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
        """A client's link has ended."""
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
        if name.startswith(MEASURE_PREFIX):
            return zeros(name)
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
    """The blob that contains the range.

    Raises:
        ProtocolError: there is none.
    """
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


# --- the port ------------------------------------------------------------------------------------

MAX_EARLY: Final = 64
MAX_UNPROVEN: Final = 512
"""Unauthenticated callers at a time, from one address or from many.

A generation of many workers on one host may begin all at once; half of all connections are reserved
for authenticated callers.
"""

UNPROVEN_S: Final = 2 * HANDSHAKE_TIMEOUT_S
"""Every link's own handshake time-out is shorter, and reports the reason."""

PROBE_SCOPE: Final = f"{MEASURE_PREFIX}{MAX_MEASURED_BYTES}"
"""The resource that a worker may fetch to test and measure its link to another worker."""

RING_STAGING_BYTES: Final = 4608
"""A frame with up to 4 KiB of payload is read at once with header and tag; of a larger one only
this much is copied, and the rest is received in place."""


# Takes the link of a neighbour of this rank, of a rank in its star, or a neighbour's lifeline; the
# HELLO says which.  What it leaves as the link's handler gets all later messages.
Accept = Callable[[Link, m.Hello], None]


class DataServer:
    """The data port.

    Args:
        name: this worker's name, stated in WELCOME.
        open_on_disk: returns the resource of "checkpoint/DIRECTORY/NAME" or "profile/NAME", run in
            a thread; raises CheckpointError when there is none.

    Attributes:
        worker_secret: the secret for verifying tickets; empty until the coordinator has sent it.
    """

    def __init__(self, name: str, open_on_disk: Callable[[str], Resource]) -> None:
        self.worker_secret = b""
        self._name = name
        self._fetches = FetchHandler(open_on_disk)
        self._server = Server(
            self._new_link,
            connection_limiter=ConnectionLimiter(
                per_address=MAX_UNPROVEN,
                in_all=MAX_UNPROVEN,
                patience_s=UNPROVEN_S,
                only_failures=True,
            ),
        )
        self._early: deque[Link] = deque()
        self._claims: dict[Link, m.Hello] = {}
        self._assign: m.Assign | None = None
        self._accept: Accept | None = None
        self._encrypted = False

    async def listen(self, address: Address, *, context: ssl.SSLContext | None = None) -> Address:
        """Bind; returns the bound address.

        Args:
            address: where to listen.
            context: TLS for callers that use it; others are served as well.
        """
        bound = await self._server.bind(address)
        self._server.serve(context=context, plain_too=True)
        return bound

    def use(self, context: ssl.SSLContext) -> None:
        """Use this TLS context for later connections."""
        self._server.use(context)

    def close(self) -> None:
        """Close everything."""
        self._fetches.close()
        self._server.close(m.Goodbye(reason="the worker stops"))

    # --- for the current generation -----------------------------------------------------------

    def expect_ring(self, assign: m.Assign, by: Accept, *, encrypted: bool = False) -> None:
        """Hand the ring link of the previous rank to `by`; older generations are fenced.

        Args:
            assign: the generation.
            by: takes its links.
            encrypted: the job requires TLS on all of them.
        """
        self._assign, self._accept, self._encrypted = assign, by, encrypted
        early, self._early = self._early, deque()
        for link in early:
            self._answer(link, self._claims[link])

    def offer(self, resource: str, content: Resource) -> None:
        """Let clients fetch this until `withdraw`."""
        self._fetches.offer(resource, content)

    def withdraw(self) -> None:
        """End all offers, including those that clients wait for; checkpoints stay open."""
        self._fetches.withdraw()

    # --- callers -----------------------------------------------------------------------------

    def _new_link(self) -> Link:
        return CodingLink(self, accepts=DATA_ROLES, staging_bytes=RING_STAGING_BYTES)

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """A caller has sent HELLO."""
        assert isinstance(message, m.Hello)
        self._claims[link] = message
        if message.scope:
            link.welcome(welcome(self._name), secret=self._ticket_key(message))
        else:
            self._answer(link, message)

    def _ticket_key(self, hello: m.Hello) -> bytes:
        if hello.role != m.Role.FETCH or not self.worker_secret:
            raise ProtocolError(ErrorCode.REFUSED, "no ticket is valid here now")
        if hello.expires_s < asyncio.get_running_loop().time():
            raise ProtocolError(
                ErrorCode.REFUSED, f"the ticket for {hello.scope} has expired", remedy="ask again"
            )
        return ticket_key(self.worker_secret, hello.scope, hello.expires_s)

    def _answer(self, link: Link, hello: m.Hello) -> None:
        """Admit a caller of the current generation if it has the key; a later generation waits."""
        assign = self._assign
        if assign is not None and _generation(hello) == (assign.generation, assign.roster_id):
            if self._encrypted and not link.is_encrypted:
                why = f"{assign.job} is encrypted, and this connection is not"
                link.fail(ProtocolError(ErrorCode.WRONG_STATE, why))
            else:
                coding = PLANES if hello.role in (m.Role.RING, m.Role.STAR) else 0
                answer = replace(welcome(self._name), coding=coding)
                link.welcome(answer, secret=assign.secret)
        elif assign is not None and hello.generation <= assign.generation:
            self._refuse_stale(link, hello)
        else:
            self._wait(link)

    def _wait(self, link: Link) -> None:
        if len(self._early) >= MAX_EARLY:
            self._early.popleft().fail(
                ProtocolError(
                    ErrorCode.REFUSED, "too many callers are waiting for their generation"
                )
            )
        self._early.append(link)

    def _refuse_stale(self, link: Link, hello: m.Hello) -> None:
        now_in = self._assign.generation if self._assign is not None else 0
        link.fail(
            ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"{hello.role} of generation {hello.generation}; {self._name} is in {now_in}",
            )
        )

    def _on_proved(self, link: CodingLink) -> None:
        """The caller has proved that it has the key that its HELLO names."""
        self._server.proven(link)
        hello = self._claims[link]
        if hello.scope:
            link.keep_alive()
            self._fetches.admit(link, hello.scope)
            return
        assign, accept = self._assign, self._accept
        assert assign is not None
        assert accept is not None
        if _generation(hello) != (assign.generation, assign.roster_id):
            self._refuse_stale(link, hello)
        elif hello.role == m.Role.FETCH:
            link.keep_alive()
            self._fetches.admit(link, f"state/{assign.generation}")
        else:
            del self._claims[link]
            accept(link, hello)

    # --- LinkHandler -------------------------------------------------------------------------

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Reject payloads: fetching clients send none."""
        if payload_bytes:
            raise ProtocolError(ErrorCode.BAD_PAYLOAD, "a request to fetch has no payload")
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """The caller has authenticated, or sends a request."""
        assert isinstance(link, CodingLink)
        if isinstance(message, m.Prove):
            self._on_proved(link)
        else:
            self._fetches.request(link, message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A fetching client, or a caller that waited, is gone."""
        self._fetches.forget(link)
        self._claims.pop(link, None)
        if link in self._early:
            self._early.remove(link)


def _generation(hello: m.Hello) -> tuple[int, int]:
    return hello.generation, hello.roster_id
