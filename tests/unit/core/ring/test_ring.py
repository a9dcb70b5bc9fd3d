"""One ring machine alone: its schedule in segments, what it refuses, what it holds.

Buckets that go round whole are `test_ring_exchange`'s.
"""

from __future__ import annotations

import pytest

from dtd.core.ring.chunks import BucketShape, Operation, Segments, cut
from dtd.core.ring.events import (
    BucketDone,
    BucketsAdded,
    BucketStarted,
    BucketTaken,
    ChunkReceived,
    CopyLent,
    Effect,
    InBucket,
    InLent,
    InScratch,
    Reduce,
    ReduceLent,
    Resume,
    SendChunk,
    SendContribution,
    SendTaken,
    SendWord,
    StepOpened,
    WordOffered,
    WordReceived,
    WordsDone,
)
from dtd.core.ring.machine import Ring
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase, ShmReleased, SmallGather

SCATTER, GATHER = Phase.REDUCE_SCATTER, Phase.ALL_GATHER
GENERATION = 5
ITEM_BYTES = 4
CHUNK_BYTES = 8  # two elements


def make(
    rank: int = 0,
    world_size: int = 3,
    *,
    slots: int = 4,
    first_step: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> Ring:
    return Ring(
        rank=rank,
        world_size=world_size,
        generation=GENERATION,
        first_step=first_step,
        chunk_bytes=chunk_bytes,
        scratch_slots=slots,
    )


def open_step(
    ring: Ring, *elements: int, step: int = 0, loan: int = 0, lent: tuple[int, ...] = ()
) -> list[Effect]:
    shapes = tuple(BucketShape(elements=count, item_bytes=ITEM_BYTES) for count in elements)
    event = StepOpened(step=step, buckets=shapes, loan=loan, lent=frozenset(lent))
    return ring.handle(event, 0.0)


def start(ring: Ring, bucket: int = 0) -> list[Effect]:
    return ring.handle(BucketStarted(bucket=bucket), 0.0)


def incoming(
    ring: Ring, phase: int, hop: int, chunk: int = 0, *, bucket: int = 0, **changed: int
) -> Chunk:
    values = {"generation": GENERATION, "step": ring.step, "source": _before(ring)} | changed
    return Chunk(phase=phase, hop=hop, bucket=bucket, chunk=chunk, **values)


def word(ring: Ring, origin: int, sequence: int = 0, **changed: int) -> SmallGather:
    values = {
        "generation": GENERATION,
        "step": ring.step,
        "source": _before(ring),
        "hop": (_before(ring) - origin) % ring.world_size,
    } | changed
    return SmallGather(origin=origin, sequence=sequence, **values)


def _before(ring: Ring) -> int:
    return (ring.rank - 1) % ring.world_size


def chunk_bytes(ring: Ring, chunk: Chunk, elements: int) -> int:
    offset = 1 if chunk.phase == SCATTER else 0
    segment = (ring.rank - chunk.hop - offset) % ring.world_size
    shape = BucketShape(elements=elements, item_bytes=ITEM_BYTES)
    first, last = cut(shape, world_size=ring.world_size, chunk_bytes=CHUNK_BYTES).chunk(
        segment, chunk.chunk
    )
    return (last - first) * ITEM_BYTES


def deliver(ring: Ring, chunk: Chunk, elements: int) -> list[Effect]:
    place = ring.place(chunk, 0 if chunk.loan else chunk_bytes(ring, chunk, elements))
    assert isinstance(place, InScratch | InBucket | InLent)
    slot = place.slot if isinstance(place, InScratch | InLent) else None
    effects = ring.handle(ChunkReceived(chunk=chunk, slot=slot), 0.0)
    ring.check_invariants()
    return effects


def deliver_word(ring: Ring, message: SmallGather) -> list[Effect]:
    assert ring.accept_word(message) is None
    return ring.handle(WordReceived(word=message), 0.0)


def refusal(ring: Ring, chunk: Chunk, payload_bytes: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        ring.place(chunk, payload_bytes)
    ring.check_invariants()
    return caught.value


def word_refusal(ring: Ring, message: SmallGather) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        ring.accept_word(message)
    return caught.value


# --- the schedule ----------------------------------------------------------------------------


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


def test_a_bucket_is_divided_once_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of thousands opens in one callback of the event loop."""
    divided: list[int] = []

    def counted(segments: Segments, index: int) -> int:
        divided.append(segments.elements)
        return chunk_count(segments, index)

    chunk_count = Segments.chunk_count
    monkeypatch.setattr(Segments, "chunk_count", counted)
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


# --- words -----------------------------------------------------------------------------------


def test_words_go_round_and_complete_the_exchange() -> None:
    ring = make(rank=1, world_size=3)
    open_step(ring)
    (sent,) = ring.handle(WordOffered(), 0.0)
    assert isinstance(sent, SendWord)
    assert (sent.word.origin, sent.word.hop, sent.word.sequence, sent.word.source) == (1, 0, 0, 1)
    (passed_on,) = deliver_word(ring, word(ring, origin=0))
    assert isinstance(passed_on, SendWord)
    assert (passed_on.word.origin, passed_on.word.hop, passed_on.word.source) == (0, 1, 1)
    assert deliver_word(ring, word(ring, origin=2)) == [WordsDone(sequence=0)]


def test_others_words_are_taken_before_ours_is_ready() -> None:
    ring = make(rank=1, world_size=2)
    open_step(ring)
    assert deliver_word(ring, word(ring, origin=0)) == []
    effects = ring.handle(WordOffered(), 0.0)
    assert [type(effect) for effect in effects] == [SendWord, WordsDone]


def test_exchanges_of_a_step_are_numbered_and_every_step_begins_at_zero() -> None:
    ring = make(rank=0, world_size=2)
    for step in (0, 1):
        open_step(ring, step=step)
        for sequence in (0, 1):
            ring.handle(WordOffered(), 0.0)
            done = deliver_word(ring, word(ring, origin=1, sequence=sequence))
            assert done == [WordsDone(sequence=sequence)]


@pytest.mark.parametrize(
    ("origin", "changed", "why"),
    [
        (0, {}, "word of rank 0 at hop 2"),  # our own
        (3, {"hop": 2}, "word of rank 3"),
        (1, {"hop": 0}, "word of rank 1 at hop 0"),
        (2, {"hop": 1}, "word of rank 2 at hop 1"),
        (2, {"sequence": 1}, "expected number 0"),
    ],
)
def test_a_word_that_cannot_come_is_refused(origin: int, changed: dict[str, int], why: str) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring)
    error = word_refusal(ring, word(ring, origin, **changed))
    assert error.code == ErrorCode.UNEXPECTED_CHUNK
    assert why in error.message


def test_a_word_that_comes_again_is_refused() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring)
    deliver_word(ring, word(ring, origin=1))
    error = word_refusal(ring, word(ring, origin=1))
    assert "expected number 1" in error.message


def test_a_word_that_answers_one_we_have_not_said_is_refused() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring)
    deliver_word(ring, word(ring, origin=1))
    early = word(ring, origin=1, sequence=1)
    assert "has not seen our word 0" in word_refusal(ring, early).message
    ring.handle(WordOffered(), 0.0)
    assert ring.accept_word(early) is None


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"generation": GENERATION - 1}, ErrorCode.STALE_GENERATION),
        ({"generation": GENERATION + 1}, ErrorCode.STALE_GENERATION),
        ({"source": 1}, ErrorCode.WRONG_SOURCE),
        ({"step": 2}, ErrorCode.UNEXPECTED_CHUNK),
    ],
)
def test_words_and_chunks_of_elsewhere_are_refused(changed: dict[str, int], code: int) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 3)
    assert word_refusal(ring, word(ring, 2, **changed)).code == code
    assert refusal(ring, incoming(ring, SCATTER, 0, **changed), 4).code == code


# --- what is refused -------------------------------------------------------------------------


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


# --- what is held ----------------------------------------------------------------------------


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


# --- loans -----------------------------------------------------------------------------------

LOAN = 7


def takes(ring: Ring, bucket: int = 0, **changed: int) -> list[Effect]:
    """The next rank says that it has read what it was lent."""
    values = {"generation": GENERATION, "step": ring.step} | changed
    effects = ring.handle(BucketTaken(taken=ShmReleased(bucket=bucket, **values)), 0.0)
    ring.check_invariants()
    return effects


def lent_refusal(ring: Ring, bucket: int = 0, **changed: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        takes(ring, bucket, **changed)
    return caught.value


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


# --- misuse on this side ---------------------------------------------------------------------


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


# --- explaining ------------------------------------------------------------------------------


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


# --- halves of a sum, and buckets that are added -------------------------------------------------


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
