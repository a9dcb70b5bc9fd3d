"""One ring machine alone: its schedule in segments, what it refuses, what it holds.

Buckets that go round whole are `test_ring_exchange`'s.
"""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, LocalProtocolError
from dtd.exchange.ring.chunks import BucketShape, Operation
from dtd.exchange.ring.events import (
    BucketDone,
    ChunkReceived,
    Effect,
    InBucket,
    InScratch,
    Reduce,
    Resume,
    SendChunk,
    StepOpened,
    WordOffered,
    WordsDone,
)
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase
from tests.unit.exchange.ring.one_ring import (
    GATHER,
    GENERATION,
    ITEM_BYTES,
    SCATTER,
    deliver,
    deliver_word,
    incoming,
    make,
    open_step,
    refusal,
    start,
    word,
    word_refusal,
)

# --- the schedule --------------------------------------------------------------------------------


def schedule(rank: int, world_size: int) -> tuple[dict[int, int], dict[int, int], dict, dict]:
    """(scatter sends, gather sends, scatter receives, gather receives): hop to segment."""
    ring = make(rank, world_size, chunk_bytes=ITEM_BYTES)
    open_step(ring, world_size)  # a segment is one element: its index is the segment's number
    sends: dict[int, dict[int, int]] = {SCATTER: {}, GATHER: {}}
    receives: dict[int, dict[int, int]] = {SCATTER: {}, GATHER: {}}

    def note(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendChunk):
                sends[effect.chunk.phase][effect.chunk.hop] = effect.start

    note(start(ring))
    for phase in (SCATTER, GATHER):
        for hop in range(world_size - 1):
            chunk = incoming(ring, phase, hop)
            place = ring.place(chunk, ITEM_BYTES)
            slot = place.slot if isinstance(place, InScratch) else None
            effects = ring.handle(ChunkReceived(chunk=chunk, slot=slot), 0.0)
            where = place if isinstance(place, InBucket) else effects[0]
            assert isinstance(where, InBucket | Reduce)
            receives[phase][hop] = where.start
            note(effects)
    assert ring.explain() == "step 0: waits for nothing"
    return sends[SCATTER], sends[GATHER], receives[SCATTER], receives[GATHER]


@pytest.mark.parametrize("world_size", range(1, 9))
def test_the_schedule_is_the_one_of_the_formulas(world_size: int) -> None:
    hops = range(world_size - 1)
    for rank in range(world_size):
        scatter_sends, gather_sends, scatter_receives, gather_receives = schedule(rank, world_size)
        assert scatter_sends == {hop: (rank - hop) % world_size for hop in hops}
        assert scatter_receives == {hop: (rank - hop - 1) % world_size for hop in hops}
        assert gather_sends == {hop: (rank + 1 - hop) % world_size for hop in hops}
        assert gather_receives == {hop: (rank - hop) % world_size for hop in hops}


# By hand: segments sent in scatter hops 0.., gather hops 0..; received in the same hops.
BY_HAND = {
    (2, 0): ([0], [1], [1], [0]),
    (2, 1): ([1], [0], [0], [1]),
    (3, 0): ([0, 2], [1, 0], [2, 1], [0, 2]),
    (3, 1): ([1, 0], [2, 1], [0, 2], [1, 0]),
    (3, 2): ([2, 1], [0, 2], [1, 0], [2, 1]),
    (4, 0): ([0, 3, 2], [1, 0, 3], [3, 2, 1], [0, 3, 2]),
    (4, 1): ([1, 0, 3], [2, 1, 0], [0, 3, 2], [1, 0, 3]),
    (4, 2): ([2, 1, 0], [3, 2, 1], [1, 0, 3], [2, 1, 0]),
    (4, 3): ([3, 2, 1], [0, 3, 2], [2, 1, 0], [3, 2, 1]),
}


@pytest.mark.parametrize(("world_size", "rank"), BY_HAND)
def test_the_schedule_is_the_one_worked_out_by_hand(world_size: int, rank: int) -> None:
    tables = schedule(rank, world_size)
    assert (
        tuple([table[hop] for hop in sorted(table)] for table in tables)
        == BY_HAND[world_size, rank]
    )


@pytest.mark.parametrize("world_size", range(2, 9))
def test_what_a_rank_sends_in_a_hop_its_neighbour_receives_in_that_hop(world_size: int) -> None:
    tables = [schedule(rank, world_size) for rank in range(world_size)]
    for rank in range(world_size):
        following = tables[(rank + 1) % world_size]
        assert tables[rank][:2] == following[2:]


def test_a_bucket_is_divided_once_it_is_needed(divided: list[int]) -> None:
    """A step of thousands opens in one callback of the event loop."""
    ring = make()
    open_step(ring, 600_000, 700_000, 800_000)
    ring.check_invariants()
    assert divided == []
    start(ring, 1)
    assert divided == []
    start(ring, 0)
    assert set(divided) == {600_000, 700_000}


def test_segments_for_another_world_are_refused_before_a_chunk_asks_for_them() -> None:
    shape = BucketShape(elements=2, item_bytes=4, operation=Operation.ALL_GATHER, bounds=(0, 1, 2))
    with pytest.raises(LocalProtocolError, match="2 segments in a ring of 3 ranks"):
        make().handle(StepOpened(step=0, buckets=(shape,)), 0.0)


def test_a_bucket_of_a_world_of_one_is_done_at_once() -> None:
    ring = make(world_size=1)
    open_step(ring, 6)
    assert start(ring) == [BucketDone(bucket=0)]
    assert ring.handle(WordOffered(), 0.0) == [WordsDone(sequence=0)]


def test_a_whole_step_of_two_ranks_effect_by_effect() -> None:
    ring = make(rank=0, world_size=2)
    assert open_step(ring, 6) == []

    def sends(phase: Phase, chunk: int, first: int, last: int) -> SendChunk:
        message = Chunk(
            generation=GENERATION, step=0, phase=phase, hop=0, bucket=0, chunk=chunk, source=0
        )
        return SendChunk(chunk=message, start=first, stop=last)

    assert start(ring) == [sends(SCATTER, 0, 0, 2), sends(SCATTER, 1, 2, 3)]
    assert ring.place(incoming(ring, SCATTER, 0), 8) == InScratch(slot=3)
    assert ring.handle(ChunkReceived(chunk=incoming(ring, SCATTER, 0), slot=3), 0.0) == [
        Reduce(bucket=0, start=3, stop=5, slot=3),
        sends(GATHER, 0, 3, 5),
    ]
    assert ring.place(incoming(ring, GATHER, 0), 8) == InBucket(bucket=0, start=0, stop=2)
    assert ring.handle(ChunkReceived(chunk=incoming(ring, GATHER, 0), slot=None), 0.0) == []
    assert deliver(ring, incoming(ring, GATHER, 0, 1), 6) == []
    assert deliver(ring, incoming(ring, SCATTER, 0, 1), 6) == [
        Reduce(bucket=0, start=5, stop=6, slot=3),
        sends(GATHER, 1, 5, 6),
        BucketDone(bucket=0),
    ]


def test_a_chunk_goes_on_as_soon_as_it_is_reduced() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    start(ring)
    effects = deliver(ring, incoming(ring, SCATTER, 0, 0), 12)
    assert [type(effect) for effect in effects] == [Reduce, SendChunk]
    sent = effects[1]
    assert isinstance(sent, SendChunk)
    assert (sent.chunk.phase, sent.chunk.hop, sent.chunk.chunk) == (SCATTER, 1, 0)
    # The chunk after it has not come: the second hop overtakes the first.
    effects = deliver(ring, incoming(ring, SCATTER, 1, 0), 12)
    sent = effects[1]
    assert isinstance(sent, SendChunk)
    assert (sent.chunk.phase, sent.chunk.hop, sent.chunk.chunk) == (GATHER, 0, 0)


def test_a_gathered_chunk_is_passed_on_but_not_back_to_its_owner() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 3)
    start(ring)
    deliver(ring, incoming(ring, SCATTER, 0), 3)
    (passed_on,) = deliver(ring, incoming(ring, GATHER, 0), 3)
    assert isinstance(passed_on, SendChunk)
    assert (passed_on.chunk.phase, passed_on.chunk.hop, passed_on.start) == (GATHER, 1, 0)
    assert deliver(ring, incoming(ring, GATHER, 1), 3) == []


def test_buckets_travel_in_index_order_whatever_order_they_are_handed_over_in() -> None:
    ring = make()
    open_step(ring, 3, 3, 3)
    assert start(ring, 2) == []
    assert start(ring, 1) == []
    effects = start(ring, 0)
    assert [effect.chunk.bucket for effect in effects if isinstance(effect, SendChunk)] == [0, 1, 2]


def test_chunks_that_came_early_are_reduced_in_order_when_the_bucket_starts() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    assert deliver(ring, incoming(ring, SCATTER, 0, 0), 12) == []
    assert deliver(ring, incoming(ring, SCATTER, 0, 1), 12) == []
    effects = start(ring)
    assert [type(effect) for effect in effects] == [
        SendChunk,
        SendChunk,
        Reduce,
        SendChunk,
        Reduce,
        SendChunk,
    ]
    assert [effect.start for effect in effects if isinstance(effect, Reduce)] == [8, 10]
    ring.check_invariants()


def test_steps_follow_one_another_from_the_first() -> None:
    ring = make(world_size=1, first_step=40)
    for step in (40, 41):
        open_step(ring, 3, step=step)
        assert start(ring) == [BucketDone(bucket=0)]
    assert ring.step == 41


def test_nothing_depends_on_time() -> None:
    assert make().next_deadline() is None


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "hop", "chunk", "bucket", "why"),
    [
        (SCATTER, 0, 0, 1, "the step has 1 buckets"),
        (Phase.EXCHANGE, 0, 0, 0, "no such phase: the bucket travels in segments"),
        (3, 0, 0, 0, "no such phase"),
        (SCATTER, 2, 0, 0, "no such hop"),
        (GATHER, 2, 0, 0, "no such hop"),
        (SCATTER, 0, 1, 0, "expected chunk 0"),
        (SCATTER, 1, 1, 0, "expected chunk 0"),
    ],
)
def test_a_chunk_that_is_not_the_next_is_refused(
    phase: int, hop: int, chunk: int, bucket: int, why: str
) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    start(ring)
    error = refusal(ring, incoming(ring, phase, hop, chunk, bucket=bucket), 8)
    assert error.code == ErrorCode.UNEXPECTED_CHUNK
    assert why in error.message


@pytest.mark.parametrize("phase", [SCATTER, GATHER])
def test_a_repeated_chunk_is_refused(phase: Phase) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    start(ring)
    deliver(ring, incoming(ring, phase, 0, 0), 12)
    assert "expected chunk 1" in refusal(ring, incoming(ring, phase, 0, 0), 8).message


def test_a_chunk_more_than_the_segment_has_is_refused() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    start(ring)
    for chunk in range(2):
        deliver(ring, incoming(ring, SCATTER, 0, chunk), 12)
    assert "expected chunk 2" in refusal(ring, incoming(ring, SCATTER, 0, 2), 8).message


@pytest.mark.parametrize("payload_bytes", [0, 4, 12])
def test_a_payload_of_the_wrong_size_is_refused(payload_bytes: int) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    error = refusal(ring, incoming(ring, SCATTER, 0), payload_bytes)
    assert error.code == ErrorCode.BAD_PAYLOAD
    assert f"payload is {payload_bytes} bytes, not 8" in error.message
    assert deliver(ring, incoming(ring, SCATTER, 0), 12) == []  # nothing was counted


def test_a_sum_is_refused_while_our_contribution_has_not_started() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring, 4)
    assert "this rank's part is missing" in refusal(ring, incoming(ring, GATHER, 0), 8).message
    start(ring)
    assert deliver(ring, incoming(ring, GATHER, 0), 4) == []


def test_a_sum_is_refused_while_our_partial_sum_has_not_been_sent() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12)
    start(ring)
    deliver(ring, incoming(ring, GATHER, 0, 0), 12)  # our own segment went out at the start
    assert "this rank's part is missing" in refusal(ring, incoming(ring, GATHER, 1, 0), 8).message
    deliver(ring, incoming(ring, SCATTER, 0, 0), 12)
    deliver(ring, incoming(ring, GATHER, 1, 0), 12)
    assert "this rank's part is missing" in refusal(ring, incoming(ring, GATHER, 1, 1), 8).message


def test_a_world_of_one_hears_nobody() -> None:
    ring = make(world_size=1)
    open_step(ring, 3)
    assert refusal(ring, incoming(ring, SCATTER, 0), 4).code == ErrorCode.WRONG_SOURCE


def test_frames_of_the_step_before_the_first_are_refused() -> None:
    ring = make(first_step=40)
    assert "is at step 40" in word_refusal(ring, word(ring, 1, step=39)).message
    assert "is at step 40" in refusal(ring, incoming(ring, SCATTER, 0, step=39), 4).message


# --- what is held --------------------------------------------------------------------------------


def test_a_chunk_of_the_next_step_is_held_until_the_step_is_open() -> None:
    ring = make()
    early = incoming(ring, SCATTER, 0, step=0)
    assert ring.place(early, 4) is HOLD
    assert open_step(ring, 3) == [Resume()]
    assert ring.place(early, 4) == InScratch(slot=3)


def test_a_word_of_the_next_step_is_held_until_the_step_is_open() -> None:
    ring = make()
    early = word(ring, 2, step=0)
    assert ring.accept_word(early) is HOLD
    assert open_step(ring) == [Resume()]
    assert ring.accept_word(early) is None


def test_nothing_is_resumed_when_nothing_is_held() -> None:
    ring = make()
    assert Resume() not in open_step(ring, 3)
    assert Resume() not in start(ring)


def test_without_a_scratch_slot_a_chunk_is_held_until_the_bucket_starts() -> None:
    ring = make(slots=1)
    open_step(ring, 12)
    deliver(ring, incoming(ring, SCATTER, 0, 0), 12)
    assert ring.place(incoming(ring, SCATTER, 0, 1), 8) is HOLD
    ring.check_invariants()
    assert start(ring)[-1] == Resume()
    assert ring.place(incoming(ring, SCATTER, 0, 1), 8) == InScratch(slot=0)
    ring.check_invariants()


def test_a_bucket_whose_turn_has_not_come_still_lets_the_held_chunk_be_asked_for_again() -> None:
    ring = make(slots=0)
    open_step(ring, 3, 3)
    assert ring.place(incoming(ring, SCATTER, 0), 4) is HOLD
    assert start(ring, 1) == [Resume()]
    assert ring.place(incoming(ring, SCATTER, 0), 4) is HOLD


def test_a_slot_that_becomes_free_resumes() -> None:
    ring = make(slots=1)
    open_step(ring, 12)
    start(ring)
    first = incoming(ring, SCATTER, 0, 0)
    assert ring.place(first, 8) == InScratch(slot=0)
    assert ring.place(incoming(ring, SCATTER, 0, 1), 8) is HOLD
    assert ring.handle(ChunkReceived(chunk=first, slot=0), 0.0)[-1] == Resume()


def test_a_gathered_chunk_needs_no_slot() -> None:
    ring = make(slots=0)
    open_step(ring, 3)
    start(ring)
    assert ring.place(incoming(ring, GATHER, 0), 4) == InBucket(bucket=0, start=0, stop=1)


# --- misuse on this side -------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, -1, 7])
def test_a_step_out_of_order_is_our_own_fault(step: int) -> None:
    with pytest.raises(LocalProtocolError, match="opened after step"):
        open_step(make(), step=step)


def test_a_step_opened_over_an_unfinished_bucket_is_our_own_fault() -> None:
    ring = make()
    open_step(ring, 3)
    with pytest.raises(LocalProtocolError, match="while step 0: bucket 0 waits"):
        open_step(ring, step=1)


def test_a_step_opened_over_an_unfinished_exchange_is_our_own_fault() -> None:
    ring = make()
    open_step(ring)
    ring.handle(WordOffered(), 0.0)
    with pytest.raises(LocalProtocolError, match="waits for the word of rank 1, 2"):
        open_step(ring, step=1)


@pytest.mark.parametrize("bucket", [-1, 1, 2])
def test_a_bucket_that_does_not_exist_is_our_own_fault(bucket: int) -> None:
    ring = make()
    open_step(ring, 3)
    with pytest.raises(LocalProtocolError, match="does not exist"):
        start(ring, bucket)


def test_a_bucket_started_twice_is_our_own_fault() -> None:
    ring = make()
    open_step(ring, 3, 3)
    start(ring, 1)
    with pytest.raises(LocalProtocolError, match="bucket 1 started twice"):
        start(ring, 1)


def test_a_word_offered_twice_or_before_a_step_is_our_own_fault() -> None:
    ring = make()
    with pytest.raises(LocalProtocolError, match="before the step"):
        ring.handle(WordOffered(), 0.0)
    open_step(ring)
    ring.handle(WordOffered(), 0.0)
    with pytest.raises(LocalProtocolError, match="offered twice"):
        ring.handle(WordOffered(), 0.0)


# --- explaining ----------------------------------------------------------------------------------


def test_it_says_what_it_waits_for() -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 12, 3)
    assert ring.explain() == "step 0: bucket 0 waits for its own gradients"
    start(ring, 0)
    assert ring.explain() == (
        "step 0: bucket 0 waits for reduce_scatter hop 0 chunk 0 of 2 from rank 2"
    )
    deliver(ring, incoming(ring, SCATTER, 0, 0), 12)
    assert "reduce_scatter hop 0 chunk 1 of 2" in ring.explain()
    deliver(ring, incoming(ring, SCATTER, 0, 1), 12)
    assert "reduce_scatter hop 1 chunk 0 of 2" in ring.explain()
    for chunk in range(2):
        deliver(ring, incoming(ring, SCATTER, 1, chunk), 12)
    assert "all_gather hop 0 chunk 0 of 2 from rank 2" in ring.explain()
    for hop in range(2):
        for chunk in range(2):
            deliver(ring, incoming(ring, GATHER, hop, chunk), 12)
    assert ring.explain() == "step 0: bucket 1 waits for its own gradients"


def test_it_names_the_ranks_whose_words_are_missing() -> None:
    ring = make(rank=0, world_size=4)
    open_step(ring)
    assert ring.explain() == "step 0: waits for nothing"
    ring.handle(WordOffered(), 0.0)
    assert ring.explain() == "step 0: waits for the word of rank 1, 2, 3"
    deliver_word(ring, word(ring, origin=2))
    assert ring.explain() == "step 0: waits for the word of rank 1, 3"


def test_the_invariants_notice_a_lost_slot() -> None:
    ring = make()
    ring.check_invariants()
    ring._scratch.free.pop()
    with pytest.raises(AssertionError):
        ring.check_invariants()
