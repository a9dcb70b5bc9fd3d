"""The star machine, chunk by chunk: who sends what to whom, what waits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.ring.chunks import BucketShape, Operation
from dtd.exchange.ring.events import BucketDone, BucketsAdded, BucketStarted, InBucket, StepOpened
from dtd.exchange.star.events import AddFrom, ChunkArrived, Effect, InScratchOf, ResumeLink, SendTo
from dtd.exchange.star.machine import Star, goes_by_star
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase

PUSH, SUMMED, PULL = Phase.PUSH, Phase.SUMMED, Phase.PULL
ITEM_BYTES = 4
GENERATION = 3


def shape(
    elements: int = 8, operation: Operation = Operation.REDUCE_SCATTER, copies: int = 0
) -> BucketShape:
    return BucketShape(elements=elements, item_bytes=ITEM_BYTES, operation=operation, copies=copies)


def gather(elements: int = 8, copies: int = 0) -> BucketShape:
    return shape(elements, Operation.ALL_GATHER, copies)


class Desk:
    """One rank of two trainers (0, 1) and two servers (2, 3); two elements in a chunk."""

    def __init__(self, rank: int, *shapes: BucketShape, may_add: int = 0) -> None:
        self.core = Star(
            rank=rank,
            world_size=4,
            servers=2,
            generation=GENERATION,
            first_step=0,
            chunk_bytes=2 * ITEM_BYTES,
        )
        if shapes or may_add:
            self.handle(StepOpened(step=0, buckets=shapes, may_add=may_add))

    def handle(self, event: StepOpened | BucketsAdded | BucketStarted) -> list[Effect]:
        effects = self.core.handle(event, 0.0)
        self.core.check_invariants()
        return effects

    def start(self, bucket: int = 0) -> list[Effect]:
        return self.handle(BucketStarted(bucket=bucket))

    def chunk(
        self, phase: Phase, source: int, number: int = 0, *, bucket: int = 0, step: int = 0
    ) -> Chunk:
        return Chunk(
            generation=GENERATION,
            step=step,
            phase=phase,
            hop=0,
            bucket=bucket,
            chunk=number,
            source=source,
        )

    def place(self, chunk: Chunk, payload_bytes: int = 2 * ITEM_BYTES) -> object:
        return self.core.place(chunk, payload_bytes, link=chunk.source)

    def take(self, chunk: Chunk, payload_bytes: int = 2 * ITEM_BYTES) -> list[Effect]:
        """Place a chunk, which must be possible, and report its arrival."""
        assert self.place(chunk, payload_bytes) is not HOLD
        effects = self.core.handle(ChunkArrived(chunk=chunk), 0.0)
        self.core.check_invariants()
        return effects


def sent(effects: list[Effect]) -> list[tuple[int, int, int, int]]:
    """(phase, rank, first element, last element + 1) of all chunks sent."""
    return [
        (one.chunk.phase, one.rank, one.start, one.stop)
        for one in effects
        if isinstance(one, SendTo)
    ]


# --- a bucket from start to done -----------------------------------------------------------------


def test_a_trainer_pushes_every_segment_to_its_owner_and_is_done() -> None:
    effects = Desk(1, shape()).start()
    assert sent(effects) == [(PUSH, 2, 0, 2), (PUSH, 3, 4, 6), (PUSH, 2, 2, 4), (PUSH, 3, 6, 8)]
    assert effects[-1] == BucketDone(bucket=0)
    first = effects[0]
    assert isinstance(first, SendTo)
    assert first.chunk == Desk(1).chunk(PUSH, 1)


def test_a_server_adds_in_rank_order_and_passes_sums_to_its_mirrors() -> None:
    desk = Desk(2, shape(copies=1))
    assert desk.start() == []
    for number, (start, stop) in enumerate([(0, 2), (2, 4)]):
        chunk = desk.chunk(PUSH, 0, number)
        assert desk.place(chunk) == InBucket(bucket=0, start=start, stop=stop)
        assert desk.take(chunk) == []
        chunk = desk.chunk(PUSH, 1, number)
        assert desk.place(chunk) == InScratchOf(rank=1)
        add, *rest = desk.take(chunk)
        assert add == AddFrom(rank=1, bucket=0, start=start, stop=stop)
        assert sent(rest) == [(SUMMED, 3, start, stop)]
    for number, start in enumerate([4, 6]):
        chunk = desk.chunk(SUMMED, 3, number)
        assert desk.place(chunk) == InBucket(bucket=0, start=start, stop=start + 2)
        effects = desk.take(chunk)
    assert effects == [BucketDone(bucket=0)]
    assert desk.core.explain() == "step 0: the star waits for nothing"


def test_owners_let_all_pull_who_do_not_hold_the_segment() -> None:
    assert sent(Desk(3, gather()).start()) == [
        (PULL, rank, start, start + 2) for start in (4, 6) for rank in (0, 1, 2)
    ]
    effects = Desk(3, gather(copies=1)).start()
    assert sent(effects) == [(PULL, rank, start, start + 2) for start in (4, 6) for rank in (0, 1)]
    assert effects[-1] == BucketDone(bucket=0)


def test_a_trainer_pulls_all_segments() -> None:
    desk = Desk(0, gather(5))
    assert desk.start() == []
    assert desk.take(desk.chunk(PULL, 3)) == []
    assert desk.take(desk.chunk(PULL, 2)) == []
    assert desk.core.explain() == (
        "step 0: star bucket 0 waits for pull chunk 1 of 2 of bucket 0 from rank 3"
    )
    assert desk.take(desk.chunk(PULL, 3, 1), ITEM_BYTES) == [BucketDone(bucket=0)]


def test_a_segment_without_elements_is_one_empty_chunk() -> None:
    desk = Desk(2, shape(1))
    desk.start()
    assert desk.take(desk.chunk(PUSH, 0), 0) == []
    add, done = desk.take(desk.chunk(PUSH, 1), 0)
    assert add == AddFrom(rank=1, bucket=0, start=0, stop=0)
    assert done == BucketDone(bucket=0)


def test_buckets_start_in_index_order() -> None:
    desk = Desk(0, shape(), gather(), shape())
    assert desk.start(2) == []
    assert desk.core.explain() == "step 0: star bucket 0 waits to be started here"
    assert [one.chunk.bucket for one in desk.start(0) if isinstance(one, SendTo)] == [0] * 4
    assert [one.chunk.bucket for one in desk.start(1) if isinstance(one, SendTo)] == [2] * 4


def test_a_bucket_is_divided_once_it_is_needed(divided: list[int]) -> None:
    """A step of thousands opens in one callback of the event loop."""
    desk = Desk(2, shape(8), gather(6), shape(10))
    assert divided == []
    assert desk.core.explain() == "step 0: star bucket 0 waits to be started here"
    desk.start(1)
    assert divided == []
    desk.start(0)
    assert set(divided) == {6, 8}


def test_an_element_may_be_larger_than_a_chunk() -> None:
    core = Star(rank=0, world_size=2, servers=1, generation=GENERATION, first_step=0, chunk_bytes=4)
    large = BucketShape(elements=2, item_bytes=8, operation=Operation.REDUCE_SCATTER)
    core.handle(StepOpened(step=0, buckets=(large,)), 0.0)
    effects = core.handle(BucketStarted(bucket=0), 0.0)
    assert sent(effects) == [(PUSH, 1, 0, 1), (PUSH, 1, 1, 2)]


# --- what waits on its link ----------------------------------------------------------------------


def test_a_contribution_waits_for_those_of_lower_ranks() -> None:
    desk = Desk(2, shape())
    desk.start()
    assert desk.place(desk.chunk(PUSH, 1)) is HOLD
    assert desk.take(desk.chunk(PUSH, 0)) == [ResumeLink(rank=1)]
    assert desk.take(desk.chunk(PUSH, 0, 1)) == []
    desk.take(desk.chunk(PUSH, 1))
    assert desk.place(desk.chunk(PUSH, 1, 1)) == InScratchOf(rank=1)


def test_chunks_wait_for_their_bucket() -> None:
    desk = Desk(2, gather(), shape())
    assert desk.place(desk.chunk(PUSH, 0, bucket=1)) is HOLD
    assert desk.place(desk.chunk(PULL, 3)) is HOLD
    assert desk.start(1) == [ResumeLink(rank=0), ResumeLink(rank=3)]
    assert desk.place(desk.chunk(PUSH, 0, bucket=1)) is HOLD
    assert desk.start(0)[-1] == ResumeLink(rank=0)
    desk.take(desk.chunk(PUSH, 0, bucket=1))


def test_chunks_wait_for_their_step() -> None:
    desk = Desk(2)
    assert desk.place(desk.chunk(PUSH, 0)) is HOLD
    assert desk.handle(StepOpened(step=0, buckets=(shape(),))) == [ResumeLink(rank=0)]


def test_chunks_wait_for_a_bucket_that_is_still_to_be_added() -> None:
    desk = Desk(2, may_add=2)
    assert desk.place(desk.chunk(PUSH, 0, bucket=1)) is HOLD
    assert desk.handle(BucketsAdded(buckets=(gather(), shape()))) == [ResumeLink(rank=0)]
    desk.start(0)
    desk.start(1)
    desk.take(desk.chunk(PUSH, 0, bucket=1))
    with pytest.raises(LocalProtocolError, match="takes 0 more"):
        desk.handle(BucketsAdded(buckets=(shape(),)))


# --- what is refused -----------------------------------------------------------------------------


def started(rank: int, *shapes: BucketShape) -> Desk:
    desk = Desk(rank, *shapes)
    for bucket in range(len(shapes)):
        desk.start(bucket)
    return desk


def altered(given: Chunk, **fields: int) -> Chunk:
    values = {name: getattr(given, name) for name in Chunk.__slots__}
    return Chunk(**(values | fields))


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"generation": 2}, ErrorCode.STALE_GENERATION, "generation 2; this star is generation 3"),
        ({"step": 2}, ErrorCode.UNEXPECTED_CHUNK, "step 2; this star is at step 0"),
        ({"hop": 1}, ErrorCode.UNEXPECTED_CHUNK, "one hop"),
        ({"loan": 1}, ErrorCode.UNEXPECTED_CHUNK, "lends nothing"),
        ({"chunk": 1}, ErrorCode.UNEXPECTED_CHUNK, "expected chunk 0 of 2 of bucket 0"),
        ({"bucket": 1}, ErrorCode.UNEXPECTED_CHUNK, "expected chunk 0 of 2 of bucket 0"),
        ({"bucket": 9}, ErrorCode.UNEXPECTED_CHUNK, "expected chunk 0 of 2 of bucket 0"),
        ({"step": 1}, ErrorCode.UNEXPECTED_CHUNK, "expected chunk 0 of 2 of bucket 0 of step 0"),
        ({"phase": SUMMED}, ErrorCode.WRONG_SOURCE, "phase 4 from rank 0"),
        ({"phase": PULL}, ErrorCode.WRONG_SOURCE, "phase 5 from rank 0"),
        ({"phase": 0}, ErrorCode.WRONG_SOURCE, "phase 0 from rank 0"),
        ({"phase": 6}, ErrorCode.WRONG_SOURCE, "phase 6 from rank 0"),
    ],
)
def test_a_server_checks_everything(fields: dict[str, int], code: ErrorCode, why: str) -> None:
    desk = started(2, shape(), shape())
    with pytest.raises(ProtocolError, match=why) as raised:
        desk.place(altered(desk.chunk(PUSH, 0), **fields))
    assert raised.value.code is code
    desk.take(desk.chunk(PUSH, 0))


def test_nobody_speaks_for_others() -> None:
    desk = started(2, shape())
    with pytest.raises(ProtocolError, match="from rank 0 on the link of rank 1") as raised:
        desk.core.place(desk.chunk(PUSH, 0), 8, link=1)
    assert raised.value.code is ErrorCode.WRONG_SOURCE


@pytest.mark.parametrize(
    ("rank", "phase", "source"),
    [(0, PUSH, 1), (0, SUMMED, 2), (0, PULL, 1), (2, PUSH, 3), (2, SUMMED, 2), (2, PULL, 4)],
)
def test_who_may_send_what(rank: int, phase: Phase, source: int) -> None:
    desk = started(rank, shape(copies=1), gather())
    with pytest.raises(ProtocolError, match=f"has none for rank {rank}"):
        desk.place(desk.chunk(phase, source))


def test_a_payload_has_the_length_of_its_chunk() -> None:
    desk = started(2, shape())
    with pytest.raises(ProtocolError, match="payload is 4 bytes, not 8") as raised:
        desk.place(desk.chunk(PUSH, 0), 4)
    assert raised.value.code is ErrorCode.BAD_PAYLOAD


def test_no_chunk_comes_twice() -> None:
    desk = started(0, gather())
    desk.take(desk.chunk(PULL, 2))
    with pytest.raises(ProtocolError, match="expected chunk 1 of 2 of bucket 0"):
        desk.place(desk.chunk(PULL, 2))
    desk.take(desk.chunk(PULL, 2, 1))
    with pytest.raises(ProtocolError, match="expected nothing more"):
        desk.place(desk.chunk(PULL, 2, 1))
    assert desk.place(desk.chunk(PULL, 2, step=1)) is HOLD


# --- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [0, 2, 3])
def test_a_star_has_servers_and_trainers(servers: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"2 ranks has {servers} servers"):
        Star(rank=0, world_size=2, servers=servers, generation=1, first_step=0, chunk_bytes=8)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda desk: desk.start(0), "bucket 0 started twice"),
        (lambda desk: desk.start(7), "bucket 7 started twice or does not exist"),
        (lambda desk: desk.handle(StepOpened(step=0, buckets=())), "step 0 opened after step 0"),
        (
            lambda desk: desk.handle(StepOpened(step=1, buckets=())),
            "step 1 opened while step 0: star bucket 0 waits for pull chunk 0 of 2",
        ),
    ],
)
def test_misuse_is_refused(call: Callable[[Desk], object], why: str) -> None:
    desk = started(0, gather())
    with pytest.raises(LocalProtocolError, match=why):
        call(desk)


def test_other_buckets_need_the_ring() -> None:
    bounded = BucketShape(
        elements=2, item_bytes=4, operation=Operation.ALL_GATHER, bounds=(0, 1, 2)
    )
    short = BucketShape(elements=2, item_bytes=4, operation=Operation.ALL_GATHER, hops=1)
    for one in (bounded, short, shape(operation=Operation.SUM), shape(operation=Operation.MAXIMUM)):
        assert not goes_by_star(one)
        with pytest.raises(LocalProtocolError, match="bucket 0 of step 0 needs the ring"):
            Desk(0, one)
    assert goes_by_star(shape())
    assert goes_by_star(gather())
