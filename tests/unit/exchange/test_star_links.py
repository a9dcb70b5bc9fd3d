"""Stars of real sockets on one event loop: they come up with their ring, exchange, and break."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import dtd.exchange.endpoint as endpoint_module
import dtd.net.data_server as data_server_module
from dtd.address import Address
from dtd.errors import CheckpointError, ErrorCode, ProtocolError
from dtd.exchange.api import BucketMemory
from dtd.exchange.endpoint import RingEndpoint
from dtd.exchange.schedule.chunks import Operation
from dtd.net.data_server import DataServer
from dtd.wire import messages as m

PATIENCE_S = 60.0
SECRET = b"s" * 32
GENERATION = 4
ROSTER_ID = 9
SCATTER, GATHER = Operation.REDUCE_SCATTER, Operation.ALL_GATHER


def no_checkpoint(name):
    raise CheckpointError(f"{name} is not here")


def memory_of(array, operation, copies=0):
    def add(start, stop, received):
        array[start:stop] += np.frombuffer(received, dtype=array.dtype)

    return BucketMemory(
        view=memoryview(array.view(np.uint8)),
        item_bytes=array.itemsize,
        add=add,
        operation=operation,
        copies=copies,
    )


class Node:
    """One rank: its data port, its endpoint once it is made, and what that reports."""

    def __init__(self, rank):
        self.name = f"worker-{rank}"
        self.server = DataServer(self.name, no_checkpoint)
        self.up = asyncio.Event()
        self.broken = asyncio.get_running_loop().create_future()
        self.buckets = asyncio.Queue()

    @property
    def star(self):
        return self.endpoint.star

    def ring_up(self):
        assert not self.up.is_set()
        self.up.set()

    def ring_broken(self, loss):
        self.broken.set_result((loss.suspect, loss.evidence, loss.reason))

    def bucket_done(self, route, bucket):
        self.buckets.put_nowait(bucket)

    async def done(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.buckets.get()

    async def loss(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.broken


class Ranks:
    """All ranks of one generation, trainers first."""

    def __init__(self, trainers, servers):
        self.trainers = trainers
        self.nodes = [Node(rank) for rank in range(trainers + servers)]

    async def listen(self, ports=None, *, chunk_bytes=64, silence_s=PATIENCE_S):
        """Make the endpoints; a rank whose port is given does not listen yet."""
        members = []
        for rank, node in enumerate(self.nodes):
            port = (ports or {}).get(rank, 0)
            if not port:
                port = (await node.server.listen(Address("127.0.0.1", 0))).port
            members.append(
                m.Member(
                    name=node.name,
                    incarnation=1,
                    host="127.0.0.1",
                    port=port,
                    holds=True,
                    serves=rank >= self.trainers,
                )
            )
        for rank, node in enumerate(self.nodes):
            node.endpoint = RingEndpoint(
                m.Assign(
                    job="job-1",
                    generation=GENERATION,
                    roster_id=ROSTER_ID,
                    rank=rank,
                    roster=tuple(members),
                    held_generation=0,
                    held_step=0,
                    secret=SECRET,
                ),
                node.server,
                chunk_bytes=chunk_bytes,
                beat_interval_s=silence_s / 6,
                silence_s=silence_s,
                listener=node,
            )

    async def come_up(self):
        for node in self.nodes:
            node.endpoint.connect()
        await self.are_up()

    async def are_up(self):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(node.up.wait() for node in self.nodes))

    def address(self, rank):
        own = self.nodes[0].endpoint.assign.roster[rank]
        return Address(own.host, own.port)

    def close(self):
        for node in self.nodes:
            node.endpoint.end("the test is over")
            node.server.close()


@pytest.fixture
async def ranks():
    """Makes generations of trainers and servers; they are closed in the end."""
    made = []

    def make(trainers, servers):
        made.append(Ranks(trainers, servers))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def until(condition):
    """Let the loop run until something is so."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            turn = loop.create_future()
            loop.call_soon(turn.set_result, None)
            await turn


def claims(rank):
    """The HELLO of a member of this rank."""
    return {"generation": GENERATION, "roster_id": ROSTER_ID, "rank": rank}


async def refusal(peer):
    error = await peer.end()
    assert isinstance(error, ProtocolError)
    return error.code


# --- exchanges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("turn_bytes", [1, endpoint_module.TURN_BYTES])
async def test_two_trainers_and_two_servers_exchange_steps(ranks, monkeypatch, turn_bytes):
    monkeypatch.setattr(endpoint_module, "TURN_BYTES", turn_bytes)
    star = ranks(2, 2)
    await star.listen()
    await star.come_up()
    for step in range(3):
        sums = [np.full(101, (rank + 1) * 10 + step, dtype=np.int64) for rank in range(4)]
        held = [np.full(101, rank, dtype=np.int64) for rank in range(4)]
        for rank, node in enumerate(star.nodes):
            buckets = [memory_of(sums[rank], SCATTER, 1), memory_of(held[rank], GATHER)]
            node.star.node.open_step(step, buckets)
            node.star.node.start(1)
            node.star.node.start(0)
        for node in star.nodes:
            assert {await node.done(), await node.done()} == {0, 1}
        for server in (2, 3):
            assert (sums[server] == 30 + 2 * step).all()
        for gathered in held:
            assert (gathered == [2] * 50 + [3] * 51).all()
        for node in star.nodes[:2]:
            assert node.star.node.sent_bytes == sums[0].nbytes
            assert node.endpoint.traffic().sent_bytes >= (step + 1) * sums[0].nbytes
            assert node.endpoint.traffic().received_bytes >= (step + 1) * held[0].nbytes


async def test_a_bucket_is_done_when_the_kernel_has_taken_it(ranks):
    """A server that has not started does not read, so its trainer's bucket is not done."""
    star = ranks(1, 1)
    await star.listen(chunk_bytes=1 << 20)
    await star.come_up()
    trainer, server = star.nodes
    given, taken = np.arange(6_000_000, dtype=np.int64), np.zeros(6_000_000, dtype=np.int64)
    server.star.node.open_step(0, [memory_of(taken, SCATTER)])
    trainer.star.node.open_step(0, [memory_of(given, SCATTER)])
    trainer.star.node.start(0)
    await until(lambda: trainer.star._links[1].queued_bytes() and server.star._links[0].held)
    assert trainer.buckets.empty()
    server.star.node.start(0)
    assert await trainer.done() == await server.done() == 0
    assert (given == taken).all()


async def test_what_is_queued_for_a_slow_rank_is_bounded_and_delays_no_other(ranks):
    """With TLS it is a copy of a server's whole part of the model, for each rank."""
    star = ranks(2, 1)
    await star.listen(chunk_bytes=1 << 20)
    await star.come_up()
    slow, quick, server = star.nodes
    given = np.arange(12_000_000, dtype=np.int64)
    taken = [np.zeros(12_000_000, dtype=np.int64) for _ in range(2)]
    server.star.node.open_step(0, [memory_of(given, GATHER)])
    quick.star.node.open_step(0, [memory_of(taken[1], GATHER)])
    server.star.node.start(0)
    quick.star.node.start(0)
    assert await quick.done() == 0
    assert slow.buckets.empty()
    assert server.buckets.empty()
    left = server.star._links[0].queued_bytes()
    assert 0 < left <= endpoint_module.QUEUED_BYTES + 2 * (1 << 20)
    slow.star.node.open_step(0, [memory_of(taken[0], GATHER)])
    slow.star.node.start(0)
    assert await slow.done() == await server.done() == 0
    assert (given == taken).all()


# --- coming up -----------------------------------------------------------------------------------


async def test_a_server_that_listens_late_is_called_again(
    ranks, monkeypatch, unused_tcp_port_factory
):
    refused, sleep = asyncio.Event(), asyncio.sleep

    async def pause(_pause_s):
        refused.set()
        await sleep(0)

    monkeypatch.setattr(endpoint_module.asyncio, "sleep", pause)
    star = ranks(3, 2)
    port = unused_tcp_port_factory()
    await star.listen({4: port})
    for node in star.nodes[:4]:
        node.endpoint.connect()
    async with asyncio.timeout(PATIENCE_S):
        await refused.wait()
    assert not any(node.up.is_set() for node in star.nodes)
    await star.nodes[4].server.listen(Address("127.0.0.1", port))
    star.nodes[4].endpoint.connect()
    await star.are_up()


async def test_a_peer_that_is_pushed_out_while_it_waits_calls_again(ranks, dial, monkeypatch):
    monkeypatch.setattr(data_server_module, "MAX_EARLY", 2)
    star = ranks(2, 1)
    await star.listen()
    trainer, _, server = star.nodes
    trainer.endpoint.connect()
    async with asyncio.timeout(PATIENCE_S):
        while not server.server._early:
            await dial(star.address(0), m.Role.FETCH)
    waiting = trainer.star._links[2]
    for _ in range(2):
        later = {**claims(0), "generation": GENERATION + 1}
        await dial(star.address(2), m.Role.STAR, **later)
    async with asyncio.timeout(PATIENCE_S):
        while trainer.star._links[2] is waiting:
            await dial(star.address(0), m.Role.FETCH)
    for node in star.nodes[1:]:
        node.endpoint.connect()
    await star.are_up()


async def test_a_generation_without_servers_takes_no_star_links(ranks, dial):
    ring = ranks(2, 0)
    await ring.listen()
    await ring.come_up()
    assert ring.nodes[0].star is None
    peer = await dial(ring.address(0), m.Role.STAR, **claims(1))
    assert await refusal(peer) == ErrorCode.WRONG_STATE


# --- losses --------------------------------------------------------------------------------------


async def test_a_lost_link_of_the_star_ends_the_generation(ranks):
    star = ranks(3, 2)
    await star.listen()
    await star.come_up()
    star.nodes[1].star._links[4].abort()
    suspect, evidence, reason = await star.nodes[1].loss()
    assert (suspect, evidence) == ("worker-4", "reset")
    assert "closed by this side" in reason
    suspect, evidence, _ = await star.nodes[4].loss()
    assert (suspect, evidence) == ("worker-1", "reset")
    for node in star.nodes:
        await node.loss()


async def test_the_end_of_the_ring_ends_the_star(ranks):
    star = ranks(3, 2)
    await star.listen()
    await star.come_up()
    star.nodes[1].endpoint.end("it dies")
    assert await star.nodes[1].loss() == ("", "", "it dies")
    for node in star.nodes:
        await node.loss()
    await until(lambda: not any(node.star._ranks for node in star.nodes))


async def test_a_rank_that_does_not_call_is_missed_by_servers(ranks):
    star = ranks(3, 2)
    await star.listen(silence_s=0.3)
    for rank in (0, 2, 3, 4):
        star.nodes[rank].endpoint.connect()
    suspect, evidence, reason = await star.nodes[4].loss()
    if suspect == "worker-1":  # otherwise a neighbour in its ring has been faster
        assert evidence == "unreachable"
        assert "worker-1 has not connected" in reason
    losses = [await star.nodes[rank].loss() for rank in (0, 2, 3, 4)]
    assert "worker-1" in {suspect for suspect, _, _ in losses}
