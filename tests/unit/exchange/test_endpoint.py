"""Rings and stars of real sockets on one event loop: they come up, add, and break."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

import numpy as np
import pytest

import dtd.net.data_port.data_server as data_server_module
from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.api import BufferLocation
from dtd.host.shared_memory import HEAD_BYTES, OfferedMemory
from dtd.wire import messages as m
from tests.unit.exchange.generation import GENERATION, PATIENCE_S, hello_of, memory_of


async def test_buckets_larger_than_what_the_kernel_buffers(ranks):
    ring = ranks(2)
    await ring.listen(chunk_bytes=1 << 20)
    await ring.come_up()
    arrays = [np.arange(3_000_000, dtype=np.int32) + rank for rank in range(2)]
    await asyncio.gather(
        *(node.step(0, [memory_of(arrays[rank])], b"") for rank, node in enumerate(ring.nodes))
    )
    for array in arrays:
        assert (array == 2 * np.arange(3_000_000, dtype=np.int32) + 1).all()


async def test_a_neighbour_that_breaks_the_protocol_breaks_the_ring(ranks, dial):
    ring = ranks(2)
    await ring.listen()
    node = ring.nodes[0]
    node.endpoint.connect()
    peer = await dial(ring.address(0), m.Role.RING, **hello_of(1))
    await peer.welcomed()
    stale = m.SmallGather(generation=GENERATION - 1, step=0, sequence=0, hop=0, origin=1, source=1)
    peer.link.send(stale, b"word")
    error = await peer.end()
    assert isinstance(error, ProtocolError)
    assert error.code == ErrorCode.STALE_GENERATION
    suspect, evidence, reason = await node.loss()
    assert (suspect, evidence) == ("worker-1", "corrupt")
    assert "generation" in reason


# --- loans ---------------------------------------------------------------------------------------

STEPS = 1000
"""Far more than it takes two processes to agree."""


class Lent:
    """One bucket in memory that can be lent."""

    def __init__(self):
        self.memory = OfferedMemory(400)
        self.array = np.frombuffer(self.memory.view(HEAD_BYTES, 400), dtype=np.float32)
        self.bucket = dataclasses.replace(
            memory_of(self.array), home=BufferLocation(self.memory, HEAD_BYTES)
        )


@pytest.fixture
def lent():
    """Makes so many buckets, one for each rank; their files are closed in the end."""
    made = []

    def make(count):
        made.extend(Lent() for _ in range(count))
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
    blamed, own = [await node.loss() for node in ring.nodes]
    why = f"the previous rank has recalled memory {loan}"
    assert own == ("worker-0", "reset", why)
    assert blamed[:2] == ("worker-1", "reset")
    assert all(node.buckets.empty() for node in ring.nodes)


# --- lifelines -----------------------------------------------------------------------------------


async def lifeline_to(ring, dial, rank, **changed):
    """A lifeline to the first node, from the neighbour of this rank."""
    return await dial(ring.address(0), m.Role.LIFELINE, **(hello_of(rank) | changed))


async def test_a_lifeline_of_somebody_else_is_refused(ranks, dial):
    ring = ranks(4)
    await ring.listen()
    await ring.come_up()
    for refused in ({"rank": 2}, {"rank": 9}, {"rank": 1, "roster_id": 8}):
        error = await (await lifeline_to(ring, dial, **refused)).end()
        assert isinstance(error, ProtocolError)
    assert not ring.nodes[0].broken.done()


async def test_a_peer_that_is_pushed_out_while_it_waits_calls_again(ranks, dial, monkeypatch):
    monkeypatch.setattr(data_server_module, "MAX_EARLY", 1)
    ring = ranks(2)
    await ring.listen()
    first, second = ring.nodes
    first.endpoint.connect()
    async with asyncio.timeout(PATIENCE_S):
        while not second.server._early:
            await dial(ring.address(0), m.Role.FETCH)
    waiting = second.server._early[0]
    await dial(ring.address(1), m.Role.RING, **(hello_of(0) | {"generation": GENERATION + 1}))
    async with asyncio.timeout(PATIENCE_S):
        while not second.server._early or second.server._early[0] is waiting:
            await dial(ring.address(0), m.Role.FETCH)
    second.endpoint.connect()
    await ring.are_up()
    assert not first.broken.done()
