"""One machine alone: what it does with an event, what it holds back, and what it refuses.

That sums are right in any order of deliveries is `tests/property/test_ring.py`'s and
`tests/property/test_star.py`'s.
"""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.schedule.chunks import BucketShape, Operation
from dtd.exchange.schedule.effects import (
    BucketDone,
    CopyShared,
    Effect,
    GatherDone,
    InBucket,
    InScratch,
    InShared,
    Reduce,
    ReduceShared,
    Resume,
    SendChunk,
    SendGather,
    SendReleased,
)
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.schedules import RingSchedules, StarSchedules
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase, ShmReleased, SmallGather

SCATTER, GATHER, EXCHANGE = Phase.REDUCE_SCATTER, Phase.ALL_GATHER, Phase.EXCHANGE
PUSH, SUMMED, PULL = Phase.PUSH, Phase.SUMMED, Phase.PULL
GENERATION = 5
ITEM_BYTES = 4
CHUNK_BYTES = 8  # two elements
LOAN = 7


def shape(elements: int, operation: Operation = Operation.SUM, copies: int = 0) -> BucketShape:
    return BucketShape(elements=elements, item_bytes=ITEM_BYTES, operation=operation, copies=copies)


class Rank:
    """Rank 0 of a ring, or a rank of a star, and short ways to drive its machine."""

    def __init__(
        self,
        world_size: int = 3,
        *,
        rank: int = 0,
        servers: int = 0,
        slots: int = 4,
        first_step: int = 0,
    ) -> None:
        schedules: RingSchedules | StarSchedules
        if servers:
            schedules = StarSchedules(rank, world_size, servers=servers, chunk_bytes=CHUNK_BYTES)
        else:
            schedules = RingSchedules(
                rank, world_size, chunk_bytes=CHUNK_BYTES, whole_bytes=CHUNK_BYTES
            )
        self.machine = Machine(
            schedules, generation=GENERATION, first_step=first_step, scratch_slots=slots
        )
        self.previous = (rank - 1) % world_size

    def checked(self, effects: list[Effect]) -> list[Effect]:
        self.machine.check_invariants()
        return effects

    def open(
        self,
        *shapes: BucketShape | int,
        step: int = 0,
        shared: tuple[int, ...] = (),
        may_add: int = 0,
    ) -> list[Effect]:
        buckets = tuple(shape(one) if isinstance(one, int) else one for one in shapes)
        loan = LOAN if shared else 0
        return self.checked(
            self.machine.open_step(step, buckets, version=loan, shared=shared, may_add=may_add)
        )

    def start(self, bucket: int = 0) -> list[Effect]:
        return self.checked(self.machine.start(bucket))

    def chunk(self, phase: int, hop: int, number: int = 0, **changed: int) -> Chunk:
        values = {
            "generation": GENERATION,
            "step": max(0, self.machine.step),
            "source": self.previous,
            "bucket": 0,
            "loan": 0,
        } | changed
        return Chunk(phase=phase, hop=hop, chunk=number, **values)

    def place(self, chunk: Chunk, payload_bytes: int, link: int | None = None) -> object:
        return self.machine.place(chunk, payload_bytes, link=chunk.source if link is None else link)

    def take(self, chunk: Chunk, payload_bytes: int = CHUNK_BYTES) -> list[Effect]:
        """A chunk, which may come now."""
        place = self.place(chunk, 0 if chunk.loan else payload_bytes)
        assert place is not HOLD
        slot = place.slot if isinstance(place, InScratch | InShared) else None
        return self.checked(self.machine.received(chunk, slot))

    def refused(self, chunk: Chunk, payload_bytes: int = CHUNK_BYTES) -> ProtocolError:
        with pytest.raises(ProtocolError) as caught:
            self.place(chunk, payload_bytes)
        self.machine.check_invariants()
        return caught.value

    def entry(self, origin: int, sequence: int = 0, **changed: int) -> SmallGather:
        values = {
            "generation": GENERATION,
            "step": max(0, self.machine.step),
            "source": self.previous,
            "hop": (self.machine.rank - 1 - origin) % self.machine.world_size,
        } | changed
        return SmallGather(origin=origin, sequence=sequence, **values)

    def take_entry(self, entry: SmallGather) -> list[Effect]:
        assert self.machine.accept_gather(entry, link=entry.source) is None
        return self.checked(self.machine.gather_received(entry))

    def refused_entry(self, entry: SmallGather) -> ProtocolError:
        with pytest.raises(ProtocolError) as caught:
            self.machine.accept_gather(entry, link=entry.source)
        return caught.value

    def release(self, bucket: int = 0, **changed: int) -> list[Effect]:
        values = {"generation": GENERATION, "step": self.machine.step} | changed
        return self.checked(self.machine.released(ShmReleased(bucket=bucket, **values)))


def sent(effects: list[Effect]) -> list[tuple[int, int, int, int, int]]:
    """(rank, phase, hop, first element, last + 1) of the chunks that go out."""
    return [
        (one.rank, one.chunk.phase, one.chunk.hop, one.start, one.stop)
        for one in effects
        if isinstance(one, SendChunk)
    ]


# --- buckets -------------------------------------------------------------------------------------


def test_a_whole_step_of_two_ranks_effect_by_effect() -> None:
    rank = Rank(2)
    assert rank.open(6) == []
    assert sent(rank.start()) == [(1, SCATTER, 0, 0, 2), (1, SCATTER, 0, 2, 3)]
    assert rank.place(rank.chunk(SCATTER, 0), 8) == InScratch(slot=3)
    reduce, passed_on = rank.checked(rank.machine.received(rank.chunk(SCATTER, 0), 3))
    assert reduce == Reduce(bucket=0, start=3, stop=5, slot=3)
    assert sent([passed_on]) == [(1, GATHER, 0, 3, 5)]
    assert rank.place(rank.chunk(GATHER, 0), 8) == InBucket(bucket=0, start=0, stop=2)
    assert rank.checked(rank.machine.received(rank.chunk(GATHER, 0))) == []
    assert rank.take(rank.chunk(GATHER, 0, 1), 4) == []
    effects = rank.take(rank.chunk(SCATTER, 0, 1), 4)
    assert [type(one) for one in effects] == [Reduce, SendChunk, BucketDone]
    assert rank.machine.explain() == "step 0: waits for nothing"


def test_a_trainer_pushes_every_segment_to_its_owner_and_is_done() -> None:
    rank = Rank(4, rank=1, servers=2)
    rank.open(shape(8, Operation.REDUCE_SCATTER))
    effects = rank.start()
    assert sent(effects) == [
        (2, PUSH, 0, 0, 2),
        (3, PUSH, 0, 4, 6),
        (2, PUSH, 0, 2, 4),
        (3, PUSH, 0, 6, 8),
    ]
    assert effects[-1] == BucketDone(bucket=0)


def test_a_server_adds_in_rank_order_and_passes_sums_to_its_mirrors() -> None:
    rank = Rank(4, rank=2, servers=2)
    rank.open(shape(8, Operation.REDUCE_SCATTER, copies=1))
    assert rank.start() == []
    first, second = rank.chunk(PUSH, 0, source=0), rank.chunk(PUSH, 0, source=1)
    assert rank.place(second, 8) is HOLD
    assert rank.place(first, 8) == InBucket(bucket=0, start=0, stop=2)
    assert rank.checked(rank.machine.received(first)) == [Resume(rank=1)]
    reduce, summed = rank.take(second)
    assert isinstance(reduce, Reduce)
    assert sent([summed]) == [(3, SUMMED, 0, 0, 2)]
    assert "summed hop 0 chunk 0 of 2 from rank 3" in rank.machine.explain()


# --- what waits on its link ----------------------------------------------------------------------


def test_frames_of_the_next_step_wait_for_it() -> None:
    rank = Rank()
    chunk, entry = rank.chunk(SCATTER, 0), rank.entry(2)
    assert rank.place(chunk, 4) is HOLD
    assert rank.machine.accept_gather(entry, link=2) is HOLD
    assert rank.open(3) == [Resume(rank=2)]
    assert rank.place(chunk, 4) == InScratch(slot=3)
    assert rank.machine.accept_gather(entry, link=2) is None


def test_without_a_scratch_slot_a_chunk_waits_until_the_bucket_starts() -> None:
    rank = Rank(slots=1)
    rank.open(12)
    rank.take(rank.chunk(SCATTER, 0, 0))
    assert rank.place(rank.chunk(SCATTER, 0, 1), 8) is HOLD
    assert rank.start()[-1] == Resume(rank=2)
    assert rank.place(rank.chunk(SCATTER, 0, 1), 8) == InScratch(slot=0)


def test_what_replaces_memory_waits_until_the_bucket_has_started() -> None:
    for world_size, servers, phase, source in ((3, 0, GATHER, 2), (3, 2, PULL, 1)):
        rank = Rank(world_size, servers=servers)
        rank.open(shape(6, Operation.ALL_GATHER))
        chunk = rank.chunk(phase, 0, source=source)
        assert rank.place(chunk, 8) is HOLD
        assert rank.start()[-1] == Resume(rank=source)
        assert isinstance(rank.place(chunk, 8), InBucket)


def test_chunks_wait_for_a_bucket_that_is_still_to_be_added() -> None:
    rank = Rank()
    rank.open(6, may_add=2)
    early = rank.chunk(SCATTER, 0, bucket=1)
    assert rank.place(early, 8) is HOLD
    assert rank.machine.add([shape(6)]) == [Resume(rank=2)]
    assert isinstance(rank.place(early, 8), InScratch)
    assert rank.place(rank.chunk(SCATTER, 0, bucket=2), 8) is HOLD
    assert "the step has 2 buckets" in rank.refused(rank.chunk(SCATTER, 0, bucket=3)).message
    with pytest.raises(LocalProtocolError, match="2 buckets added to step 0, which takes 1 more"):
        rank.machine.add([shape(6)] * 2)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code", "why"),
    [
        ({"generation": 4}, ErrorCode.STALE_GENERATION, "generation 4; this one is 5"),
        ({"step": 42}, ErrorCode.UNEXPECTED_CHUNK, "step 42; this rank is at step 40"),
        ({"step": 39}, ErrorCode.UNEXPECTED_CHUNK, "step 39; this rank is at step 40"),
        ({"bucket": 1}, ErrorCode.UNEXPECTED_CHUNK, "the step has 1 buckets"),
        ({"phase": EXCHANGE}, ErrorCode.UNEXPECTED_CHUNK, "has no such phase and hop"),
        ({"phase": PUSH}, ErrorCode.UNEXPECTED_CHUNK, "has no such phase and hop"),
        ({"hop": 2}, ErrorCode.UNEXPECTED_CHUNK, "has no such phase and hop"),
        ({"number": 1}, ErrorCode.UNEXPECTED_CHUNK, "expected chunk 0"),
    ],
)
def test_a_chunk_of_another_form_is_refused(
    changed: dict[str, int], code: ErrorCode, why: str
) -> None:
    rank = Rank(first_step=40)
    rank.open(12, step=40)
    rank.start()
    error = rank.refused(rank.chunk(**({"phase": SCATTER, "hop": 0} | changed)))
    assert error.code == code
    assert why in error.message


def test_a_chunk_on_the_link_of_another_rank_is_refused() -> None:
    rank = Rank(4, rank=2, servers=2)
    rank.open(shape(8, Operation.REDUCE_SCATTER))
    with pytest.raises(ProtocolError, match="from rank 0 on the link of rank 1") as raised:
        rank.place(rank.chunk(PUSH, 0, source=0), 8, link=1)
    assert raised.value.code is ErrorCode.WRONG_SOURCE


@pytest.mark.parametrize("payload_bytes", [0, 4, 12])
def test_a_payload_of_the_wrong_size_is_refused(payload_bytes: int) -> None:
    rank = Rank()
    rank.open(12)
    error = rank.refused(rank.chunk(SCATTER, 0), payload_bytes)
    assert error.code == ErrorCode.BAD_PAYLOAD
    assert f"payload is {payload_bytes} bytes, not 8" in error.message
    assert rank.take(rank.chunk(SCATTER, 0)) == []  # nothing was counted


# --- small gathers -------------------------------------------------------------------------------


def test_entries_go_down_the_tree_and_complete_the_gather() -> None:
    rank = Rank(4, rank=1)
    rank.open()

    def sent(effects: list[Effect]) -> list[tuple[int, int, int]]:
        assert all(isinstance(one, SendGather) for one in effects)
        return [(one.rank, one.gather.origin, one.gather.hop) for one in effects]

    for sequence in range(2):
        assert sent(rank.checked(rank.machine.offer_gather())) == [(2, 1, 0), (3, 1, 1)]
        assert sent(rank.take_entry(rank.entry(0, sequence))) == [(3, 0, 2)]
        assert rank.take_entry(rank.entry(3, sequence, source=3)) == []
        last = rank.entry(2, sequence, source=3)
        assert rank.take_entry(last) == [GatherDone(sequence=sequence)]


@pytest.mark.parametrize(
    ("origin", "changed", "why"),
    [
        (0, {}, "not possible at rank 0"),  # our own
        (3, {"hop": 2}, "not possible"),
        (1, {"hop": 0, "source": 1}, "not possible"),
        (1, {}, "not possible"),  # it comes over the stride of 2
        (2, {"sequence": 1}, "expected number 0"),
        (2, {"generation": 4}, "generation 4"),
    ],
)
def test_an_entry_that_cannot_come_is_refused(
    origin: int, changed: dict[str, int], why: str
) -> None:
    rank = Rank()
    rank.open()
    assert why in rank.refused_entry(rank.entry(origin, **changed)).message


def test_no_rank_is_more_than_one_gather_ahead() -> None:
    rank = Rank(2)
    rank.open()
    rank.take_entry(rank.entry(1, 0))
    assert "has not seen our entry 0" in rank.refused_entry(rank.entry(1, 1)).message
    rank.checked(rank.machine.offer_gather())
    rank.take_entry(rank.entry(1, 1))


# --- shared memory -------------------------------------------------------------------------------


def test_a_shared_bucket_is_done_when_the_next_rank_has_released_it() -> None:
    rank = Rank(2)
    rank.open(6, 6, shared=(0,))
    loans = [one.chunk.loan for one in rank.start() + rank.start(1) if isinstance(one, SendChunk)]
    assert loans == [LOAN, LOAN, 0, 0]
    for phase in (SCATTER, GATHER):
        rank.take(rank.chunk(phase, 0))
        assert BucketDone(bucket=0) not in rank.take(rank.chunk(phase, 0, 1), 4)
    assert "waits for rank 1 to read its last chunks" in rank.machine.explain()
    assert rank.release() == [BucketDone(bucket=0)]
    with pytest.raises(ProtocolError, match="which is not shared"):
        rank.release()


def test_shared_chunks_are_read_in_their_turn_and_released_at_the_end() -> None:
    rank = Rank(slots=0)
    rank.open(3)
    with pytest.raises(ProtocolError, match="payload is 4 bytes, not 0"):
        rank.place(rank.chunk(SCATTER, 0, loan=LOAN), 4)
    rank.start()
    reduce, passed_on = rank.take(rank.chunk(SCATTER, 0, loan=LOAN))
    assert reduce == ReduceShared(bucket=0, start=2, stop=3, version=LOAN)
    assert isinstance(passed_on, SendChunk)
    rank.take(rank.chunk(SCATTER, 1, loan=LOAN))
    rank.take(rank.chunk(GATHER, 0, loan=LOAN))
    assert rank.take(rank.chunk(GATHER, 1, loan=LOAN)) == [
        CopyShared(bucket=0, start=2, stop=3, version=LOAN),
        SendReleased(released=ShmReleased(generation=GENERATION, step=0, bucket=0)),
        BucketDone(bucket=0),
    ]


def test_a_shared_chunk_that_comes_early_waits_in_a_slot() -> None:
    rank = Rank(slots=1)
    rank.open(12)
    early = [rank.chunk(SCATTER, 0, number, loan=LOAN) for number in (0, 1)]
    assert rank.place(early[0], 0) == InShared(slot=0)
    assert rank.checked(rank.machine.received(early[0], 0)) == []
    assert rank.place(early[1], 0) is HOLD
    assert ReduceShared(bucket=0, start=8, stop=10, version=LOAN) in rank.start()
    assert rank.place(early[1], 0) == InShared(slot=None)


@pytest.mark.parametrize(
    ("bucket", "changed", "code"),
    [
        (0, {"generation": 4}, ErrorCode.STALE_GENERATION),
        (0, {"step": 1}, ErrorCode.UNEXPECTED_CHUNK),
        (1, {}, ErrorCode.UNEXPECTED_CHUNK),
        (2, {}, ErrorCode.UNEXPECTED_CHUNK),
    ],
)
def test_what_cannot_have_been_released_is_refused(
    bucket: int, changed: dict[str, int], code: ErrorCode
) -> None:
    rank = Rank()
    rank.open(12, 12, shared=(0,))
    rank.start(0)
    rank.start(1)
    with pytest.raises(ProtocolError) as caught:
        rank.release(bucket, **changed)
    assert caught.value.code == code
    assert rank.release() == []


# --- misuse on this side -------------------------------------------------------------------------
