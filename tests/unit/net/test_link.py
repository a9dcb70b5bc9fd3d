"""A link over a loopback socket, on asyncio's own loop and on uvloop (see conftest.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import dtd.net.link as link_module
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link, private_ends
from dtd.wire import messages as m
from dtd.wire.frames import (
    HOLD,
    LARGEST_MAX_PAYLOAD_BYTES,
    Hold,
)
from dtd.wire.session import Session

PATIENCE_S = 60.0
STAGING_BYTES = 512
MIB = 1024 * 1024
SECRET = b"s" * 32


def hello(**changed: Any) -> m.Hello:
    values: dict[str, Any] = {
        "role": "ring",
        "name": "opener",
        "protocol_min": 1,
        "protocol_max": 1,
        "version": "test",
        "max_payload_bytes": LARGEST_MAX_PAYLOAD_BYTES,
    }
    return m.Hello(**(values | changed))


def welcome(**changed: Any) -> m.Welcome:
    values: dict[str, Any] = {
        "protocol": 1,
        "version": "test",
        "name": "acceptor",
        "max_payload_bytes": LARGEST_MAX_PAYLOAD_BYTES,
    }
    return m.Welcome(**(values | changed))


def chunk(number: int = 0) -> m.Chunk:
    return m.Chunk(generation=1, step=0, phase=0, hop=0, bucket=0, chunk=number, source=0)


def no_memory(message: m.Message, payload_bytes: int) -> None:
    return None


@dataclass(eq=False)
class Handler:
    """Writes down what happens, and lets a test wait for it."""

    accepting: bool
    place: Callable[[m.Message, int], memoryview | Hold | None] = no_memory
    answer: Callable[[], m.Welcome | None] = welcome
    received: list[tuple[m.Message, memoryview]] = field(default_factory=list)
    errors: list[DtdError | None] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    proved: asyncio.Event = field(default_factory=asyncio.Event)
    objection: ProtocolError | None = None

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        self.links.append(link)
        greeting = self.answer() if self.accepting else None
        if greeting is not None:
            link.welcome(greeting, secret=SECRET)
        self.opened.set()

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        return self.place(message, payload_bytes)

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        if isinstance(message, m.Prove):
            self.proved.set()
            return
        if self.objection is not None:
            raise self.objection
        self.received.append((message, payload))
        self.wake.set()

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        self.errors.append(error)
        self.closed.set()

    async def messages(self, count: int) -> list[m.Message]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.received) < count:
                self.wake.clear()
                await self.wake.wait()
        return [message for message, _ in self.received]

    async def end(self) -> DtdError | None:
        async with asyncio.timeout(PATIENCE_S):
            await self.closed.wait()
        (error,) = self.errors
        return error


class Network:
    """A listening socket and the links to it; `link_type` is what it accepts with."""

    def __init__(self) -> None:
        self.acceptors: list[Handler] = []
        self.accepted: list[Link] = []
        self.openers: list[Link] = []
        self.link_type: type[Link] = Link

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def _accept(self) -> Link:
        roles = frozenset({m.Role.RING, m.Role.FETCH})
        link = self.link_type(
            self.acceptors.pop(0),
            accepts=roles,
            staging_bytes=STAGING_BYTES,
        )
        self.accepted.append(link)
        return link

    async def connect(
        self, acceptor: Handler, opener: Handler, greeting: m.Hello | None = None
    ) -> Link:
        """Connect, and say HELLO."""
        self.acceptors.append(acceptor)
        link = Link(
            opener,
            hello=greeting or hello(),
            secret=SECRET,
            staging_bytes=STAGING_BYTES,
        )
        self.openers.append(link)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: link, "127.0.0.1", self.port)
        return link

    async def pair(self, acceptor: Handler, opener: Handler) -> tuple[Link, Link]:
        """(accepted, opened), both OPEN."""
        opened = await self.connect(acceptor, opener)
        async with asyncio.timeout(PATIENCE_S):
            await opener.opened.wait()
            await acceptor.proved.wait()
        return acceptor.links[0], opened

    async def raw(self, acceptor: Handler) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A peer that is no link."""
        self.acceptors.append(acceptor)
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def _running() -> AsyncIterator[Network]:
    made = Network()
    await made.listen()
    try:
        yield made
    finally:
        made.server.close()
        for link in made.accepted + made.openers:
            link.abort()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with _running() as made:
        yield made


@pytest.fixture
async def acceptor() -> Handler:
    return Handler(accepting=True)


@pytest.fixture
async def opener() -> Handler:
    return Handler(accepting=False)


async def frames_of(
    reader: asyncio.StreamReader, session: Session | None = None
) -> list[m.Message]:
    """All messages until the other side closes."""
    session = session or Session(role=m.Role.RING, random_bytes=bytes)
    async with asyncio.timeout(PATIENCE_S):
        data = await reader.read()
    return [message for message, _payload in session.feed(data)]


# --- handshake -------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_TIMEOUT_S", 0.02)


async def test_a_peer_that_says_nothing_is_turned_away(
    impatient: None, network: Network, acceptor: Handler
) -> None:
    reader, writer = await network.raw(acceptor)
    (told,) = await frames_of(reader)
    assert isinstance(told, m.Error)
    assert told.code == ErrorCode.TIMEOUT
    error = await acceptor.end()
    assert isinstance(error, ProtocolError)
    assert error.code == ErrorCode.TIMEOUT
    assert "no handshake with 127.0.0.1:" in error.message
    writer.close()


# --- the kernel's figures --------------------------------------------------------------------


async def test_the_kernel_says_what_the_link_has_carried_and_its_least_round_trip(
    network: Network, acceptor: Handler, opener: Handler
) -> None:
    _accepted, opened = await network.pair(acceptor, opener)
    frames = opened.sent_frames
    for number in range(4):
        opened.send(chunk(number), bytes(MIB))
    await acceptor.messages(4)
    acked_bytes, busy_s = opened.transmitted()
    assert acked_bytes > MIB
    assert 0 <= busy_s < PATIENCE_S
    assert 0 < opened.least_round_trip_s() <= opened.round_trip_s()
    assert opened.sent_frames == frames + 4


# --- payloads --------------------------------------------------------------------------------


class Watched(Link):
    """Counts the bytes that were received straight into each object's memory."""

    def get_buffer(self, sizehint: int) -> memoryview:
        self.last = super().get_buffer(sizehint)
        return self.last

    def buffer_updated(self, nbytes: int) -> None:
        counts = self.__dict__.setdefault("received_into", {})
        counts[id(self.last.obj)] = counts.get(id(self.last.obj), 0) + nbytes
        super().buffer_updated(nbytes)


async def test_a_large_payload_is_received_in_the_memory_that_the_handler_named(
    network: Network, acceptor: Handler, opener: Handler
) -> None:
    network.link_type = Watched
    memory = bytearray(4 * MIB)
    named = memoryview(memory)
    acceptor.place = lambda _message, _payload_bytes: named
    accepted, opened = await network.pair(acceptor, opener)
    content = bytes(range(256)) * (4 * MIB // 256)
    opened.send(chunk(), content)
    assert await acceptor.messages(1) == [chunk()]
    payload = acceptor.received[0][1]
    assert payload is named
    assert payload.obj is memory
    assert memory == content
    assert opened.sent_bytes == len(content)
    # All but what came with the header was read from the socket into that memory itself.
    assert isinstance(accepted, Watched)
    assert accepted.__dict__["received_into"][id(memory)] >= len(content) - STAGING_BYTES


# --- holding ---------------------------------------------------------------------------------


async def test_a_held_frame_stops_the_link_until_it_is_resumed(
    network: Network, acceptor: Handler, opener: Handler
) -> None:
    asked = asyncio.Event()
    answers: list[Hold | None] = [None, HOLD, HOLD, None, None]

    def place(message: m.Message, payload_bytes: int) -> Hold | None:
        asked.set()
        return answers.pop(0)

    acceptor.place = place
    accepted, opened = await network.pair(acceptor, opener)
    for number in range(3):
        opened.send(chunk(number), bytes([number]) * 100)
    async with asyncio.timeout(PATIENCE_S):
        while len(answers) > 3:
            asked.clear()
            await asked.wait()
    assert [message for message, _ in acceptor.received] == [chunk(0)]
    assert accepted._transport is not None
    assert not accepted._transport.is_reading()
    accepted.resume()  # held again
    assert len(answers) == 2
    assert not accepted._transport.is_reading()
    accepted.resume()
    assert await acceptor.messages(3) == [chunk(0), chunk(1), chunk(2)]
    assert [bytes(payload) for _, payload in acceptor.received] == [
        bytes([number]) * 100 for number in range(3)
    ]
    assert accepted._transport.is_reading()


# --- ending ----------------------------------------------------------------------------------


async def test_a_message_out_of_place_ends_that_link_only(
    network: Network, acceptor: Handler, opener: Handler
) -> None:
    other_acceptor, other_opener = Handler(accepting=True), Handler(accepting=False)
    _, opened = await network.pair(acceptor, opener)
    _, other_opened = await network.pair(other_acceptor, other_opener)
    opened.send(m.Heartbeat(state="idle"))
    for error in (await opener.end(), await acceptor.end()):
        assert isinstance(error, ProtocolError)
        assert error.code == ErrorCode.WRONG_STATE
        assert "HEARTBEAT is not allowed" in error.message
    assert acceptor.received == []
    other_opened.send(chunk(), b"still here")
    assert await other_acceptor.messages(1) == [chunk()]
    assert not other_opened.closing


# --- names of connections that no third party can reach ------------------------------------------


HERE = ("127.0.0.1", 40000)


@pytest.mark.parametrize(
    ("own", "peer"),
    [
        (HERE, ("10.0.0.5", 7117)),
        (("10.0.0.5", 7117), HERE),
        (None, HERE),  # the connection was reset
        (HERE, None),
        (("10.0.0.5", 1), ("10.0.0.5", 2)),
    ],
)
def test_what_others_may_reach_has_no_such_name(own, peer):
    assert private_ends(own, peer, opened=True, encrypted=False) == b""
    assert private_ends(own, peer, opened=True, encrypted=True) == b"tls"
