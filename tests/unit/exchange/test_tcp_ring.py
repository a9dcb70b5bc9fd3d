"""Rings of real sockets on one event loop: they come up, add, and break."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading

import numpy as np
import pytest

import dtd.exchange.endpoint as endpoint_module
import dtd.exchange.memory_offers as offers_module
import dtd.net.data_server as data_server_module
from dtd.address import Address
from dtd.errors import CheckpointError, ErrorCode, ProtocolError
from dtd.exchange.api import BufferLocation
from dtd.exchange.endpoint import RingEndpoint
from dtd.net.data_server import DataServer
from dtd.shared_memory import HEAD_BYTES, OfferedMemory
from dtd.wire import messages as m
from dtd.wire.greeting import DataCredential

PATIENCE_S = 60.0
SECRET = b"s" * 32
GENERATION = 4


def no_checkpoint(name):
    raise CheckpointError(f"{name} is not here")


class Node:
    """One rank: its data port, its endpoint once it is made, and what that reports."""

    def __init__(self, rank, fd_dir):
        self.fd_dir = fd_dir
        self.name = f"worker-{rank}"
        self.server = DataServer(self.name, no_checkpoint)
        self.up = asyncio.Event()
        self.broken = asyncio.get_running_loop().create_future()
        self.buckets = asyncio.Queue()
        self.words = asyncio.Queue()

    def make(self, assign, chunk_bytes, silence_s):
        self.endpoint = RingEndpoint(
            assign,
            self.server,
            chunk_bytes=chunk_bytes,
            beat_interval_s=silence_s / 6,
            silence_s=silence_s,
            listener=self,
            fd_dir=self.fd_dir,
        )

    def ring_up(self):
        assert not self.up.is_set()
        self.up.set()

    def ring_broken(self, loss):
        self.broken.set_result((loss.suspect, loss.evidence, loss.reason))

    def bucket_done(self, route, bucket):
        self.buckets.put_nowait(bucket)

    def gather_done(self, entries):
        self.words.put_nowait(entries)

    async def step(self, number, buckets, word):
        """One step of training: all buckets, then the word."""
        node = self.endpoint.node
        node.open_step(number, tuple(buckets))
        for bucket in range(len(buckets)):
            node.start(bucket)
        async with asyncio.timeout(PATIENCE_S):
            done = {await self.buckets.get() for _ in buckets}
            assert done == set(range(len(buckets)))
            node.offer(word)
            return await self.words.get()


class Ranks:
    """All ranks of one ring."""

    def __init__(self, size, fd_dir):
        self.nodes = [Node(rank, fd_dir) for rank in range(size)]

    async def listen(self, ports=None, *, chunk_bytes=64, silence_s=PATIENCE_S):
        """Make the endpoints; a rank whose port is given does not listen yet."""
        members = []
        for rank, node in enumerate(self.nodes):
            port = (ports or {}).get(rank, 0)
            if not port:
                port = (await node.server.listen(Address("127.0.0.1", 0))).port
            members.append(
                m.Member(name=node.name, incarnation=1, host="127.0.0.1", port=port, holds=True)
            )
        for rank, node in enumerate(self.nodes):
            node.make(
                m.Assign(
                    job="job-1",
                    generation=GENERATION,
                    roster_id=9,
                    rank=rank,
                    roster=tuple(members),
                    held_generation=0,
                    held_step=0,
                    secret=SECRET,
                ),
                chunk_bytes,
                silence_s,
            )

    async def come_up(self):
        for node in self.nodes:
            node.endpoint.connect()
        await self.are_up()

    async def are_up(self):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(node.up.wait() for node in self.nodes))

    async def are_broken(self):
        """(suspect, evidence, reason) of each rank."""
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.gather(*(node.broken for node in self.nodes))

    def close(self):
        for node in self.nodes:
            node.endpoint.end("the test is over")
            node.server.close()


@pytest.fixture
async def ranks(fd_dir):
    """Makes rings of a size; they are closed in the end."""
    made = []

    def make(size):
        made.append(Ranks(size, fd_dir))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def test_buckets_larger_than_what_the_kernel_buffers(ranks, memory_of):
    ring = ranks(2)
    await ring.listen(chunk_bytes=1 << 20)
    await ring.come_up()
    arrays = [np.arange(3_000_000, dtype=np.int32) + rank for rank in range(2)]
    await asyncio.gather(
        *(node.step(0, [memory_of(arrays[rank])], b"") for rank, node in enumerate(ring.nodes))
    )
    for array in arrays:
        assert (array == 2 * np.arange(3_000_000, dtype=np.int32) + 1).all()


async def test_a_dead_neighbour_is_the_suspect(ranks):
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    ring.nodes[1].endpoint.end("it dies")
    (suspect, evidence, reason), own = await ring.are_broken()
    assert (suspect, evidence) == ("worker-1", "reset")
    assert "lost" in reason
    assert own == ("", "", "it dies")


async def test_everyone_notices_that_one_has_died(ranks):
    ring = ranks(3)
    await ring.listen()
    await ring.come_up()
    ring.nodes[1].endpoint.end("it dies")
    reports = await ring.are_broken()
    suspects = {suspect for suspect, _, _ in reports}
    # Each in turn cuts its links, so the news may reach the third from the second.
    assert "worker-1" in suspects
    assert suspects <= {"", "worker-0", "worker-1", "worker-2"}
    assert reports[1] == ("", "", "it dies")


async def test_a_neighbour_that_listens_late_is_called_again(
    ranks, memory_of, monkeypatch, free_address
):
    refused, sleep = asyncio.Event(), asyncio.sleep

    async def pause(_pause_s):
        refused.set()
        await sleep(0)

    monkeypatch.setattr(endpoint_module.asyncio, "sleep", pause)
    ring = ranks(2)
    await ring.listen({1: free_address.port})
    ring.nodes[0].endpoint.connect()
    async with asyncio.timeout(PATIENCE_S):
        await refused.wait()
    await ring.nodes[1].server.listen(free_address)
    ring.nodes[1].endpoint.connect()
    await ring.are_up()
    arrays = [np.ones(10), np.ones(10)]
    await asyncio.gather(
        *(node.step(0, [memory_of(arrays[rank])], b"") for rank, node in enumerate(ring.nodes))
    )
    assert (arrays[0] == 2).all()


async def test_a_ring_that_ends_before_it_is_up_calls_nobody_any_more(ranks):
    ring = ranks(2)
    await ring.listen()
    node = ring.nodes[0]
    node.endpoint.connect()
    [connecting] = node.endpoint._dialling.values()
    node.endpoint.end("another generation follows")
    await asyncio.wait([connecting], timeout=PATIENCE_S)
    assert connecting.cancelled()
    assert await node.broken == ("", "", "another generation follows")
    assert not node.up.is_set()


async def test_a_ring_that_has_ended_is_not_expected_in_place_of_the_next_one(ranks, dial):
    ring = ranks(2)
    await ring.listen()
    late, node = ring.nodes[0].endpoint, ring.nodes[0]
    late.end("another generation follows")
    following = dataclasses.replace(late.assign, generation=GENERATION + 1, roster_id=10)
    node.server.expect_ring(following, late.accept)
    late.connect()
    own = late.assign.roster[0]
    hello = {"generation": GENERATION, "roster_id": 9, "rank": 1}
    error = await (await dial(Address(own.host, own.port), m.Role.RING, **hello)).end()
    assert isinstance(error, ProtocolError)
    assert error.code == ErrorCode.STALE_GENERATION


async def test_a_neighbour_that_breaks_the_protocol_breaks_the_ring(ranks, dial):
    ring = ranks(2)
    await ring.listen()
    node = ring.nodes[0]
    node.endpoint.connect()
    own = node.endpoint.assign.roster[0]
    hello = {"generation": GENERATION, "roster_id": 9, "rank": 1}
    peer = await dial(Address(own.host, own.port), m.Role.RING, **hello)
    await peer.welcomed()
    stale = m.SmallGather(generation=GENERATION - 1, step=0, sequence=0, hop=0, origin=1, source=1)
    peer.link.send(stale, b"word")
    error = await peer.end()
    assert isinstance(error, ProtocolError)
    assert error.code == ErrorCode.STALE_GENERATION
    async with asyncio.timeout(PATIENCE_S):
        suspect, evidence, reason = await node.broken
    assert (suspect, evidence) == ("worker-1", "corrupt")
    assert "generation" in reason


# --- loans ---------------------------------------------------------------------------------------

STEPS = 1000
"""Far more than it takes two processes to agree."""


class Lent:
    """One bucket in memory that can be lent."""

    def __init__(self, memory_of):
        self.memory = OfferedMemory(400)
        self.array = np.frombuffer(self.memory.view(HEAD_BYTES, 400), dtype=np.float32)
        self.bucket = dataclasses.replace(
            memory_of(self.array), home=BufferLocation(self.memory, HEAD_BYTES)
        )


@pytest.fixture
def lent(memory_of):
    """Makes so many buckets, one for each rank; their files are closed in the end."""
    made = []

    def make(count):
        made.extend(Lent(memory_of) for _ in range(count))
        return made

    yield make
    for one in made:
        one.memory.close()


def sent_bytes(ring):
    return [node.endpoint.traffic().sent_bytes for node in ring.nodes]


async def step(ring, number, buckets, *more):
    """All ranks sum their buckets, which are filled first; True when they came out right."""
    for rank, one in enumerate(buckets):
        one.array[:] = 1 << rank
    await asyncio.gather(
        *(
            node.step(number, [one.bucket, *more], b"")
            for node, one in zip(ring.nodes, buckets, strict=True)
        )
    )
    return all((one.array == (1 << len(buckets)) - 1).all() for one in buckets)


async def until_lent(ring, buckets):
    """Steps until nothing is sent any more; returns how many there were."""
    for number in range(STEPS):
        before = sent_bytes(ring)
        assert await step(ring, number, buckets)
        if sent_bytes(ring) == before:
            return number + 1
    raise AssertionError("they never agreed")


@pytest.mark.parametrize("size", [2, 3])
async def test_neighbours_on_one_host_read_and_send_nothing(ranks, lent, size):
    ring = ranks(size)
    await ring.listen()
    await ring.come_up()
    buckets = lent(size)
    number = await until_lent(ring, buckets)
    assert number > 1, "they cannot have agreed before the first step"
    for one in buckets:
        one.memory.revoke()
    before = sent_bytes(ring)
    assert await step(ring, number, buckets)
    assert sent_bytes(ring) == before


async def test_what_is_not_lent_is_sent_beside_it(ranks, lent, memory_of):
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    buckets = lent(2)
    tails = [np.arange(100, dtype=np.float64) for _ in buckets]
    for number in range(STEPS):
        before = sent_bytes(ring)
        for rank, one in enumerate(buckets):
            one.array[:] = 1 << rank
            tails[rank][:] = rank + 1
        await asyncio.gather(
            *(
                node.step(number, [one.bucket, memory_of(tail)], b"")
                for node, one, tail in zip(ring.nodes, buckets, tails, strict=True)
            )
        )
        assert all((one.array == 3).all() for one in buckets)
        assert all((tail == 3).all() for tail in tails)
        sent = {now - then for now, then in zip(sent_bytes(ring), before, strict=True)}
        assert sent <= {800, 1200}
        if sent == {800}:
            return
    raise AssertionError("they never agreed")


async def test_a_rank_that_cannot_borrow_is_sent_everything(ranks, lent, monkeypatch):
    def refuse(directory, look, received):
        raise OSError("no such family of sockets")

    monkeypatch.setattr(offers_module, "FdMailbox", refuse)
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    buckets = lent(2)
    for number in range(5):
        before = sent_bytes(ring)
        assert await step(ring, number, buckets)
        assert [now - then for now, then in zip(sent_bytes(ring), before, strict=True)] == [400] * 2


async def test_nothing_is_offered_to_another_host(ranks, lent):
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    for node in ring.nodes:
        assert node.endpoint._out.is_same_host
        node.endpoint._out.is_same_host = False
    buckets = lent(2)
    for number in range(3):
        assert await step(ring, number, buckets)
    assert not any(node.endpoint._shared._offers for node in ring.nodes)


def begin(ring, rank, number, one):
    """A rank fills its bucket and hands it over."""
    node = ring.nodes[rank].endpoint.node
    node.open_step(number, (one.bucket,))
    one.array[:] = rank
    node.start(0)


def called(node, method, times):
    """An event: this method of a ring's node has been called so often."""
    act, calls, enough = getattr(node, method), itertools.count(1), asyncio.Event()

    def call(*arguments, **named):
        act(*arguments, **named)
        if next(calls) == times:
            enough.set()

    setattr(node, method, call)
    return enough


async def happened(*events):
    async with asyncio.timeout(PATIENCE_S):
        for event in events:
            await event.wait()


@pytest.mark.parametrize("early", [True, False])
async def test_a_recalled_loan_is_the_end_of_the_ring(ranks, lent, early):
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    first, second = lent(2)
    number = await until_lent(ring, [first, second])
    loan = first.memory.version
    left, reads = ring.nodes[0], ring.nodes[1]
    if early:
        arrived = called(reads.endpoint.node, "received", 4)
        reads.endpoint.node.open_step(number, (second.bucket,))
        begin(ring, 0, number, first)
        await happened(arrived)
        first.memory.revoke()  # the first rank has left for another generation
        reads.endpoint.node.start(0)
        assert reads.broken.done(), "it must end before it hears anything else"
    else:
        begin(ring, 1, number, second)
        left.endpoint.node.open_step(number, (first.bucket,))
        first.memory.revoke()
        left.endpoint.node.start(0)
    blamed, own = await ring.are_broken()
    why = f"the previous rank has recalled memory {loan}"
    assert own == ("worker-0", "reset", why)
    assert blamed[:2] == ("worker-1", "reset")
    assert all(node.buckets.empty() for node in ring.nodes)


async def test_a_ring_that_has_ended_keeps_nothing_that_it_borrowed(ranks, lent, mapped):
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    buckets = lent(2)
    before = [mapped(one.memory) for one in buckets]
    await until_lent(ring, buckets)
    assert [mapped(one.memory) for one in buckets] == [count + 1 for count in before]
    ring.nodes[0].endpoint.end("enough")
    await ring.are_broken()
    for thread in threading.enumerate():
        if thread.name == "descriptors":
            thread.join(PATIENCE_S)
    assert [mapped(one.memory) for one in buckets] == before


# --- lifelines -----------------------------------------------------------------------------------


class Cut:
    """Stands for the thread that holds lifelines: keeps what it was told."""

    def __init__(self):
        self.told = asyncio.Queue()

    def hold(self, targets, *, name, entry, timeout_s, context):
        self.told.put_nowait((targets, name, entry))


async def test_a_ring_that_is_up_has_lifelines_held_to_both_neighbours(ranks):
    ring = ranks(3)
    await ring.listen()
    cut = ring.nodes[0].endpoint._lifeline = Cut()
    await ring.come_up()
    targets, name, entry = await cut.told.get()
    roster = ring.nodes[0].endpoint.assign.roster
    assert set(targets) == {Address(one.host, one.port) for one in roster[1:]}
    assert name == "worker-0"
    assert entry == DataCredential(secret=SECRET, generation=GENERATION, roster_id=9, rank=0)


async def lifeline_to(ring, dial, rank, **changed):
    """A lifeline to the first node, from the neighbour of this rank."""
    own = ring.nodes[0].endpoint.assign.roster[0]
    hello = {"generation": GENERATION, "roster_id": 9, "rank": rank, **changed}
    return await dial(Address(own.host, own.port), m.Role.LIFELINE, **hello)


async def test_a_lifeline_that_is_cut_means_that_the_process_has_ended(ranks, dial):
    ring = ranks(3)
    await ring.listen()
    await ring.come_up()
    peer = await lifeline_to(ring, dial, 1)
    await peer.welcomed()
    peer.link.abort()
    async with asyncio.timeout(PATIENCE_S):
        report = await ring.nodes[0].broken
    assert report == ("worker-1", "ended", "its process has ended")


async def test_a_lifeline_of_somebody_else_is_refused(ranks, dial):
    ring = ranks(4)
    await ring.listen()
    await ring.come_up()
    for refused in ({"rank": 2}, {"rank": 9}, {"rank": 1, "roster_id": 8}):
        error = await (await lifeline_to(ring, dial, **refused)).end()
        assert isinstance(error, ProtocolError)
    assert not ring.nodes[0].broken.done()


async def test_lifelines_end_with_the_ring(ranks, dial):
    ring = ranks(2)
    await ring.listen()
    await ring.come_up()
    peer = await lifeline_to(ring, dial, 1)
    await peer.welcomed()
    ring.nodes[0].endpoint.end("enough")
    await peer.end()
    assert await ring.nodes[0].broken == ("", "", "enough")


async def test_a_peer_that_is_pushed_out_while_it_waits_calls_again(ranks, dial, monkeypatch):
    monkeypatch.setattr(data_server_module, "MAX_EARLY", 1)
    ring = ranks(2)
    await ring.listen()
    first, second = ring.nodes
    first.endpoint.connect()
    async with asyncio.timeout(PATIENCE_S):
        while not second.server._early:
            await dial(address_of(ring, 0), m.Role.FETCH)
    waiting = first.endpoint._out
    await dial(address_of(ring, 1), m.Role.RING, generation=GENERATION + 1, roster_id=1, rank=0)
    async with asyncio.timeout(PATIENCE_S):
        while first.endpoint._out is waiting:
            await dial(address_of(ring, 0), m.Role.FETCH)
    second.endpoint.connect()
    await ring.are_up()
    assert not first.broken.done()


def address_of(ring, rank):
    own = ring.nodes[rank].endpoint.assign.roster[rank]
    return Address(own.host, own.port)
