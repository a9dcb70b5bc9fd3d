"""The data port: rings that are expected, early or stale, and bytes that may be fetched."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dtd.address import Address
from dtd.errors import CheckpointError, ErrorCode, ProtocolError
from dtd.net import limits as connection_limiter
from dtd.net.data_port.data_server import MAX_UNPROVEN, DataServer
from dtd.net.data_port.fetch_server import MAX_FETCH_BYTES
from dtd.net.data_port.resources import Resource, file_blob, memory_blob
from dtd.net.server import MAX_CONNECTIONS
from dtd.wire import messages as m
from dtd.wire.session import DataCredential, Session
from dtd.wire.tags import FLAG_GCM

PATIENCE_S = 60.0
SECRET = b"s" * 32
WORKER_SECRET = b"w" * 32
CHECKPOINT = "checkpoint/digits-1/g000001-s000000010"


def said(hello: m.Hello) -> bytes:
    """A HELLO as somebody says it who knows the secret."""
    session = Session(role=m.Role(hello.role), random_bytes=bytes)
    return session.hello(hello, secret=SECRET)


class Acceptor:
    """A generation that takes its previous neighbour, of rank 1."""

    def __init__(self):
        self.links = []
        self.arrived = asyncio.Event()

    def __call__(self, link, hello):
        if self.links or hello.rank != 1:
            raise ProtocolError(ErrorCode.WRONG_STATE, "this ring has its previous neighbour")
        self.links.append(link)
        self.arrived.set()

    async def taken(self):
        async with asyncio.timeout(PATIENCE_S):
            await self.arrived.wait()


class Port:
    """A data server with checkpoints, and where it listens."""

    def __init__(self, address, server, checkpoints, going):
        self.address, self.server = address, server
        self.checkpoints, self.going = checkpoints, going


@pytest.fixture
async def port():
    checkpoints = {}
    going = {}

    def open_checkpoint(name):
        if name in going:
            return Resource(manifest=b"{}", blobs=[file_blob(going[name])])
        if name not in checkpoints:
            raise CheckpointError(f"{name} is not here", remedy="ask another worker")
        return checkpoints[name]

    server = DataServer("worker-0", open_checkpoint)
    server.worker_secret = WORKER_SECRET
    bound = await server.listen(Address("127.0.0.1", 0))
    yield Port(bound, server, checkpoints, going)
    server.close()


def assign(generation, roster_id=7):
    return m.Assign(
        job="digits-1",
        generation=generation,
        roster_id=roster_id,
        rank=0,
        roster=(),
        held_generation=0,
        held_step=0,
        secret=SECRET,
    )


def ring(generation, roster_id=7, rank=1):
    return {"generation": generation, "roster_id": roster_id, "rank": rank}


async def turned_away(peer):
    error = await peer.end()
    assert isinstance(error, ProtocolError)
    return error


# --- rings -----------------------------------------------------------------------------------


async def test_behind_a_proxy_on_loopback_frames_carry_macs(port, dial):
    """Both sides have loopback addresses, and what is between the two may be anywhere."""
    acceptor = Acceptor()
    port.server.expect_ring(assign(3), acceptor)
    async with proxy(port.address) as address:
        peer = await dial(address, m.Role.RING, **ring(3))
        await peer.welcomed()
        await acceptor.taken()
        # PROVE, the first frame, has a MAC in any case; the flags are those of the frames after it.
        acceptor.links[0].send(m.LinkHeartbeat(generation=3))
        assert [link.session.tag.flag for link in (peer.link, acceptor.links[0])] == [FLAG_GCM] * 2


@contextlib.asynccontextmanager
async def proxy(behind):
    """A port that passes everything on, as the two ends of an SSH tunnel do."""
    tasks = []

    async def pump(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader, writer):
        onward_reader, onward_writer = await asyncio.open_connection(behind.host, behind.port)
        tasks.append(asyncio.ensure_future(pump(reader, onward_writer)))
        tasks.append(asyncio.ensure_future(pump(onward_reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname())
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stale_ring_is_fenced(port, dial):
    port.server.expect_ring(assign(3), Acceptor())
    error = await turned_away(await dial(port.address, m.Role.RING, **ring(2)))
    assert error.code == ErrorCode.STALE_GENERATION


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (ring(3, roster_id=8), ErrorCode.STALE_GENERATION),
        (ring(3, rank=2), ErrorCode.WRONG_STATE),
    ],
)
async def test_a_ring_of_another_roster_or_rank_is_refused(port, dial, other, code):
    port.server.expect_ring(assign(3), Acceptor())
    error = await turned_away(await dial(port.address, m.Role.RING, **other))
    assert error.code == code


# --- keys ------------------------------------------------------------------------------------


async def test_a_recorded_hello_occupies_nothing(port, dial):
    acceptor = Acceptor()
    port.server.expect_ring(assign(3), acceptor)
    reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
    hello = DataCredential(secret=SECRET, generation=3, roster_id=7, rank=1).hello(
        m.Role.RING, "worker-1"
    )
    writer.write(said(hello))
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read(1)  # it is answered, and proves nothing
    await (await dial(port.address, m.Role.RING, **ring(3))).welcomed()
    await acceptor.taken()
    writer.close()


@pytest.mark.parametrize("role", [m.Role.RING, m.Role.LIFELINE, m.Role.FETCH, m.Role.STAR])
async def test_a_caller_with_another_secret_is_not_served(port, dial, role):
    port.server.expect_ring(assign(3), acceptor := Acceptor())
    peer = await dial(port.address, role, secret=b"x" * 32, **ring(3))
    assert (await turned_away(peer)).code == ErrorCode.BAD_TAG
    assert not acceptor.links


async def test_a_peer_that_has_not_proved_anything_cannot_ask(port):
    port.server.expect_ring(assign(3), Acceptor())
    port.server.offer("state/3", state())
    reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
    entry = DataCredential(secret=SECRET, generation=3, roster_id=7)
    greeting = said(entry.hello(m.Role.FETCH, "w"))
    writer.write(greeting + m.message_bytes(m.FetchOpen(resource="state/3")))
    async with asyncio.timeout(PATIENCE_S):
        answers = await reader.read()
    assert b"manifest" not in answers
    assert answers.count(b"DTDF") == 2  # WELCOME and ERROR
    writer.close()


async def test_members_of_the_generation_may_fetch_its_state_and_nothing_else(port, dial):
    port.server.expect_ring(assign(3), Acceptor())
    port.server.offer("state/3", state())
    entry = {"generation": 3, "roster_id": 7, "rank": 1}
    _, blobs, _ = await opened(port, dial, "state/3", **entry)
    assert len(blobs) == 2
    other = await dial(port.address, m.Role.FETCH, **entry)
    await other.welcomed()
    other.link.send(m.FetchOpen(resource=CHECKPOINT))
    error = await turned_away(other)
    assert error.code == ErrorCode.REFUSED
    assert error.message == f"{CHECKPOINT} was asked for with a key that opens state/3"


async def test_a_ticket_opens_what_it_names_until_it_expires(port, dial):
    port.server.offer("state/1", state())
    await opened(port, dial, "state/1")
    late = await dial(port.address, m.Role.FETCH, scope="state/1", expires_s=1)
    assert (await turned_away(late)).code == ErrorCode.REFUSED


# --- floods ----------------------------------------------------------------------------------


class Flood:
    """Callers who never prove anything."""

    def __init__(self, address):
        self._address = address
        self._writers = []

    async def call(self, words=b""):
        """One that says this and then nothing; its end of the connection."""
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
        self._writers.append(writer)
        writer.write(words)
        return reader

    def hang_up(self):
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def flood(port):
    made = Flood(port.address)
    yield made
    made.hang_up()


async def ended(reader):
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            await reader.read()


async def test_a_ring_forms_and_stands_while_others_fill_the_port(port, dial, flood):
    """More than the port takes in all: without a bound on them the ring would find no room."""
    readers = [await flood.call() for _ in range(MAX_CONNECTIONS + 10)]
    acceptor = Acceptor()
    port.server.expect_ring(assign(3), acceptor)
    peer = await dial(port.address, m.Role.RING, **ring(3))
    await peer.welcomed()
    await acceptor.taken()
    last = readers[-1]
    for _ in range(MAX_UNPROVEN):
        await flood.call()
    await ended(last)
    assert not peer.link.closing
    assert not acceptor.links[0].closing


@pytest.fixture
def from_afar(monkeypatch):
    """Callers count as those of another host, and nothing is forgiven by waiting."""
    monkeypatch.setattr(connection_limiter, "_is_loopback", lambda _host: False)
    monkeypatch.setattr(connection_limiter, "RATE_PER_S", 1e-9)


@pytest.mark.usefixtures("from_afar")
async def test_an_address_that_fails_again_and_again_is_not_let_in(port, dial, flood):
    port.server.expect_ring(assign(3), Acceptor())
    for _ in range(int(connection_limiter.BURST)):
        await ended(await flood.call(b"x" * 64))
    peer = await dial(port.address, m.Role.RING, **ring(3))
    assert "lost" in str(await peer.end())


# --- fetching --------------------------------------------------------------------------------


async def opened(port, dial, name, **entry):
    """(peer, names and sizes of the blobs, manifest)."""
    peer = await dial(port.address, m.Role.FETCH, **(entry or {"scope": name}))
    await peer.welcomed()
    peer.link.send(m.FetchOpen(resource=name))
    blobs, more = [], True
    while more:
        info, manifest = await peer.next()
        blobs += [(blob.name, blob.size_bytes) for blob in info.blobs]
        more = info.more
    return peer, blobs, manifest


async def fetched(peer, blob, offset, length):
    peer.link.send(m.FetchRange(blob=blob, offset=offset, length=length))
    message, payload = await peer.next()
    assert message == m.FetchData(blob=blob, offset=offset)
    return payload


def state(content=b"0123456789"):
    blobs = [memory_blob("0", memoryview(content), 4), memory_blob("1", memoryview(b""), 4)]
    return Resource(manifest=b"{}", blobs=blobs)


async def test_nothing_of_a_withdrawn_state_leaves_any_more(port, dial):
    """Queued bytes lie in memory that changes with the next step."""
    port.server.offer("state/1", state(bytes(MAX_FETCH_BYTES)))
    peer, _, _ = await opened(port, dial, "state/1")
    peer.link._transport.pause_reading()
    asked = [m.FetchRange(blob=0, offset=0, length=MAX_FETCH_BYTES)] * 4
    for one in asked:
        peer.link.send(one)
    [link] = port.server._fetches._open
    async with asyncio.timeout(PATIENCE_S):
        while not link.queued_bytes():
            await (await dial(port.address, m.Role.FETCH)).welcomed()
    port.server.withdraw()
    peer.link._transport.resume_reading()
    assert (await turned_away(peer)).code == ErrorCode.TRUNCATED


async def test_a_peer_that_asks_and_does_not_read_is_refused_in_the_end(port, dial):
    """A caller's queue is bounded by the requests that it may send ahead."""
    port.server.offer("state/1", state(bytes(MAX_FETCH_BYTES)))
    peer, _, _ = await opened(port, dial, "state/1")
    peer.link._transport.pause_reading()
    [link] = port.server._fetches._open
    async with asyncio.timeout(PATIENCE_S):
        while not link.closing:
            peer.link.send(m.FetchRange(blob=0, offset=0, length=MAX_FETCH_BYTES))
            await (await dial(port.address, m.Role.FETCH)).welcomed()
            assert link.queued_bytes() < 2 * MAX_FETCH_BYTES
    assert link._error.code == ErrorCode.REFUSED


@pytest.mark.parametrize(
    ("blob", "offset", "length"),
    [(2, 0, 1), (0, 0, 0), (0, 0, 11), (0, 10, 1), (0, 2**63 - 1, 1), (0, 0, MAX_FETCH_BYTES + 1)],
)
async def test_ranges_that_cannot_be_had_are_refused(port, dial, blob, offset, length):
    port.server.offer("state/1", state())
    peer, _, _ = await opened(port, dial, "state/1")
    peer.link.send(m.FetchRange(blob=blob, offset=offset, length=length))
    error = await turned_away(peer)
    assert error.code == ErrorCode.BAD_FIELD
    assert error.message.startswith("FETCH_RANGE")
