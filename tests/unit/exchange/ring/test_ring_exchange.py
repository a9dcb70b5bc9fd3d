"""A bucket that goes round whole: who sends what when, what is refused, what it waits for."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.ring.chunks import BucketShape
from dtd.exchange.ring.events import (
    BucketDone,
    BucketStarted,
    ChunkReceived,
    Effect,
    InContributions,
    KeepOwn,
    Resume,
    SendContribution,
    StepOpened,
    SumContributions,
)
from dtd.exchange.ring.machine import Ring
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase

ITEM_BYTES = 4
SIZE_BYTES = 20


def make(rank: int = 0, world_size: int = 4, *, buckets: int = 1) -> Ring:
    ring = Ring(
        rank=rank,
        world_size=world_size,
        generation=5,
        first_step=0,
        chunk_bytes=64,
        scratch_slots=0,
    )
    shape = BucketShape(elements=SIZE_BYTES // ITEM_BYTES, item_bytes=ITEM_BYTES)
    ring.handle(StepOpened(step=0, buckets=(shape,) * buckets), 0.0)
    return ring


def incoming(ring: Ring, hop: int = 0, **changed: int) -> Chunk:
    source = (ring.rank - 1) % ring.world_size
    values = {"generation": 5, "step": 0, "phase": Phase.EXCHANGE, "bucket": 0, "chunk": 0}
    return Chunk(**(values | {"hop": hop, "source": source} | changed))


def start(ring: Ring, bucket: int = 0) -> list[Effect]:
    return ring.handle(BucketStarted(bucket=bucket), 0.0)


def deliver(ring: Ring, hop: int) -> list[Effect]:
    chunk = incoming(ring, hop)
    assert isinstance(ring.place(chunk, SIZE_BYTES), InContributions)
    ring.check_invariants()
    effects = ring.handle(ChunkReceived(chunk=chunk, slot=None), 0.0)
    ring.check_invariants()
    return effects


def sent(effects: list[Effect]) -> list[tuple[int, int]]:
    """(hop, origin) of what goes out."""
    return [(one.chunk.hop, one.origin) for one in effects if isinstance(one, SendContribution)]


def refusal(ring: Ring, chunk: Chunk, payload_bytes: int = SIZE_BYTES) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        ring.place(chunk, payload_bytes)
    ring.check_invariants()
    return caught.value


@pytest.mark.parametrize("world_size", range(2, 9))
def test_every_contribution_goes_everywhere_once(world_size: int) -> None:
    for rank in range(world_size):
        ring = make(rank, world_size)
        assert sent(start(ring)) == [(0, rank)]
        for hop in range(world_size - 1):
            origin = (rank - 1 - hop) % world_size
            chunk = incoming(ring, hop)
            assert ring.place(chunk, SIZE_BYTES) == InContributions(bucket=0, origin=origin)
            effects = ring.handle(ChunkReceived(chunk=chunk, slot=None), 0.0)
            last = hop == world_size - 2
            assert sent(effects) == ([] if last else [(hop + 1, origin)])
            done = [SumContributions(bucket=0), BucketDone(bucket=0)]
            assert effects[-2:] == done if last else len(effects) == 1
        assert ring.explain() == "step 0: waits for nothing"


def test_ours_is_kept_before_it_is_sent() -> None:
    ring = make(rank=2)
    header = Chunk(generation=5, step=0, phase=Phase.EXCHANGE, hop=0, bucket=0, chunk=0, source=2)
    assert start(ring) == [KeepOwn(bucket=0), SendContribution(chunk=header, origin=2)]


def test_the_contributions_of_others_go_on_before_ours_is_ready() -> None:
    ring = make(rank=0, world_size=3)
    assert sent(deliver(ring, 0)) == [(1, 2)]
    assert deliver(ring, 1) == []
    assert ring.explain() == "step 0: bucket 0 waits for its own gradients"
    effects = start(ring)
    assert sent(effects) == [(0, 0)]
    assert effects[-2:] == [SumContributions(bucket=0), BucketDone(bucket=0)]


def test_hops_may_come_in_any_order() -> None:
    ring = make(rank=0, world_size=4)
    assert sent(deliver(ring, 1)) == [(2, 2)]
    start(ring)
    assert deliver(ring, 2) == []
    assert deliver(ring, 0)[-1] == BucketDone(bucket=0)


def test_buckets_start_in_index_order() -> None:
    ring = make(buckets=2)
    assert start(ring, 1) == []
    effects = start(ring, 0)
    assert [one.chunk.bucket for one in effects if isinstance(one, SendContribution)] == [0, 1]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"phase": Phase.REDUCE_SCATTER}, "no such phase: the bucket travels whole"),
        ({"phase": Phase.ALL_GATHER}, "no such phase"),
        ({"phase": 3}, "no such phase"),
        ({"hop": 3}, "no such hop"),
        ({"chunk": 1}, "one chunk, number 0, once"),
        ({"bucket": 1}, "the step has 1 buckets"),
        ({"step": 2}, "frame of step 2"),
    ],
)
def test_what_cannot_come_is_refused(changed: dict[str, int], why: str) -> None:
    ring = make()
    start(ring)
    error = refusal(ring, incoming(ring, **changed))
    assert error.code == ErrorCode.UNEXPECTED_CHUNK
    assert why in error.message
    assert sent(deliver(ring, 0)) == [(1, 3)]  # nothing was counted


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"generation": 4}, ErrorCode.STALE_GENERATION),
        ({"source": 1}, ErrorCode.WRONG_SOURCE),
    ],
)
def test_frames_of_elsewhere_are_refused(changed: dict[str, int], code: ErrorCode) -> None:
    ring = make()
    assert refusal(ring, incoming(ring, **changed)).code == code


def test_a_contribution_that_comes_again_is_refused() -> None:
    ring = make()
    deliver(ring, 0)
    assert "once" in refusal(ring, incoming(ring, 0)).message
    deliver(ring, 1)


@pytest.mark.parametrize("payload_bytes", [0, SIZE_BYTES - ITEM_BYTES, SIZE_BYTES + ITEM_BYTES])
def test_a_contribution_of_another_size_is_refused(payload_bytes: int) -> None:
    ring = make()
    error = refusal(ring, incoming(ring, 0), payload_bytes)
    assert error.code == ErrorCode.BAD_PAYLOAD
    assert f"payload is {payload_bytes} bytes, not {SIZE_BYTES}" in error.message
    deliver(ring, 0)


def test_a_contribution_to_the_next_step_is_held_until_the_step_is_open() -> None:
    ring = make(world_size=2)
    start(ring)
    deliver(ring, 0)
    early = incoming(ring, 0, step=1)
    assert ring.place(early, SIZE_BYTES) is HOLD
    shape = BucketShape(elements=5, item_bytes=ITEM_BYTES)
    assert ring.handle(StepOpened(step=1, buckets=(shape,)), 0.0) == [Resume()]
    assert ring.place(early, SIZE_BYTES) == InContributions(bucket=0, origin=1)


def test_a_step_is_not_over_while_ours_is_missing() -> None:
    ring = make(world_size=2)
    deliver(ring, 0)
    with pytest.raises(LocalProtocolError, match="waits for its own gradients"):
        ring.handle(StepOpened(step=1, buckets=()), 0.0)


def test_it_says_whose_contribution_is_missing() -> None:
    ring = make(rank=0)
    start(ring)
    assert ring.explain() == "step 0: bucket 0 waits for the contribution of rank 1, 2, 3"
    deliver(ring, 1)
    assert ring.explain() == "step 0: bucket 0 waits for the contribution of rank 1, 3"
