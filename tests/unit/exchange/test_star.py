"""Ring and star together, as a training thread sees them: in one process, and over TCP.

Trainers scatter gradients to servers, these update what they own, and all gather the result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dtd.address import Address
from dtd.engine.shards import Division
from dtd.errors import CheckpointError, LocalProtocolError, RingBroken
from dtd.exchange.api import BucketMemory
from dtd.exchange.collective import Bridge, RingCollective
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.schedule.chunks import Operation
from dtd.net.data_server import DataServer
from dtd.observe.profile.spans import BUCKET, STAR_BUCKET, STAR_CHUNK, WAIT, RingSpans, SpanLog
from dtd.wire import messages as m

PATIENCE_S = 60.0
CHUNK_BYTES = 64
SIZES = (0, 1, 7, 1_001)


def memory_of(array, operation=Operation.SUM, copies=0, bounds=()):
    def add(start, stop, received):
        array[start:stop] += np.frombuffer(received, dtype=array.dtype)

    return BucketMemory(
        view=memoryview(array.view(np.uint8)),
        item_bytes=array.itemsize,
        add=add,
        dtype=str(array.dtype),
        operation=operation,
        copies=copies,
        bounds=bounds,
    )


def gradient(rank, size, step):
    return np.random.default_rng((rank, size, step)).standard_normal(size, dtype=np.float32)


def summed(trainers, size, step):
    """The sum in rank order, which is what makes it the same to the bit."""
    total = gradient(0, size, step)
    for rank in range(1, trainers):
        total = total + gradient(rank, size, step)
    return total


def on_every_rank(ring, size, work):
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ring.collective(rank)), range(size)))


class OverTcp:
    """The collectives of all ranks; their loop runs in one other thread."""

    def __init__(self, loop_thread, world_size, servers):
        self._thread = loop_thread
        self.ports, self.rings = loop_thread.run(self._make(world_size, servers))
        for ring in self.rings:
            loop_thread.call(ring.endpoint.connect)
        with ThreadPoolExecutor(world_size) as pool:
            list(pool.map(lambda ring: ring.wait_up(), self.rings))

    async def _make(self, world_size, servers):
        def no_checkpoint(name):
            raise CheckpointError(f"{name} is not here")

        ports = [DataServer(f"worker-{rank}", no_checkpoint) for rank in range(world_size)]
        bound = [await port.listen(Address("127.0.0.1", 0)) for port in ports]
        roster = tuple(
            m.Member(
                name=f"worker-{rank}",
                incarnation=1,
                host=at.host,
                port=at.port,
                holds=True,
                serves=rank >= world_size - servers,
            )
            for rank, at in enumerate(bound)
        )
        bridge = Bridge(self._thread.loop)
        return ports, [
            RingCollective(
                bridge,
                m.Assign(
                    job="job-1",
                    generation=3,
                    roster_id=9,
                    rank=rank,
                    roster=roster,
                    held_generation=0,
                    held_step=0,
                    secret=b"s" * 32,
                ),
                port,
                chunk_bytes=CHUNK_BYTES,
                beat_interval_s=2.0,
                silence_s=PATIENCE_S,
                agreed=lambda: None,
            )
            for rank, port in enumerate(ports)
        ]

    def collective(self, rank):
        return self.rings[rank]

    def explain(self, rank):
        return self._thread.call(self.rings[rank].explain)

    def break_ring(self, why):
        self._thread.call(self.rings[0].endpoint.end, why)

    def close(self):
        for ring, port in zip(self.rings, self.ports, strict=True):
            self._thread.call(ring.endpoint.end, "the test is over")
            self._thread.call(port.close)


@pytest.fixture
def over_tcp(loop_thread):
    made = []

    def make(world_size, servers):
        made.append(OverTcp(loop_thread, world_size, servers))
        return made[-1]

    yield make
    for one in made:
        one.close()


def slices(division, rank, size):
    count = division.segments
    return [slice(size * i // count, size * (i + 1) // count) for i in division.held(rank)]


def step_of(collective, division, step, trainers):
    """One step of sharded training: scatter, update of what is held, gather; and a loss."""
    rank, serves = collective.rank, collective.rank >= trainers
    copies = division.mirrors
    loss = np.array([rank], dtype=np.float64)
    gradients = [
        np.full(size, np.nan, dtype=np.float32) if serves else gradient(rank, size, step)
        for size in SIZES
    ]
    weights = [np.full(size, np.nan, dtype=np.float32) for size in SIZES]
    collective.open_step(
        step,
        [memory_of(loss)]
        + [memory_of(one, Operation.REDUCE_SCATTER, copies) for one in gradients]
        + [memory_of(one, Operation.ALL_GATHER, copies) for one in weights],
    )
    count = len(SIZES)
    for bucket in reversed(range(1 + count)):
        collective.start(bucket)
    for bucket in range(1 + count):
        collective.wait(bucket)
    for index, size in enumerate(SIZES):
        for held in slices(division, rank, size):
            weights[index][held] = 2 * gradients[index][held]
        collective.start(1 + count + index)
    for index in range(count):
        collective.wait(1 + count + index)
    words = collective.gather(bytes([rank]))
    return loss, weights, words, collective.close_step()


@pytest.mark.parametrize("trainers", [1, 2, 3])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("mirrors", [0, 1, 5])
def test_servers_sum_and_return_what_trainers_push(trainers, servers, mirrors):
    world = trainers + servers
    ring = InProcessRing(world, chunk_bytes=CHUNK_BYTES, timeout_s=PATIENCE_S, servers=servers)
    division = Division(world_size=world, mirrors=mirrors, servers=servers)

    check_training(ring, division, trainers)


@pytest.mark.parametrize(("trainers", "servers", "mirrors"), [(2, 2, 1), (1, 1, 0), (3, 3, 1)])
def test_the_same_over_tcp(over_tcp, trainers, servers, mirrors):
    world = trainers + servers
    made = over_tcp(world, servers)
    check_training(made, Division(world_size=world, mirrors=mirrors, servers=servers), trainers)
    for rank in range(world):
        assert made.explain(rank).endswith("waits for nothing")


def test_a_profile_shows_the_star_and_the_waits_for_it(over_tcp):
    made = over_tcp(3, 1)
    waits, spans = SpanLog(), RingSpans()
    made.collective(0).record(waits, spans)
    check_training(made, Division(world_size=3, mirrors=0, servers=1), 2)
    kinds = [span.kind for span in spans.log.spans]
    assert kinds.count(STAR_BUCKET) == 3 * 2 * len(SIZES)
    assert kinds.count(BUCKET) == 3, "the sum of the losses"
    pulled = [span.detail for span in spans.log.spans if span.kind == STAR_CHUNK]
    assert {source for _, _, source in pulled} == {2}, "a trainer hears the server alone"
    assert {span.kind for span in waits.spans} == {WAIT}
    assert len(waits.spans) >= 3 * 2 * len(SIZES)


def check_training(ring, division, trainers):
    world = division.world_size

    def work(collective):
        return [step_of(collective, division, step, trainers) for step in range(3)]

    size_bytes = 4 * sum(SIZES)
    for rank, steps in enumerate(on_every_rank(ring, world, work)):
        for step, (loss, weights, words, timing) in enumerate(steps):
            assert loss.tolist() == [sum(range(world))]
            assert words == [bytes([one]) for one in range(world)]
            for size, given in zip(SIZES, weights, strict=True):
                assert given.tobytes() == (2 * summed(trainers, size, step)).tobytes()
            assert timing.exposed_s >= 0
            assert timing.busy_s > 0
            if rank < trainers:
                assert size_bytes <= timing.sent_bytes <= size_bytes + 8 * 2 * world


def test_buckets_with_bounds_stay_on_the_ring():
    ring = InProcessRing(3, timeout_s=PATIENCE_S, servers=1)

    def work(collective):
        array = np.full(6, 1 << collective.rank, dtype=np.int64)
        memory = memory_of(array, Operation.REDUCE_SCATTER, bounds=(0, 1, 2, 6))
        collective.open_step(0, [memory])
        collective.start(0)
        collective.wait(0)
        return array[(0, 1, 2)[(collective.rank + 1) % 3]]

    assert on_every_rank(ring, 3, work) == [7, 7, 7]


def test_buckets_can_be_added_to_a_step():
    ring = InProcessRing(3, timeout_s=PATIENCE_S, servers=1)

    def work(collective):
        arrays = [np.full(2, collective.rank, dtype=np.int64) for _ in range(3)]
        collective.open_step(0, [memory_of(arrays[0])], 2)
        collective.start(0)
        collective.wait(0)
        collective.add([memory_of(arrays[1], Operation.ALL_GATHER), memory_of(arrays[2])])
        finished = []
        collective.start(1, lambda: finished.append(1))
        collective.start(2, lambda: finished.append(2))
        collective.wait(1)
        collective.wait(2)
        collective.gather(b"")
        assert sorted(finished) == [1, 2]
        return [array.tolist() for array in arrays]

    assert on_every_rank(ring, 3, work) == [[[3, 3], [2, 2], [3, 3]]] * 3


def test_the_end_of_the_ring_is_the_end_of_the_star():
    ring = InProcessRing(2, timeout_s=PATIENCE_S, servers=1)
    star = ring.collective(0)
    told = []
    star.on_broken(lambda: told.append(True))
    array = np.zeros(1)
    star.open_step(0, [memory_of(array, Operation.ALL_GATHER)])
    star.start(0)
    with star.waiting():
        star.give_up("enough")
    assert told == [True]
    for call in (star.check, lambda: star.wait(0), lambda: star.gather(b"")):
        with pytest.raises(RingBroken, match="enough"):
            call()
    assert (star.rank, star.world_size, star.generation) == (0, 2, 1)


def test_a_rank_that_waits_in_vain_says_for_what():
    ring = InProcessRing(2, timeout_s=0.01, servers=1)
    star = ring.collective(0)
    star.open_step(0, [memory_of(np.zeros(1), Operation.ALL_GATHER)])
    star.start(0)
    with pytest.raises(RingBroken, match="pull hop 0 chunk 0 of 1 from rank 1"):
        star.wait(0)


def test_a_refused_frame_breaks_the_ring():
    ring = InProcessRing(2, timeout_s=PATIENCE_S, servers=1)
    trainer, server = ring.collective(0), ring.collective(1)
    server.open_step(0, [memory_of(np.zeros(1), Operation.REDUCE_SCATTER)])
    server.start(0)
    trainer.open_step(0, [memory_of(np.zeros(2), Operation.REDUCE_SCATTER)])
    trainer.start(0)
    with pytest.raises(RingBroken, match="payload is 16 bytes, not 8"):
        trainer.check()


def test_without_servers_there_is_no_star():
    with pytest.raises(LocalProtocolError, match="1 ranks has 1 servers"):
        InProcessRing(1, servers=1)
