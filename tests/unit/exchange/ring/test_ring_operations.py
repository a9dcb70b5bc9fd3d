"""One ring machine alone: halves of a sum, and buckets that are added to a step."""

from __future__ import annotations

import pytest

from dtd.errors import LocalProtocolError, ProtocolError
from dtd.exchange.ring.chunks import BucketShape, Operation, cut
from dtd.exchange.ring.events import (
    BucketDone,
    BucketsAdded,
    ChunkReceived,
    CopyLent,
    Effect,
    InBucket,
    InScratch,
    Reduce,
    Resume,
    SendChunk,
    SendContribution,
    SendTaken,
    StepOpened,
)
from dtd.exchange.ring.machine import Ring
from dtd.wire.frames import HOLD
from tests.unit.exchange.ring.one_ring import (
    CHUNK_BYTES,
    GATHER,
    ITEM_BYTES,
    LOAN,
    SCATTER,
    deliver,
    incoming,
    lent_refusal,
    make,
    open_step,
    refusal,
    start,
    takes,
)


def shape_of(elements: int, operation: Operation, **parameters: object) -> BucketShape:
    return BucketShape(elements=elements, item_bytes=ITEM_BYTES, operation=operation, **parameters)


def open_with(
    ring: Ring, *shapes: BucketShape, may_add: int = 0, loan: int = 0, lent: tuple[int, ...] = ()
) -> list[Effect]:
    event = StepOpened(step=0, buckets=shapes, may_add=may_add, loan=loan, lent=frozenset(lent))
    return ring.handle(event, 0.0)


def sent(effects: list[Effect]) -> list[tuple[int, int, int, int]]:
    """(phase, hop, first element, last) of the chunks that go out."""
    return [
        (effect.chunk.phase, effect.chunk.hop, effect.start, effect.stop)
        for effect in effects
        if isinstance(effect, SendChunk)
    ]


def test_a_reduce_scatter_ends_with_the_sum_of_the_own_segment() -> None:
    ring = make(rank=0, world_size=3)
    open_with(ring, shape_of(6, Operation.REDUCE_SCATTER))
    assert sent(start(ring)) == [(SCATTER, 0, 0, 2)]
    assert sent(deliver(ring, incoming(ring, SCATTER, 0), 6)) == [(SCATTER, 1, 4, 6)]
    effects = deliver(ring, incoming(ring, SCATTER, 1), 6)
    assert isinstance(effects[0], Reduce)
    segments = cut(shape_of(6, Operation.SUM), world_size=3, chunk_bytes=CHUNK_BYTES)
    assert (effects[0].start, effects[0].stop) == segments.own(0) == (2, 4)
    assert effects[1:] == [BucketDone(bucket=0)]
    with pytest.raises(ProtocolError, match="no such hop"):
        ring.place(incoming(ring, GATHER, 0), 8)


def test_an_all_gather_waits_on_the_link_until_the_bucket_has_started() -> None:
    ring = make(rank=0, world_size=3)
    open_with(ring, shape_of(6, Operation.ALL_GATHER))
    assert ring.place(incoming(ring, GATHER, 0), 8) is HOLD
    effects = start(ring)
    assert sent(effects) == [(GATHER, 0, 2, 4)]
    assert effects[-1] == Resume()
    assert sent(deliver(ring, incoming(ring, GATHER, 0), 6)) == [(GATHER, 1, 0, 2)]
    assert ring.explain() == (
        "step 0: bucket 0 waits for all_gather hop 1 chunk 0 of 1 from rank 2"
    )
    assert deliver(ring, incoming(ring, GATHER, 1), 6) == [BucketDone(bucket=0)]
    with pytest.raises(ProtocolError, match="no such hop"):
        ring.place(incoming(ring, SCATTER, 0), 8)


def test_the_sums_of_a_reduce_scatter_travel_to_as_many_ranks_as_there_are_copies() -> None:
    ring = make(rank=0, world_size=4, slots=1)
    open_with(ring, shape_of(4, Operation.REDUCE_SCATTER, copies=1))
    early = incoming(ring, GATHER, 0)
    assert "this rank's part is missing" in refusal(ring, early, 4).message
    start(ring)
    for hop in range(2):
        assert sent(deliver(ring, incoming(ring, SCATTER, hop), 4))[0][:2] == (SCATTER, hop + 1)
    assert ring.place(incoming(ring, GATHER, 0), 4) == InBucket(bucket=0, start=0, stop=1)
    ring.handle(ChunkReceived(chunk=incoming(ring, GATHER, 0), slot=None), 0.0)
    assert ring.explain() == (
        "step 0: bucket 0 waits for reduce_scatter hop 2 chunk 0 of 1 from rank 3"
    )
    effects = deliver(ring, incoming(ring, SCATTER, 2), 4)
    assert sent(effects) == [(GATHER, 0, 1, 2)]
    assert effects[-1] == BucketDone(bucket=0)
    assert "no such hop" in refusal(ring, incoming(ring, GATHER, 1), 4).message


def test_an_all_gather_begins_with_what_was_copied_furthest() -> None:
    ring = make(rank=0, world_size=4)
    open_with(ring, shape_of(4, Operation.ALL_GATHER, copies=1))
    assert ring.place(incoming(ring, GATHER, 1), 4) is HOLD
    assert sent(start(ring)) == [(GATHER, 1, 0, 1)]
    assert "no such hop" in refusal(ring, incoming(ring, GATHER, 0), 4).message
    assert "no such hop" in refusal(ring, incoming(ring, SCATTER, 1), 4).message
    assert sent(deliver(ring, incoming(ring, GATHER, 1), 4)) == [(GATHER, 2, 3, 4)]
    assert ring.explain() == (
        "step 0: bucket 0 waits for all_gather hop 2 chunk 0 of 1 from rank 3"
    )
    assert deliver(ring, incoming(ring, GATHER, 2), 4) == [BucketDone(bucket=0)]


def test_an_all_gather_that_stops_early_forwards_nothing_after_its_last_hop() -> None:
    ring = make(rank=0, world_size=4)
    open_with(ring, shape_of(6, Operation.ALL_GATHER, hops=1, bounds=(0, 1, 6, 6, 6)))
    assert sent(start(ring)) == [(GATHER, 0, 1, 3), (GATHER, 0, 3, 5), (GATHER, 0, 5, 6)]
    assert deliver(ring, incoming(ring, GATHER, 0), 4) == [BucketDone(bucket=0)]
    assert "no such hop" in refusal(ring, incoming(ring, GATHER, 1), 0).message


@pytest.mark.parametrize(
    "shape",
    [
        shape_of(6, Operation.ALL_GATHER, copies=2),
        shape_of(6, Operation.ALL_GATHER, hops=0),
        shape_of(6, Operation.ALL_GATHER, copies=1, hops=1),
    ],
)
def test_an_all_gather_without_hops_is_done_at_once(shape: BucketShape) -> None:
    ring = make(rank=0, world_size=3)
    open_with(ring, shape, loan=LOAN, lent=(0,))
    assert "no such hop" in refusal(ring, incoming(ring, GATHER, 1), 8).message
    assert start(ring) == [BucketDone(bucket=0)]
    assert "which is not lent" in lent_refusal(ring).message
    open_step(ring, step=1)


def test_copies_and_gathers_are_read_from_memory_that_is_lent() -> None:
    ring = make(rank=0, world_size=3)
    scatter = shape_of(3, Operation.REDUCE_SCATTER, copies=1)
    gather = shape_of(3, Operation.ALL_GATHER, copies=1)
    open_with(ring, scatter, gather, loan=LOAN, lent=(0, 1))
    start(ring, 0)
    start(ring, 1)
    for hop in range(2):
        deliver(ring, incoming(ring, SCATTER, hop, loan=LOAN), 3)
    copied = deliver(ring, incoming(ring, GATHER, 0, loan=LOAN), 3)
    assert [type(effect) for effect in copied] == [CopyLent, SendTaken]
    assert (copied[0].start, copied[0].stop) == (0, 1)
    assert takes(ring) == [BucketDone(bucket=0)]
    gathered = deliver(ring, incoming(ring, GATHER, 1, bucket=1, loan=LOAN), 3)
    assert [type(effect) for effect in gathered] == [CopyLent, SendTaken]
    assert (gathered[0].start, gathered[0].stop) == (2, 3)
    assert takes(ring, 1) == [BucketDone(bucket=1)]


@pytest.mark.parametrize("operation", Operation)
def test_one_rank_alone_has_done_all_operations(operation: Operation) -> None:
    ring = make(rank=0, world_size=1)
    open_with(ring, shape_of(6, operation))
    assert start(ring) == [BucketDone(bucket=0)]


def test_halves_go_in_segments_however_small() -> None:
    ring = make(rank=0, world_size=2, chunk_bytes=1024)
    open_with(ring, shape_of(2, Operation.MAXIMUM), shape_of(2, Operation.REDUCE_SCATTER))
    assert any(isinstance(effect, SendContribution) for effect in start(ring, 0))
    assert sent(start(ring, 1)) == [(SCATTER, 0, 0, 1)]


def test_buckets_are_added_while_a_step_is_open() -> None:
    ring = make(rank=0, world_size=3)
    open_with(ring, shape_of(6, Operation.REDUCE_SCATTER), may_add=2)
    early = incoming(ring, SCATTER, 0, bucket=1)
    assert ring.place(early, 8) is HOLD
    added = BucketsAdded(buckets=(shape_of(6, Operation.SUM),))
    assert ring.handle(added, 0.0) == [Resume()]
    assert isinstance(ring.place(early, 8), InScratch)
    assert ring.place(incoming(ring, SCATTER, 0, bucket=2), 8) is HOLD
    with pytest.raises(ProtocolError, match="the step has 2 buckets"):
        ring.place(incoming(ring, SCATTER, 0, bucket=3), 8)
    with pytest.raises(LocalProtocolError, match="2 buckets added to step 0, which takes 1 more"):
        ring.handle(BucketsAdded(buckets=added.buckets * 2), 0.0)


def test_a_step_is_not_over_while_an_added_bucket_is_under_way() -> None:
    ring = make(rank=0, world_size=1)
    open_with(ring, may_add=1)
    ring.handle(BucketsAdded(buckets=(shape_of(6, Operation.SUM),)), 0.0)
    with pytest.raises(LocalProtocolError, match="bucket 0 waits for its own gradients"):
        open_step(ring, step=1)
    start(ring)
    open_step(ring, step=1)
    with pytest.raises(LocalProtocolError, match="takes 0 more"):
        ring.handle(BucketsAdded(buckets=(shape_of(6, Operation.SUM),)), 0.0)
