"""Buckets by a process group of torch, all else by the ring that it rests on.

Ranks are threads of this process; the ring is the one in memory, the group a real one of Gloo.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from dtd.errors import ConfigError, RingBroken
from dtd.exchange.group_backends import check_backend, group_of
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.process_group import ProcessGroupCollective
from dtd.strategy.codec.api import FlatLayout, TensorPlace, World
from dtd.strategy.codec.powersgd import PowerSGD
from dtd.strategy.coded_buckets import CodedBuckets
from dtd.strategy.wire_memory import bucket_memory, tensor_bytes
from tests.numerics.example_codecs import Gathering

PATIENCE_S = 30.0
"""A minute would be a time-out of Gloo's, half an hour its default."""

SIZES = (1, 3, 10_007, 70_000)


def gloo(ring, rank):
    return functools.partial(
        group_of,
        "gloo",
        rank=rank,
        world_size=len(ring._ranks),
        host="127.0.0.1",
        device="cpu",
        connect_timeout_s=PATIENCE_S,
    )


class Ranks:
    """A generation's ranks, a thread each."""

    def __init__(self, world_size):
        self.ring = InProcessRing(world_size, timeout_s=PATIENCE_S)
        self.collectives = [
            ProcessGroupCollective(self.ring.collective(rank), gloo(self.ring, rank))
            for rank in range(world_size)
        ]
        self._pool = ThreadPoolExecutor(world_size)

    def start(self, work) -> list[Future]:
        return [self._pool.submit(work, one) for one in self.collectives]

    def all(self, work):
        return [future.result(PATIENCE_S) for future in self.start(work)]

    def close(self):
        self.ring.break_ring("the test is over")
        self._pool.shutdown()


@pytest.fixture
def ranks():
    made = []

    def make(world_size):
        made.append(Ranks(world_size))
        return made[-1]

    yield make
    for one in made:
        one.close()


def contributions(rank, dtype=torch.float32):
    draw = torch.Generator().manual_seed(rank)
    return [torch.randn(size, generator=draw, dtype=torch.float64).to(dtype) for size in SIZES]


def ring_only(flat):
    """A bucket whose elements only its own `add` understands."""

    def add(start, stop, received):
        flat[start:stop] += torch.frombuffer(bytearray(received), dtype=flat.dtype)

    return replace(bucket_memory(flat), add=add, dtype="")


def summed(collective, flats, step=0):
    """All buckets of a step; handed over in reverse, which is not how they travel."""
    tail = torch.tensor([float(collective.rank), 1.0])
    memories = [*map(bucket_memory, flats), bucket_memory(torch.empty(0)), ring_only(tail)]
    collective.open_step(step, memories)
    for bucket in reversed(range(len(memories))):
        collective.start(bucket)
    for bucket in range(len(memories)):
        collective.wait(bucket)
    words = collective.gather(bytes([collective.rank]))
    return flats, tail, words, collective.close_step()


@pytest.mark.parametrize("codec", [PowerSGD(rank=2), Gathering()])
def test_a_codecs_sums_travel_by_the_group_and_its_gathers_by_the_ring(ranks, codec):
    """Its stages depend on one another, and are handed over by its own thread."""
    layout = FlatLayout(
        dtype=torch.float32, tensors=(TensorPlace(start=0, stop=1600, shape=(40, 40)),)
    )

    def work(collective):
        buckets = CodedBuckets([layout] * 3, torch.device("cpu"), codec)
        buckets.regroup(World(rank=collective.rank, size=collective.world_size))
        collective.open_step(0, buckets.exchanges(0))
        buckets.begin(1.0)
        for index, flat in enumerate(buckets.flats):
            flat.fill_(1.0 + index + collective.rank)
            buckets.send(index, collective.start)
        for index in range(3):
            buckets.receive(index, collective.wait)
        buckets.close()
        collective.gather(b"")
        return [flat.tolist() for flat in buckets.flats]

    one, other = ranks(2).all(work)
    assert one == other
    if isinstance(codec, PowerSGD):
        for index, values in enumerate(one):
            assert values == pytest.approx([3.0 + 2 * index] * 1600, rel=1e-5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_end_with_the_same_bytes(ranks, world_size):
    def work(collective):
        return summed(collective, contributions(collective.rank))

    results = ranks(world_size).all(work)
    expected = [
        torch.stack(parts).double().sum(0)
        for parts in zip(*(contributions(rank) for rank in range(world_size)), strict=True)
    ]
    for flats, tail, words, timing in results:
        assert words == [bytes([rank]) for rank in range(world_size)]
        assert tail.tolist() == [sum(range(world_size)), world_size]
        for flat, first, right in zip(flats, results[0][0], expected, strict=True):
            assert tensor_bytes(flat) == tensor_bytes(first)
            torch.testing.assert_close(flat.double(), right, rtol=1e-5, atol=1e-5)
        assert timing.busy_s > 0
        assert (timing.sent_bytes > 4 * sum(SIZES) / 2) == (world_size > 1)


def test_a_group_that_fails_ends_a_ring_that_stands(ranks, monkeypatch):
    monkeypatch.setattr("dtd.exchange.process_group.RING_GRACE_S", 0.01)
    made = ranks(2)

    def work(collective):
        summed(collective, contributions(collective.rank))
        if collective.rank == 1:
            collective._group.end(None)
            return
        again = contributions(0)
        collective.open_step(1, list(map(bucket_memory, again)))
        collective.start(0)
        with pytest.raises(RingBroken, match="process group has failed"):
            collective.wait(0)
        with pytest.raises(RingBroken):
            collective.check()

    made.all(work)
    assert "process group has failed" in made.ring.broken


def test_a_backend_that_torch_lacks_is_named(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_gloo_available", lambda: False)
    with pytest.raises(ConfigError, match="gloo, and this worker's torch was built without it"):
        check_backend("gloo", "cpu")
