"""One ring machine alone, between neighbours on the same host: what is lent is read."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, LocalProtocolError
from dtd.exchange.ring.events import (
    BucketDone,
    ChunkReceived,
    CopyLent,
    Effect,
    InLent,
    InScratch,
    ReduceLent,
    Resume,
    SendChunk,
    SendContribution,
    SendTaken,
)
from dtd.exchange.ring.machine import Ring
from dtd.wire.frames import HOLD
from dtd.wire.messages import Phase, ShmReleased
from tests.unit.exchange.ring.one_ring import (
    GATHER,
    GENERATION,
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


def bring_all(ring: Ring, elements: int, *, loan: int = 0) -> list[Effect]:
    """Every chunk that a bucket of so many elements, one chunk a segment, waits for."""
    effects: list[Effect] = []
    for phase in (SCATTER, GATHER):
        for hop in range(ring.world_size - 1):
            effects += deliver(ring, incoming(ring, phase, hop, loan=loan), elements)
    return effects


def test_chunks_of_a_lent_bucket_bear_the_loan_and_others_do_not() -> None:
    ring = make()
    open_step(ring, 3, 3, loan=LOAN, lent=(1,))
    sent = start(ring, 0) + start(ring, 1) + bring_all(ring, 3)
    loans = [
        (effect.chunk.bucket, effect.chunk.loan) for effect in sent if isinstance(effect, SendChunk)
    ]
    assert loans == [(0, 0), (1, LOAN), *[(0, 0)] * 3]


def test_what_is_lent_is_read_when_its_turn_has_come_and_then_goes_on() -> None:
    ring = make(rank=0, world_size=3, slots=0)
    open_step(ring, 12)
    start(ring)
    first = incoming(ring, SCATTER, 0, 1, loan=LOAN)
    assert "expected chunk 0" in refusal(ring, first, 0).message
    deliver(ring, incoming(ring, SCATTER, 0, 0, loan=LOAN), 12)
    reduce, sent = deliver(ring, first, 12)
    assert reduce == ReduceLent(bucket=0, start=10, stop=12, loan=LOAN)
    assert isinstance(sent, SendChunk)
    assert (sent.start, sent.stop, sent.chunk.loan) == (10, 12, 0)
    copy, sent = deliver(ring, incoming(ring, GATHER, 0, 0, loan=LOAN), 12)
    assert copy == CopyLent(bucket=0, start=0, stop=2, loan=LOAN)
    assert isinstance(sent, SendChunk)
    assert (sent.chunk.phase, sent.chunk.hop, sent.start) == (GATHER, 1, 0)


def test_a_lent_chunk_waits_in_a_slot_until_its_bucket_starts() -> None:
    ring = make(rank=0, world_size=3, slots=1)
    open_step(ring, 12)
    early = [incoming(ring, SCATTER, 0, chunk, loan=LOAN) for chunk in (0, 1)]
    assert ring.place(early[0], 0) == InLent(slot=0)
    assert ring.handle(ChunkReceived(chunk=early[0], slot=0), 0.0) == []
    assert ring.place(early[1], 0) is HOLD
    ring.check_invariants()
    effects = start(ring)
    assert [effect for effect in effects if isinstance(effect, ReduceLent | Resume)] == [
        ReduceLent(bucket=0, start=8, stop=10, loan=LOAN),
        Resume(),
    ]
    assert ring.place(early[1], 0) == InLent(slot=None)
    ring.handle(ChunkReceived(chunk=early[1], slot=None), 0.0)
    assert ring.place(incoming(ring, SCATTER, 1, 0), 8) == InScratch(slot=0)
    ring.check_invariants()


def test_a_bucket_that_starts_while_a_lent_chunk_arrives() -> None:
    ring = make(rank=0, world_size=3, slots=1)
    open_step(ring, 3)
    chunk = incoming(ring, SCATTER, 0, loan=LOAN)
    assert ring.place(chunk, 0) == InLent(slot=0)
    start(ring)
    ring.check_invariants()
    effects = ring.handle(ChunkReceived(chunk=chunk, slot=0), 0.0)
    assert effects[0] == ReduceLent(bucket=0, start=2, stop=3, loan=LOAN)
    ring.check_invariants()
    assert ring.place(incoming(ring, SCATTER, 1), 4) == InScratch(slot=0)


def test_a_lent_bucket_is_done_when_the_next_rank_has_taken_it() -> None:
    ring = make(rank=1, world_size=3)
    open_step(ring, 3, loan=LOAN, lent=(0,))
    start(ring)
    assert BucketDone(bucket=0) not in bring_all(ring, 3)
    assert ring.explain() == "step 0: bucket 0 waits for rank 2 to read its last chunks"
    with pytest.raises(LocalProtocolError, match="while step 0: bucket 0 waits for rank 2"):
        open_step(ring, step=1)
    assert takes(ring) == [BucketDone(bucket=0)]
    assert ring.explain() == "step 0: waits for nothing"
    assert open_step(ring, 3, step=1) == []


def test_the_next_rank_may_have_taken_a_bucket_before_ours_is_complete() -> None:
    ring = make(rank=2, world_size=3)
    open_step(ring, 3, loan=LOAN, lent=(0,))
    start(ring)
    assert takes(ring) == []
    assert "reduce_scatter hop 0 chunk 0 of 1 from rank 1" in ring.explain()
    effects = bring_all(ring, 3)
    assert effects[-1] == BucketDone(bucket=0)
    assert effects.count(BucketDone(bucket=0)) == 1


def test_the_last_chunk_of_a_borrowed_bucket_gives_it_back() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 3, 3)
    start(ring, 0)
    start(ring, 1)
    effects = bring_all(ring, 3, loan=LOAN)
    taken = ShmReleased(generation=GENERATION, step=0, bucket=0)
    assert effects[-3:] == [
        CopyLent(bucket=0, start=2, stop=3, loan=LOAN),
        SendTaken(taken=taken),
        BucketDone(bucket=0),
    ]
    assert effects.count(SendTaken(taken=taken)) == 1


@pytest.mark.parametrize("lent_at", range(4))
def test_one_lent_chunk_is_enough_to_be_given_back(lent_at: int) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 3)
    start(ring)
    order = [(phase, hop) for phase in (SCATTER, GATHER) for hop in range(2)]
    effects: list[Effect] = []
    for index, (phase, hop) in enumerate(order):
        loan = LOAN if index == lent_at else 0
        effects += deliver(ring, incoming(ring, phase, hop, loan=loan), 3)
    assert [type(effect) for effect in effects[-2:]] == [SendTaken, BucketDone]


def test_nothing_is_given_back_that_was_sent() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 3)
    start(ring)
    assert not any(isinstance(effect, SendTaken) for effect in bring_all(ring, 3))


def test_a_world_of_one_lends_to_nobody() -> None:
    ring = make(world_size=1)
    open_step(ring, 3, loan=LOAN, lent=(0,))
    assert start(ring) == [BucketDone(bucket=0)]


def test_a_lent_bucket_that_travels_whole_is_sent() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring, 2, loan=LOAN, lent=(0,))
    sent = [effect for effect in start(ring) if isinstance(effect, SendContribution)]
    assert [effect.chunk.loan for effect in sent] == [0]
    assert "bucket 0 taken, which is not lent" in lent_refusal(ring).message
    error = refusal(ring, incoming(ring, Phase.EXCHANGE, 0, loan=LOAN), 0)
    assert error.code == ErrorCode.UNEXPECTED_CHUNK
    assert "a bucket that travels whole is not shared" in error.message


@pytest.mark.parametrize("phase", [SCATTER, GATHER])
def test_a_lent_chunk_has_no_payload(phase: Phase) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    start(ring)
    error = refusal(ring, incoming(ring, phase, 0, loan=LOAN), 8)
    assert error.code == ErrorCode.BAD_PAYLOAD
    assert "payload is 8 bytes, not 0" in error.message


def test_a_sum_is_not_read_before_our_contribution_has_gone_out() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring, 4)
    early = incoming(ring, GATHER, 0, loan=LOAN)
    assert "this rank's part is missing" in refusal(ring, early, 0).message


@pytest.mark.parametrize(
    ("bucket", "changed", "code", "why"),
    [
        (0, {"generation": 4}, ErrorCode.STALE_GENERATION, "taken in generation 4"),
        (0, {"step": 1}, ErrorCode.UNEXPECTED_CHUNK, "bucket 0 of step 1 taken; this ring is at"),
        (1, {}, ErrorCode.UNEXPECTED_CHUNK, "bucket 1 of step 0 taken, which is not lent"),
        (2, {}, ErrorCode.UNEXPECTED_CHUNK, "bucket 2 of step 0 taken, which is not lent"),
        (3, {}, ErrorCode.UNEXPECTED_CHUNK, "bucket 3 taken, which is not lent"),
    ],
)
def test_what_cannot_have_been_taken_is_refused(
    bucket: int, changed: dict[str, int], code: int, why: str
) -> None:
    ring = make()
    open_step(ring, 3, 3, 3, loan=LOAN, lent=(0, 2))  # 1 is sent, 2 has not started
    start(ring, 0)
    start(ring, 1)
    error = lent_refusal(ring, bucket, **changed)
    assert error.code == code
    assert why in error.message
    assert takes(ring) == []


def test_a_bucket_taken_twice_is_refused() -> None:
    ring = make()
    open_step(ring, 3, loan=LOAN, lent=(0,))
    start(ring)
    takes(ring)
    assert "which is not lent" in lent_refusal(ring).message
