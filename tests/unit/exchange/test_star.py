"""Ring and star together, as a training thread sees them: in one process, and over TCP.

Trainers scatter gradients to servers, these update what they own, and all gather the result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dtd.engine.shards import Division
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.schedule.chunks import Operation
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
