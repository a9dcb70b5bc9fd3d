"""A neighbour that sends anything: nothing is accepted but what the operation has, in its order.

Refused chunks leave no trace: the honest ones between and after them still complete the bucket.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.errors import ProtocolError
from dtd.exchange.ring.chunks import BucketShape, Operation, cut
from dtd.exchange.ring.events import (
    BucketDone,
    BucketStarted,
    ChunkReceived,
    InLent,
    InScratch,
    SendChunk,
    StepOpened,
)
from dtd.exchange.ring.machine import Ring
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, Phase

ITEM_BYTES = 4
CHUNK_ELEMENTS = 2

shapes = st.one_of(
    st.builds(
        BucketShape,
        elements=st.integers(0, 40),
        item_bytes=st.just(ITEM_BYTES),
        operation=st.just(Operation.REDUCE_SCATTER),
        copies=st.integers(0, 5),
    ),
    st.builds(
        BucketShape,
        elements=st.integers(0, 40),
        item_bytes=st.just(ITEM_BYTES),
        operation=st.just(Operation.ALL_GATHER),
        copies=st.integers(0, 5),
        hops=st.none() | st.integers(0, 5),
    ),
)


def hops_of(shape: BucketShape, world_size: int) -> list[tuple[Phase, int]]:
    """The (phase, hop) pairs of an operation, as protocol.md has them in its table."""
    hops, copies = world_size - 1, min(shape.copies, world_size - 1)
    if shape.operation is Operation.REDUCE_SCATTER:
        scattered = [(Phase.REDUCE_SCATTER, hop) for hop in range(hops)]
        return scattered + [(Phase.ALL_GATHER, hop) for hop in range(copies)]
    end = hops if shape.hops is None else min(shape.hops, hops)
    return [(Phase.ALL_GATHER, hop) for hop in range(copies, end)]


class _Liar:
    """The rank before a machine, and what the machine has accepted from it."""

    def __init__(self, shape: BucketShape, *, rank: int, world_size: int) -> None:
        self.ring = Ring(
            rank=rank,
            world_size=world_size,
            generation=1,
            first_step=0,
            chunk_bytes=CHUNK_ELEMENTS * ITEM_BYTES,
            scratch_slots=2,
        )
        self.segments = cut(shape, world_size=world_size, chunk_bytes=CHUNK_ELEMENTS * ITEM_BYTES)
        self.sums = shape.operation is Operation.REDUCE_SCATTER
        self.hops = hops_of(shape, world_size)
        self.started = False
        self.accepted: set[tuple[int, int, int]] = set()
        self.sent: set[tuple[int, int, int]] = set()
        self.done = 0
        self.handle(StepOpened(step=0, buckets=(shape,)))

    def handle(self, event: object) -> None:
        for effect in self.ring.handle(event, 0.0):
            self.done += isinstance(effect, BucketDone)
            if isinstance(effect, SendChunk):
                self.sent.add((effect.chunk.phase, effect.chunk.hop, effect.chunk.chunk))
        self.ring.check_invariants()

    def start(self) -> None:
        self.started = True
        self.handle(BucketStarted(bucket=0))

    def segment(self, phase: int, hop: int) -> int:
        first = self.ring.rank - (phase == Phase.REDUCE_SCATTER)
        return (first - hop) % self.ring.world_size

    def size_bytes(self, phase: int, hop: int, chunk: int) -> int:
        start, stop = self.segments.chunk(self.segment(phase, hop), chunk)
        return (stop - start) * ITEM_BYTES

    def must_refuse(self, phase: int, hop: int, chunk: int, payload_bytes: int) -> bool:
        if (phase, hop) not in self.hops:
            return True
        placed = sum((phase, hop) == one[:2] for one in self.accepted)
        if chunk != placed or chunk >= self.segments.chunk_count(self.segment(phase, hop)):
            return True
        if not self.sums and not self.started:
            return False  # it waits on the link, whatever it is
        if payload_bytes != self.size_bytes(phase, hop, chunk):
            return True
        passed_on = (self.ring.rank - self.segment(phase, hop)) % self.ring.world_size
        part_is_in = (Phase.REDUCE_SCATTER, passed_on, chunk) in self.sent
        return phase == Phase.ALL_GATHER and self.sums and not part_is_in

    def send(self, phase: int, hop: int, chunk: int, payload_bytes: int) -> bool:
        """Send a chunk, true or not; whether it was accepted."""
        header = Chunk(
            generation=1,
            step=0,
            phase=phase,
            hop=hop,
            bucket=0,
            chunk=chunk,
            source=(self.ring.rank - 1) % self.ring.world_size,
        )
        must_refuse = self.must_refuse(phase, hop, chunk, payload_bytes)
        try:
            place = self.ring.place(header, payload_bytes)
        except ProtocolError:
            assert must_refuse, "an honest chunk was refused"
            return False
        assert not must_refuse, "a chunk that cannot come was accepted"
        if isinstance(place, Hold):
            return False
        self.accepted.add((phase, hop, chunk))
        slot = place.slot if isinstance(place, InScratch | InLent) else None
        self.handle(ChunkReceived(chunk=header, slot=slot))
        return True

    def send_the_rest(self) -> None:
        for phase, hop in self.hops:
            for chunk in range(self.segments.chunk_count(self.segment(phase, hop))):
                if (phase, hop, chunk) not in self.accepted:
                    assert self.send(phase, hop, chunk, self.size_bytes(phase, hop, chunk))


@settings(max_examples=150)
@given(
    shape=shapes,
    world_size=st.integers(2, 5),
    rank=st.integers(0, 4),
    lies=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 5), st.integers(0, 4), st.sampled_from([0, 4, 8])
        ),
        max_size=30,
    ),
    starts_at=st.integers(0, 30),
    seed=st.integers(0, 2**32),
)
def test_only_the_chunks_of_an_operation_are_accepted_and_each_once(
    shape: BucketShape,
    world_size: int,
    rank: int,
    lies: list[tuple[int, int, int, int]],
    starts_at: int,
    seed: int,
) -> None:
    liar, random = _Liar(shape, rank=rank % world_size, world_size=world_size), Random(seed)
    for position, lie in enumerate(lies):
        if position == starts_at:
            liar.start()
        liar.send(*lie)
        if liar.hops and random.random() < 0.5:
            phase, hop = random.choice(liar.hops)
            placed = sum((phase, hop) == one[:2] for one in liar.accepted)
            if placed < liar.segments.chunk_count(liar.segment(phase, hop)):
                liar.send(phase, hop, placed, liar.size_bytes(phase, hop, placed))
    if not liar.started:
        liar.start()
    liar.send_the_rest()
    assert liar.done == 1
    assert len(liar.sent) == sum(
        liar.segments.chunk_count((liar.segment(phase, hop) + 1) % world_size)
        for phase, hop in liar.hops
    )
    assert not liar.send(*(liar.hops[0] if liar.hops else (0, 0)), 0, 0)
