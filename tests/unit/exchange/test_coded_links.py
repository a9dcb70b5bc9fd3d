"""Coded payloads over real sockets: the same bits as without, fewer bytes, and no trust."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import numpy as np
import pytest

from dtd.address import Address
from dtd.engine.shards import Division
from dtd.errors import ErrorCode, ProtocolError, RingBroken
from dtd.exchange.endpoint import RingEndpoint
from dtd.exchange.schedule.chunks import Operation
from dtd.exchange.schedule.coding_choice import LEAD, WARM_UP_STEPS
from dtd.net.coding_link import Coding
from dtd.planes import PlaneCoder
from dtd.security.authority import Authority
from dtd.security.credential import Credential
from dtd.security.identity import WORKER
from dtd.wire import messages as m
from tests.unit.exchange.generation import GENERATION, hello_of, memory_of

CHUNK_BYTES = 32 * 1024
SIZES = {np.float32: 70_001, np.float64: 20_000, np.float16: 40_000, np.int8: 70_000}
STEPS = 2
MODES = [("on",), ("on", "off"), ("off", "on", "auto"), ("auto",)]


def contributions(rank, step):
    """One bucket of each type, as a gradient has them."""
    random = np.random.default_rng((rank, step))
    return [
        (0.01 * random.standard_normal(size) * (100 if dtype is np.int8 else 1)).astype(dtype)
        for dtype, size in SIZES.items()
    ]


def train(collective):
    """Some steps of all-reduces; returns the bytes of their results."""
    results = []
    for step in range(STEPS):
        arrays = contributions(collective.rank, step)
        collective.open_step(step, [memory_of(array) for array in arrays])
        for bucket in reversed(range(len(arrays))):
            collective.start(bucket)
        for bucket in range(len(arrays)):
            collective.wait(bucket)
        assert len(collective.gather(bytes([collective.rank]))) == collective.world_size
        collective.close_step()
        results += [array.tobytes() for array in arrays]
    return results


def train_sharded(collective):
    """Reduce-scatters to the servers and all-gathers from them."""
    division = Division(world_size=collective.world_size, mirrors=1, servers=2)
    results = []
    for step in range(STEPS):
        gradient, weights = (
            contributions(collective.rank, step)[0],
            np.zeros(SIZES[np.float32], np.float32),
        )
        copies = division.mirrors
        collective.open_step(
            step,
            [
                memory_of(gradient, Operation.REDUCE_SCATTER, copies=copies),
                memory_of(weights, Operation.ALL_GATHER, copies=copies),
            ],
        )
        collective.start(0)
        collective.wait(0)
        weights[:] = gradient
        collective.start(1)
        collective.wait(1)
        collective.gather(b"")
        collective.close_step()
        if collective.rank < collective.world_size - 2:
            results.append(weights.tobytes())
    return results


def run(collectives, size, servers, lossless, work, **settings):
    """The results of all ranks, and their traffic."""
    ring = collectives(size, servers, chunk_bytes=CHUNK_BYTES, lossless=lossless, **settings)
    ring.come_up()
    results = ring.all(work)
    return results, [one.endpoint.traffic() for one in ring.collectives]


@pytest.mark.parametrize("lossless", MODES, ids="-".join)
@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_ends_with_the_same_bits(collectives, size, lossless, monkeypatch):
    plain, _ = run(collectives, size, 0, ("off",), train)
    passed_on, receive = Counter(), RingEndpoint.link_received

    def count(endpoint, link, message, payload):
        passed_on[link] += 1
        receive(endpoint, link, message, payload)

    monkeypatch.setattr(RingEndpoint, "link_received", count)
    coded, traffic = run(collectives, size, 0, lossless, train)
    assert coded == plain
    for rank, one in enumerate(traffic):
        is_on = lossless[rank % len(lossless)] == "on"
        assert (one.sent_bytes < 0.95 * one.plain_bytes) == is_on
        assert is_on or one.sent_bytes == one.plain_bytes
    handshake_frames = 3
    assert passed_on
    assert all(link.received_frames <= n + handshake_frames for link, n in passed_on.items())


def test_an_encrypted_ring_ends_with_the_same_bits(collectives, tmp_path):
    path = tmp_path / "worker.credential"
    here = (Address("127.0.0.1", 1),)
    Authority.create(tmp_path / "pki").enrol(path, WORKER, "host", coordinators=here)
    credential = Credential.load(path)
    plain, _ = run(collectives, 3, 0, ("off",), train)
    coded, traffic = run(collectives, 3, 0, ("on",), train, credential=credential)
    assert coded == plain
    assert all(one.sent_bytes < 0.95 * one.plain_bytes for one in traffic)


@pytest.mark.parametrize("lossless", [("on",), ("on", "off", "off")], ids="-".join)
def test_a_star_ends_with_the_same_bits(collectives, lossless):
    plain, _ = run(collectives, 4, 2, ("off",), train_sharded)
    coded, traffic = run(collectives, 4, 2, lossless, train_sharded)
    assert coded == plain
    assert traffic[0].sent_bytes < 0.95 * traffic[0].plain_bytes


class SlowLink:
    """A link on which coding pays."""

    def __init__(self, mode, *, same_host):
        assert (mode, same_host) == ("auto", True)

    def wants(self):
        return True

    def coded(self, plain_bytes, coded_bytes, coder_s):
        """Fast enough."""


def test_coded_and_plain_steps_take_turns_on_all_ranks(collectives, monkeypatch):
    monkeypatch.setattr("dtd.net.coding_link.LinkChoice", SlowLink)
    monkeypatch.setattr("dtd.net.coding_link.LOOK_BYTES", 1 << 40)

    def turns(collective):
        coded, before = [], collective.endpoint.traffic()
        for step in range(WARM_UP_STEPS + 2 * LEAD):
            (array,) = contributions(collective.rank, step)[:1]
            collective.open_step(step, [memory_of(array)])
            collective.start(0)
            collective.wait(0)
            collective.gather(b"")
            collective.close_step()
            now = collective.endpoint.traffic()
            plain_bytes = now.plain_bytes - before.plain_bytes
            coded.append(now.sent_bytes - before.sent_bytes < 0.95 * plain_bytes)
            before = now
        return coded

    results, _ = run(collectives, 3, 0, ("auto",), turns)
    assert results == [[False] * 3 + [True, True, False, True, False, False, True]] * 3


def test_a_late_chunk_of_the_step_before_begins_no_step():
    coding = Coding("auto")
    turns = [coding.allows(step) for step in (0, 1, 2, 3, 2, 4, 5)]
    assert turns == [False, False, False, True, True, True, False]


def test_a_neighbour_that_decodes_nothing_gets_plain_chunks(collectives, monkeypatch):
    plain, _ = run(collectives, 2, 0, ("off",), train)
    monkeypatch.setattr("dtd.net.data_port.data_server.PLANES", 0)
    sent, traffic = run(collectives, 2, 0, ("on",), train)
    assert sent == plain
    assert all(one.sent_bytes == one.plain_bytes for one in traffic)


GRADIENT = memoryview(np.random.default_rng(0).standard_normal(2048).astype(np.float32).tobytes())


def damaged(code):
    code = bytearray(code)
    code[3 * 2048] ^= 0xFF
    return code


@pytest.mark.parametrize(
    ("change", "plain_bytes"),
    [
        (damaged, 8192),
        (bytes, 8192 + 4),
        (bytes, 2**32 - 4),
        (bytes, 0),
        (lambda code: bytes(len(GRADIENT)), 8192),
    ],
    ids=["damaged", "other length", "huge", "nothing", "not shorter"],
)
async def test_a_bad_code_breaks_the_ring(ranks, dial, change, plain_bytes):
    ring = ranks(2)
    await ring.listen(chunk_bytes=len(GRADIENT))
    node = ring.nodes[0]
    node.endpoint.connect()
    node.endpoint.node.open_step(0, [memory_of(np.zeros(4096, np.float32))])
    peer = await dial(ring.address(0), m.Role.RING, **hello_of(1))
    await peer.welcomed()
    code = PlaneCoder().encode(GRADIENT, 4)
    chunk = m.CodedChunk(
        generation=GENERATION,
        step=0,
        phase=0,
        hop=0,
        bucket=0,
        chunk=0,
        source=1,
        plain_bytes=plain_bytes,
        item_bytes=4,
    )
    peer.link.send(chunk, bytes(change(code)))
    error = await peer.end()
    assert isinstance(error, ProtocolError)
    assert error.code == ErrorCode.BAD_PAYLOAD
    suspect, evidence, _ = await node.loss()
    assert (suspect, evidence) == ("worker-1", "corrupt")


async def test_no_thread_works_on_payloads_of_a_generation_that_has_ended():
    coding, begun, ended = Coding("on"), threading.Event(), threading.Event()
    results = []

    def decode():
        begun.set()
        assert ended.wait(60)
        results.append("decoded")

    late = [coding.run(decode) for _ in range(3)]
    await asyncio.to_thread(begun.wait)
    threading.Timer(0.01, ended.set).start()
    coding.close()
    assert len(results) == 2
    await asyncio.wait(late)
    assert len(results) == 2


def test_a_step_is_redone_in_the_same_memory_after_a_loss(collectives):
    memory = {rank: contributions(rank, 0) for rank in range(3)}

    def begin(collective):
        arrays = memory[collective.rank]
        collective.open_step(0, [memory_of(array) for array in arrays])
        for bucket in range(len(arrays)):
            collective.start(bucket)
        if collective.rank == 2:
            three.end(2, "killed")
            return
        with pytest.raises(RingBroken):
            collective.gather(b"")

    def redo(collective):
        arrays = memory[collective.rank]
        for array, fresh in zip(arrays, contributions(collective.rank, 0), strict=True):
            array[:] = fresh
        collective.open_step(0, [memory_of(array) for array in arrays])
        for bucket in range(len(arrays)):
            collective.start(bucket)
        for bucket in range(len(arrays)):
            collective.wait(bucket)
        return [array.tobytes() for array in arrays]

    three = collectives(3, chunk_bytes=CHUNK_BYTES, lossless=("on",))
    three.come_up()
    three.all(begin)
    redone, _ = run(collectives, 2, 0, ("on",), redo)
    plain, _ = run(collectives, 2, 0, ("off",), redo)
    assert redone == plain
