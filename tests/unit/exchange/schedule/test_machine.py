"""One machine alone: what it does with an event, what it holds back, and what it refuses.

That sums are right in any order of deliveries is `tests/property/test_ring.py`'s and
`tests/property/test_star.py`'s.
"""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.schedule.chunks import BucketShape, Operation
from dtd.exchange.schedule.events import (
    BucketDone,
    BucketReleased,
    BucketStarted,
    ChunkReceived,
    Effect,
    Event,
    InBucket,
    InScratch,
    InShared,
    Reduce,
    Resume,
    SendChunk,
    StepOpened,
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
            schedules = RingSchedules(rank, world_size, chunk_bytes=CHUNK_BYTES)
        self.machine = Machine(
            schedules, generation=GENERATION, first_step=first_step, scratch_slots=slots
        )
        self.previous = (rank - 1) % world_size

    def handle(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event)
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
        return self.handle(
            StepOpened(
                step=step, buckets=buckets, version=loan, shared=frozenset(shared), may_add=may_add
            )
        )

    def start(self, bucket: int = 0) -> list[Effect]:
        return self.handle(BucketStarted(bucket=bucket))

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
        return self.handle(ChunkReceived(chunk=chunk, slot=slot))

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
            "hop": (self.previous - origin) % self.machine.world_size,
        } | changed
        return SmallGather(origin=origin, sequence=sequence, **values)

    def refused_entry(self, entry: SmallGather) -> ProtocolError:
        with pytest.raises(ProtocolError) as caught:
            self.machine.accept_gather(entry, link=self.previous)
        return caught.value

    def release(self, bucket: int = 0, **changed: int) -> list[Effect]:
        values = {"generation": GENERATION, "step": self.machine.step} | changed
        return self.handle(BucketReleased(released=ShmReleased(bucket=bucket, **values)))


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
    reduce, passed_on = rank.handle(ChunkReceived(chunk=rank.chunk(SCATTER, 0), slot=3))
    assert reduce == Reduce(bucket=0, start=3, stop=5, slot=3)
    assert sent([passed_on]) == [(1, GATHER, 0, 3, 5)]
    assert rank.place(rank.chunk(GATHER, 0), 8) == InBucket(bucket=0, start=0, stop=2)
    assert rank.handle(ChunkReceived(chunk=rank.chunk(GATHER, 0))) == []
    assert rank.take(rank.chunk(GATHER, 0, 1), 4) == []
    effects = rank.take(rank.chunk(SCATTER, 0, 1), 4)
    assert [type(one) for one in effects] == [Reduce, SendChunk, BucketDone]
    assert rank.machine.explain() == "step 0: waits for nothing"


# --- what waits on its link ----------------------------------------------------------------------


def test_frames_of_the_next_step_wait_for_it() -> None:
    rank = Rank()
    chunk, entry = rank.chunk(SCATTER, 0), rank.entry(2)
    assert rank.place(chunk, 4) is HOLD
    assert rank.machine.accept_gather(entry, link=2) is HOLD
    assert rank.open(3) == [Resume(rank=2)]
    assert rank.place(chunk, 4) == InScratch(slot=3)
    assert rank.machine.accept_gather(entry, link=2) is None


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


@pytest.mark.parametrize("payload_bytes", [0, 4, 12])
def test_a_payload_of_the_wrong_size_is_refused(payload_bytes: int) -> None:
    rank = Rank()
    rank.open(12)
    error = rank.refused(rank.chunk(SCATTER, 0), payload_bytes)
    assert error.code == ErrorCode.BAD_PAYLOAD
    assert f"payload is {payload_bytes} bytes, not 8" in error.message
    assert rank.take(rank.chunk(SCATTER, 0)) == []  # nothing was counted


# --- small gathers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "changed", "why"),
    [
        (0, {}, "not possible at rank 0"),  # our own
        (3, {"hop": 2}, "not possible"),
        (1, {"hop": 0}, "not possible"),
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
