"""The ring in one process: the contract of `Collective`, rank by rank in threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest

from dtd.errors import RingBroken
from dtd.exchange.api import all_reduce
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.node import NodeCollective
from tests.unit.exchange.generation import memory_of

T = TypeVar("T")


def on_every_rank(ring: InProcessRing, size: int, work: Callable[[NodeCollective], T]) -> list[T]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ring.collective(rank)), range(size)))


def test_a_bucket_that_is_done_may_be_written_to_at_once() -> None:
    """A neighbour that is slow to start has our frames in its queue; they must not change."""
    ring = InProcessRing(2, chunk_bytes=8)
    firsts = [np.full(2, float(rank + 1)) for rank in range(2)]
    seconds = [np.full(200, float(rank + 1)) for rank in range(2)]
    ends = [ring.collective(rank) for rank in range(2)]
    for rank, end in enumerate(ends):
        end.open_step(0, [memory_of(firsts[rank]), memory_of(seconds[rank])])
    ends[0].start(0)
    ends[0].start(1)  # its chunks fill rank 1's scratch memory and block the queue
    ends[1].start(0)
    ends[0].wait(0)
    firsts[0][:] = -1.0
    ends[1].start(1)
    ends[1].wait(0)
    assert firsts[1].tolist() == [3.0, 3.0]
    for rank, end in enumerate(ends):
        end.wait(1)
        assert (seconds[rank] == 3.0).all()


# --- breaking --------------------------------------------------------------------------------


def _all_waiting(ring: InProcessRing, size: int) -> None:
    """Return once `size` threads wait for the ring."""
    latest_s = time.monotonic() + 10
    waiting = 0
    while waiting < size:
        assert time.monotonic() < latest_s, f"{waiting} of {size} wait"
        with ring.changed:
            waiting = len(ring.changed._waiters)


def test_breaking_the_ring_wakes_every_rank_that_waits() -> None:
    ring = InProcessRing(4)

    def wait_for_bucket(end: NodeCollective) -> None:
        end.open_step(0, [memory_of(np.ones(3))])
        end.start(0)
        end.wait(0)

    def wait_for_words(end: NodeCollective) -> None:
        end.open_step(0, [memory_of(np.ones(3))])
        end.gather(b"")

    with ThreadPoolExecutor(3) as pool:
        waiting: Sequence[Future[None]] = [
            pool.submit(wait_for_bucket, ring.collective(1)),
            pool.submit(wait_for_bucket, ring.collective(2)),
            pool.submit(wait_for_words, ring.collective(3)),
        ]
        _all_waiting(ring, 3)
        ring.break_ring("rank 0 died")
        for rank, future in enumerate(waiting, start=1):
            with pytest.raises(RingBroken, match=f"rank {rank}: rank 0 died"):
                future.result(timeout=10)


def test_a_peer_that_waits_too_long_breaks_the_ring_and_says_for_what() -> None:
    ring = InProcessRing(2, timeout_s=0.01)
    end = ring.collective(0)
    end.open_step(0, [memory_of(np.ones(4))])
    end.start(0)
    why = "rank 0 timed out: step 0: bucket 0 waits for the contribution of rank 1"
    with pytest.raises(RingBroken, match=why):
        end.wait(0)
    with pytest.raises(RingBroken, match=why):
        ring.collective(1).open_step(0, [])


def test_ranks_that_disagree_on_a_bucket_break_the_ring() -> None:
    ring = InProcessRing(2)

    def work(collective: NodeCollective) -> None:
        collective.open_step(0, [memory_of(np.ones(4 + collective.rank))])
        all_reduce(collective, 0)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, ring.collective(rank)) for rank in range(2)]:
            with pytest.raises(RingBroken, match=r"payload is \d+ bytes"):
                future.result(timeout=10)


# --- timing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_each_rank_sends_twice_the_bucket_less_its_share(world_size: int) -> None:
    ring = InProcessRing(world_size, chunk_bytes=96)
    elements = 40 * world_size

    def work(collective: NodeCollective) -> int:
        collective.open_step(0, [memory_of(np.ones(elements))])
        all_reduce(collective, 0)
        collective.gather(b"")
        return collective.close_step().sent_bytes

    whole = elements * 8
    assert (
        on_every_rank(ring, world_size, work)
        == [2 * (world_size - 1) * whole // world_size] * world_size
    )
