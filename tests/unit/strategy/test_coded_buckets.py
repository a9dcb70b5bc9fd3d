"""Buckets that travel as a codec says: what travels in which order, and what is a rank's own."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dtd.exchange.in_process import InProcessRing
from dtd.strategy.codec.api import FlatLayout, ResidualHandoff, TensorPlace, World
from dtd.strategy.coded_buckets import CodedBuckets
from tests.numerics.example_codecs import Gathering, Rounding

CPU = torch.device("cpu")


def flat_of(elements: int, dtype: torch.dtype = torch.float32) -> FlatLayout:
    return FlatLayout(
        dtype=dtype, tensors=(TensorPlace(start=0, stop=elements, shape=(elements,)),)
    )


@pytest.fixture
def made():
    buckets: list[CodedBuckets] = []

    def make(codec, *layouts: FlatLayout, world: World | None = None) -> CodedBuckets:
        one = CodedBuckets(layouts, CPU, codec)
        one.regroup(world or World())
        buckets.append(one)
        return one

    yield make
    for one in buckets:
        one.close()


def stepped(buckets: CodedBuckets, *, step: int = 0, scale: float = 1.0, **fill: float) -> float:
    """A step of one rank alone that is neither committed nor rolled back; what comes back."""
    buckets.exchanges(step)
    buckets.begin(scale)
    buckets.flats[0].fill_(fill["value"])
    buckets.send(0, lambda _, done: done())
    buckets.receive(0, lambda _: None)
    buckets.settle()
    return buckets.flats[0][0].item()


EXACT, LOST = 1.0, 2.0**-9
"""A gradient, and a quarter of the unit in its last place, which bfloat16 rounds away."""


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("chunk_bytes", [16, 1 << 20])
def test_dependent_stages_and_gathers_end_alike_on_all_ranks(made, world_size, chunk_bytes) -> None:
    """The buckets are sent while those before them are under way, last one first on one rank."""
    ring = InProcessRing(world_size, chunk_bytes=chunk_bytes, timeout_s=20)
    codecs = [Gathering() for _ in range(world_size)]
    elements = (5, 17, 2)

    def work(rank: int) -> list[list[float]]:
        world = World(rank=rank, size=world_size)
        buckets = made(codecs[rank], *map(flat_of, elements), world=world)
        collective, results = ring.collective(rank), []
        for step in range(3):
            collective.open_step(step, buckets.exchanges(step))
            buckets.begin(1.0)
            for index in sorted(range(3), reverse=rank == 1):
                buckets.flats[index].fill_(rank + index + step)
                buckets.send(index, collective.start)
            for index in range(3):
                buckets.receive(index, collective.wait)
            results += [flat.tolist() for flat in buckets.flats]
            buckets.commit()
            collective.gather(b"")
            collective.close_step()
        return results

    with ThreadPoolExecutor(world_size) as pool:
        done = list(pool.map(work, range(world_size)))
    assert all(one == done[0] for one in done)
    expected = []
    for step in range(3):
        for index, count in enumerate(elements):
            total = sum(rank + index + step for rank in range(world_size))
            expected.append([float(total * count * total)] * count)
    assert done[0] == expected


def test_what_a_step_that_was_given_up_has_left_under_way_changes_nothing(made) -> None:
    codec = Gathering()
    buckets = made(codec, flat_of(2))
    late: queue.SimpleQueue = queue.SimpleQueue()
    buckets.exchanges(0)
    buckets.begin(1.0)
    buckets.send(0, lambda position, done: late.put(done))
    done = late.get(timeout=20)
    buckets.rollback()
    seen = list(codec.calls)
    assert seen == [("encode", 0, 0)]
    done()
    buckets.rollback()
    assert codec.calls == seen


@pytest.mark.parametrize("leavers", [{2}, {0, 3}, {0, 1, 2, 3}])
def test_those_that_stay_share_what_leavers_have_not_sent(made, leavers) -> None:
    ring, scale = InProcessRing(4, timeout_s=20), 8.0
    ranks = [made(Rounding(), flat_of(3), flat_of(1, torch.float64)) for _ in range(4)]
    for rank, buckets in enumerate(ranks):
        stepped(buckets, value=scale * (EXACT + LOST * (rank - 1) / 2), scale=scale)
        buckets.commit()
    before = [buckets.unsent(1)[0].unscaled().clone() for buckets in ranks]
    assert [one[0].item() / LOST for one in before] == [-0.5, 0, 0.5, 1]

    def work(rank: int) -> None:
        handoff = ResidualHandoff(ranks[rank].unsent(1), leaves=rank in leavers)
        collective = ring.collective(rank)
        collective.open_step(0, handoff.memories)
        collective.start(0)
        collective.wait(0)
        handoff.finish()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    handed = sum(before[rank] for rank in leavers)
    for rank, buckets in enumerate(ranks):
        (after,) = buckets.unsent(1)
        share = handed / (4 - len(leavers)) + before[rank] if rank not in leavers else 0 * handed
        assert after.unscaled().tolist() == share.tolist()
        assert buckets.unsent(0) == []
