"""Ring and star together, as a training thread sees them: in one process, and over TCP.

Trainers scatter gradients to servers, these update what they own, and all gather the result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dtd.engine.shards import Division
from dtd.errors import RingBroken
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.schedule.chunks import Operation
from dtd.observe.profile.spans import BUCKET, STAR_BUCKET, STAR_CHUNK, WAIT, RingSpans, SpanLog
from tests.unit.exchange.generation import PATIENCE_S, memory_of

SIZES = (0, 1, 7, 1_001)


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
        + [memory_of(one, Operation.REDUCE_SCATTER, copies=copies) for one in gradients]
        + [memory_of(one, Operation.ALL_GATHER, copies=copies) for one in weights],
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
    ring = InProcessRing(world, chunk_bytes=64, timeout_s=PATIENCE_S, servers=servers)
    division = Division(world_size=world, mirrors=mirrors, servers=servers)

    check_training(ring, division, trainers)


@pytest.mark.parametrize(("trainers", "servers", "mirrors"), [(2, 2, 1), (1, 1, 0), (3, 3, 1)])
def test_the_same_collectives(collectives, trainers, servers, mirrors):
    world = trainers + servers
    made = collectives(world, servers)
    made.come_up()
    check_training(made, Division(world_size=world, mirrors=mirrors, servers=servers), trainers)
    for rank in range(world):
        assert made.explain(rank).endswith("waits for nothing")


def test_a_profile_shows_the_star_and_the_waits_for_it(collectives):
    made = collectives(3, 1)
    made.come_up()
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
