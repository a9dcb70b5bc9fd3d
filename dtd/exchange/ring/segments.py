"""The all-reduce of a bucket in segments: reduce-scatter, then all-gather.

The bandwidth path, pipelined chunk by chunk (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009; protocol.md, "All-reduce").  With N ranks a bucket
is divided into N segments.  In hop h of the reduce-scatter rank r sends segment (r - h) mod N to
rank r + 1 and adds what it receives to segment (r - h - 1) mod N; after N - 1 hops it owns the
complete sum of segment (r + 1) mod N.  In hop h of the all-gather it sends segment (r + 1 - h) mod
N and receives (r - h) mod N.  A chunk is forwarded as soon as it is reduced.  The ring sums each
segment in one order, so all ranks end with the same bytes.

Chunks to be added arrive in scratch slots, of which there are few; a chunk without a free slot
waits on the wire.  A slot is freed once its bucket has started, which depends on no other rank.  A
chunk in shared memory (see below) needs a slot only until its bucket has started, as its place in
the queue.

A bucket is shared with a neighbour on the same host instead of being sent (protocol.md, "Loans"):
chunks are the same and arrive in the same order, but without payload, and the reader adds or copies
them directly from shared memory when their turn comes.  That is safe within a bucket: a shared
segment is overwritten only with a later sum, and no later sum exists without the reader's own part.
Afterwards the bucket is done only when the reader reports that it has read everything.

Numbered through both phases, hop h of 2 (N - 1) always moves segment (r - h) mod N out of rank r
and (r - h - 1) mod N in, so a part of the sum is a window of these hops
(`dtd.exchange.ring.chunks.Operation`): a reduce-scatter, which may copy its sums to further ranks,
or an all-gather, which may begin with such copies and end early.  An all-gather writes to the
bucket from its first chunk on, so that chunk waits on the link until the bucket has started.
"""

from __future__ import annotations

from typing import Final

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.ring.chunks import BucketShape, cut
from dtd.exchange.ring.events import (
    BucketDone,
    ChunkReceived,
    CopyLent,
    Effect,
    InBucket,
    InLent,
    InScratch,
    Reduce,
    ReduceLent,
    SendChunk,
    SendTaken,
)
from dtd.exchange.ring.position import RingPosition, check_payload, refused
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import Chunk, Phase, ShmReleased

SCATTER: Final = Phase.REDUCE_SCATTER
GATHER: Final = Phase.ALL_GATHER


class Scratch:
    """The scratch slots of one ring."""

    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))
        self._slots = slots

    def check_invariants(self, used: int) -> None:
        """Raise AssertionError when a slot is lost, or freed twice."""
        assert len(self.free) + used == self._slots
        assert len(set(self.free)) == len(self.free)


class SegmentedBucket:
    """One bucket of one step that travels in segments.

    Args:
        seat: this rank's position.
        scratch: the ring's scratch slots.
        shape: the bucket's shape.
        step: the open step.
        index: the bucket's number in it.
        chunk_bytes: most payload bytes in one frame.
        loan: the number under which the next rank may read the bucket; 0 if it cannot.

    Attributes:
        started: this rank's own contribution is complete, and its first segment has been sent.
    """

    def __init__(
        self,
        seat: RingPosition,
        scratch: Scratch,
        shape: BucketShape,
        *,
        step: int,
        index: int,
        chunk_bytes: int,
        loan: int = 0,
    ) -> None:
        self.started = False
        self._seat = seat
        self._scratch = scratch
        self._step = step
        self._index = index
        self._loan = loan
        self._lent = False  # the next rank reads this bucket from shared memory
        self._borrowed = False  # this rank reads from the previous rank's memory
        self._slots_used = 0
        self._window = shape.window(seat.world_size)
        self._segments = cut(shape, world_size=seat.world_size, chunk_bytes=chunk_bytes)
        self._item_bytes = shape.item_bytes
        self._placed = [0] * (2 * seat.hops)  # indexed by hop, through both phases
        self._received = [0] * (2 * seat.hops)
        self._early: list[ChunkReceived] = []
        self._missing = sum(self._segments.chunk_count(self._incoming(hop)) for hop in self._window)

    @property
    def done(self) -> bool:
        """Whether all of the result is here, and no other rank reads it."""
        return self.started and self._missing == 0 and not self._lent

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int) -> InScratch | InBucket | InLent | Hold:
        """Return the place of an announced chunk's payload; HOLD without a free scratch slot.

        Raises:
            ProtocolError: the chunk is not the next one of its hop.
        """
        hop = self._hop(chunk)
        expected = self._placed[hop]
        segment = self._incoming(hop)
        if chunk.chunk != expected or expected >= self._segments.chunk_count(segment):
            raise refused(chunk, f"expected chunk {expected}")
        if not self._sums and not self.started:
            return HOLD
        if chunk.phase == GATHER and not self._may_be_complete(segment, chunk.chunk):
            raise refused(chunk, "its sum cannot be complete: this rank's part is missing")
        start, stop = self._segments.chunk(segment, chunk.chunk)
        check_payload(chunk, payload_bytes, 0 if chunk.loan else (stop - start) * self._item_bytes)
        needs_slot = chunk.phase == SCATTER and not (chunk.loan and self.started)
        if needs_slot and not self._scratch.free:
            return HOLD
        self._placed[hop] += 1
        slot = self._scratch.free.pop() if needs_slot else None
        self._slots_used += needs_slot
        if chunk.loan:
            return InLent(slot=slot)
        if slot is not None:
            return InScratch(slot=slot)
        return InBucket(bucket=self._index, start=start, stop=stop)

    def _hop(self, chunk: Chunk) -> int:
        """Return the number of a chunk's hop through both phases.

        Raises:
            ProtocolError: it is not one of this bucket's hops.
        """
        if chunk.phase not in (SCATTER, GATHER):
            raise refused(chunk, "no such phase: the bucket travels in segments")
        hop = chunk.phase * self._seat.hops + chunk.hop
        if chunk.hop >= self._seat.hops or hop not in self._window:
            raise refused(chunk, "no such hop")
        return hop

    @property
    def _sums(self) -> bool:
        """Whether contributions are added, in hops before the first complete sum."""
        return self._window.start < self._seat.hops

    def _may_be_complete(self, segment: int, chunk: int) -> bool:
        """Whether this rank's part can be in the gathered sum; an all-gather alone has no sum."""
        if not self._sums:
            return True
        if not self.started:
            return False
        hop = (self._seat.rank - segment) % self._seat.world_size
        return hop == 0 or self._received[hop - 1] > chunk

    def _incoming(self, hop: int) -> int:
        return (self._seat.rank - hop - 1) % self._seat.world_size

    # --- moving ----------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """Start the bucket: send the window's first segment, add chunks that arrived early."""
        self.started = True
        if not self._window:
            return [BucketDone(bucket=self._index)]
        self._lent = self._loan > 0
        first = self._window.start
        segment = (self._seat.rank - first) % self._seat.world_size
        effects: list[Effect] = [
            self._send(first, segment, chunk)
            for chunk in range(self._segments.chunk_count(segment))
        ]
        for event in self._early:
            effects += self._reduce(event)
        self._early.clear()
        return effects

    def received(self, event: ChunkReceived) -> list[Effect]:
        """A chunk has arrived."""
        chunk = event.chunk
        if chunk.phase == GATHER:
            return self._gathered(chunk)
        if not self.started:
            self._early.append(event)
            return []
        return self._reduce(event)

    def taken(self, taken: ShmReleased) -> list[Effect]:
        """The next rank has read all of the shared bucket.

        Raises:
            ProtocolError: the bucket was not shared, or was released before.
        """
        if not self._lent:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"bucket {taken.bucket} of step {taken.step} taken, which is not lent",
            )
        self._lent = False
        return self._finish()

    def _gathered(self, chunk: Chunk) -> list[Effect]:
        effects: list[Effect] = []
        if chunk.loan:
            segment = self._incoming(self._hop(chunk))
            start, stop = self._segments.chunk(segment, chunk.chunk)
            effects.append(CopyLent(bucket=self._index, start=start, stop=stop, loan=chunk.loan))
        return effects + self._forwarded(chunk)

    def _reduce(self, event: ChunkReceived) -> list[Effect]:
        chunk = event.chunk
        segment = self._incoming(self._hop(chunk))
        start, stop = self._segments.chunk(segment, chunk.chunk)
        reduce: Effect
        if chunk.loan:
            reduce = ReduceLent(bucket=self._index, start=start, stop=stop, loan=chunk.loan)
        else:
            assert event.slot is not None
            reduce = Reduce(bucket=self._index, start=start, stop=stop, slot=event.slot)
        if event.slot is not None:
            self._scratch.free.append(event.slot)
            self._slots_used -= 1
        return [reduce, *self._forwarded(chunk)]

    def _forwarded(self, chunk: Chunk) -> list[Effect]:
        """A chunk is in the bucket: it goes on, unless this was the last hop."""
        hop = self._hop(chunk)
        self._received[hop] += 1
        if hop + 1 not in self._window:
            return self._arrived(chunk)
        return [self._send(hop + 1, self._incoming(hop), chunk.chunk), *self._arrived(chunk)]

    def _arrived(self, chunk: Chunk) -> list[Effect]:
        """A chunk is in its place; the last one in shared memory releases it."""
        self._missing -= 1
        self._borrowed = self._borrowed or chunk.loan > 0
        effects: list[Effect] = []
        if self._missing == 0 and self._borrowed:
            effects.append(SendTaken(taken=self._seat.taken(step=self._step, bucket=self._index)))
        return effects + self._finish()

    def _send(self, hop: int, segment: int, chunk: int) -> SendChunk:
        start, stop = self._segments.chunk(segment, chunk)
        phase, phase_hop = divmod(hop, self._seat.hops)
        header = self._seat.chunk(
            Phase(phase),
            phase_hop,
            step=self._step,
            bucket=self._index,
            chunk=chunk,
            loan=self._loan,
        )
        return SendChunk(chunk=header, start=start, stop=stop)

    def _finish(self) -> list[Effect]:
        return [BucketDone(bucket=self._index)] if self.done else []

    # --- explaining ------------------------------------------------------------------------

    def waits_for(self) -> str:
        """The first missing chunk, in words."""
        if self._missing == 0:
            return f"rank {(self._seat.rank + 1) % self._seat.world_size} to read its last chunks"
        hop, here, count = next(
            (hop, here, count)
            for hop in self._window
            if (here := self._received[hop])
            < (count := self._segments.chunk_count(self._incoming(hop)))
        )
        phase, phase_hop = divmod(hop, self._seat.hops)
        return (
            f"{Phase(phase).name.lower()} hop {phase_hop} chunk {here} of {count}"
            f" from rank {self._seat.previous}"
        )

    def slots_used(self) -> int:
        """Scratch slots that this bucket holds or that are being filled."""
        return self._slots_used

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        hops = self._seat.hops
        waiting = sum(self._placed[:hops]) - sum(self._received[:hops])
        assert 0 <= waiting - len(self._early) <= 1
        assert 0 <= self._slots_used <= waiting
        assert self._missing >= 0
