"""A bucket on its way round the ring in segments: reduce-scatter, then all-gather.

The bandwidth path, pipelined chunk by chunk (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009; protocol.md, "All-reduce").  With N ranks a bucket
is cut into N segments.  In hop h of the reduce-scatter rank r sends segment (r - h) mod N to rank
r + 1 and adds what it receives to segment (r - h - 1) mod N; after N - 1 hops it owns the whole sum
of segment (r + 1) mod N.  In hop h of the all-gather it sends segment (r + 1 - h) mod N and
receives (r - h) mod N.  A chunk goes on as soon as it is reduced.  Each segment is summed in one
order, by the ring, so all ranks end with the same bytes.

What is to be added arrives in scratch slots, of which there are few; a chunk that finds none waits
on the wire.  A slot is free again once its bucket has started, which depends on nobody else.  What
is lent (see below) needs a slot only while its bucket has not started, as its place in the queue.

A neighbour on the same host is lent the bucket instead of being sent it (protocol.md, "Loans"):
chunks are the same and come in the same order, but without payload, and what is to be added or
copied is read where it lies when its turn has come.  That is safe within a bucket: a segment that
was lent is overwritten with a later sum only, and no later sum comes about without the borrower's
own part.  After it, the bucket is done only when the borrower says that it has taken everything.

Each phase is an operation of its own as well (`dtd.core.ring.chunks.Operation`).  An all-gather
writes to the bucket from its first chunk on, so that one waits on the link until the bucket has
started.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dtd.core.ring.chunks import BucketShape, Operation, cut
from dtd.core.ring.events import (
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
from dtd.core.ring.position import RingPosition, check_payload, refused
from dtd.errors import ErrorCode, ProtocolError
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import Chunk, Phase, Taken

SCATTER: Final = Phase.REDUCE_SCATTER
GATHER: Final = Phase.ALL_GATHER

_PHASES: Final = {
    Operation.REDUCE_SCATTER: (SCATTER,),
    Operation.ALL_GATHER: (GATHER,),
}


class Scratch:
    """The scratch slots of one ring."""

    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))
        self._slots = slots

    def check_invariants(self, used: int) -> None:
        """Raise AssertionError when a slot is lost, or free twice."""
        assert len(self.free) + used == self._slots
        assert len(set(self.free)) == len(self.free)


class SegmentedBucket:
    """One bucket of one step that travels in segments.

    Args:
        seat: this rank's.
        scratch: the ring's.
        shape: the bucket's.
        step: the open step.
        index: the bucket's number in it.
        chunk_bytes: most payload bytes in one frame.
        loan: the number under which the next rank may read the bucket; 0 if it cannot.

    Attributes:
        started: this rank's own contribution is complete, and its first segment has gone out.
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
        self._lent = False  # the next rank has something to read here
        self._borrowed = False  # we have something to read at the previous rank
        self._slots_used = 0
        self._phases = _PHASES.get(shape.operation, (SCATTER, GATHER))
        self._segments = cut(shape, world_size=seat.world_size, chunk_bytes=chunk_bytes)
        self._item_bytes = shape.item_bytes
        self._placed = ([0] * seat.hops, [0] * seat.hops)  # indexed by phase, then by hop
        self._received = ([0] * seat.hops, [0] * seat.hops)
        self._early: deque[ChunkReceived] = deque()
        self._missing = sum(
            self._segments.chunk_count(self._incoming(phase, hop))
            for phase in self._phases
            for hop in range(seat.hops)
        )

    @property
    def done(self) -> bool:
        """The whole sum is here, and nobody else reads it."""
        return self.started and self._missing == 0 and not self._lent

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int) -> InScratch | InBucket | InLent | Hold:
        """Say where an announced chunk's payload goes; HOLD without a scratch slot.

        Raises:
            ProtocolError: the chunk is not the next one of its hop.
        """
        if chunk.phase not in self._phases:
            raise refused(chunk, "no such phase: the bucket travels in segments")
        if chunk.hop >= self._seat.hops:
            raise refused(chunk, "no such hop")
        expected = self._placed[chunk.phase][chunk.hop]
        segment = self._incoming(chunk.phase, chunk.hop)
        if chunk.chunk != expected or expected >= self._segments.chunk_count(segment):
            raise refused(chunk, f"expected chunk {expected}")
        if SCATTER not in self._phases and not self.started:
            return HOLD
        if chunk.phase == GATHER and not self._may_be_complete(segment, chunk.chunk):
            raise refused(chunk, "its sum cannot be complete: ours is missing")
        start, stop = self._segments.chunk(segment, chunk.chunk)
        check_payload(chunk, payload_bytes, 0 if chunk.loan else (stop - start) * self._item_bytes)
        needs_slot = chunk.phase == SCATTER and not (chunk.loan and self.started)
        if needs_slot and not self._scratch.free:
            return HOLD
        self._placed[chunk.phase][chunk.hop] += 1
        slot = self._scratch.free.pop() if needs_slot else None
        self._slots_used += needs_slot
        if chunk.loan:
            return InLent(slot=slot)
        if slot is not None:
            return InScratch(slot=slot)
        return InBucket(bucket=self._index, start=start, stop=stop)

    def _may_be_complete(self, segment: int, chunk: int) -> bool:
        """Whether our part is in what is gathered; in an all-gather alone there is none."""
        if SCATTER not in self._phases:
            return True
        if not self.started:
            return False
        hop = (self._seat.rank - segment) % self._seat.world_size
        return hop == 0 or self._received[SCATTER][hop - 1] > chunk

    def _incoming(self, phase: int, hop: int) -> int:
        return (self._seat.rank - hop - (1 if phase == SCATTER else 0)) % self._seat.world_size

    # --- moving ----------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """The bucket's turn has come: send our segment, add what came early."""
        self.started = True
        if self._seat.world_size == 1:
            return [BucketDone(bucket=self._index)]
        self._lent = self._loan > 0
        phase = self._phases[0]
        own = (self._seat.rank + (phase == GATHER)) % self._seat.world_size
        effects: list[Effect] = [
            self._send(phase, 0, own, chunk) for chunk in range(self._segments.chunk_count(own))
        ]
        while self._early:
            effects += self._reduce(self._early.popleft())
        return effects

    def received(self, event: ChunkReceived) -> list[Effect]:
        """A chunk is here."""
        chunk = event.chunk
        if chunk.phase == GATHER:
            return self._gathered(chunk)
        if not self.started:
            self._early.append(event)
            return []
        return self._reduce(event)

    def taken(self, taken: Taken) -> list[Effect]:
        """The next rank has read all that it was lent.

        Raises:
            ProtocolError: it was lent nothing, or has said so before.
        """
        if not self._lent:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"bucket {taken.bucket} of step {taken.step} taken, which is not lent",
            )
        self._lent = False
        return self._finish()

    def _gathered(self, chunk: Chunk) -> list[Effect]:
        self._received[GATHER][chunk.hop] += 1
        segment = self._incoming(GATHER, chunk.hop)
        effects: list[Effect] = []
        if chunk.loan:
            start, stop = self._segments.chunk(segment, chunk.chunk)
            effects.append(CopyLent(bucket=self._index, start=start, stop=stop, loan=chunk.loan))
        if chunk.hop + 1 < self._seat.hops:
            effects.append(self._send(GATHER, chunk.hop + 1, segment, chunk.chunk))
        return effects + self._arrived(chunk)

    def _reduce(self, event: ChunkReceived) -> list[Effect]:
        chunk = event.chunk
        segment = self._incoming(SCATTER, chunk.hop)
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
        self._received[SCATTER][chunk.hop] += 1
        effects: list[Effect] = [reduce]
        if chunk.hop + 1 < self._seat.hops:
            effects.append(self._send(SCATTER, chunk.hop + 1, segment, chunk.chunk))
        elif GATHER in self._phases:
            effects.append(self._send(GATHER, 0, segment, chunk.chunk))
        return effects + self._arrived(chunk)

    def _arrived(self, chunk: Chunk) -> list[Effect]:
        """A chunk is in its place; the last one of those that were lent gives the loan back."""
        self._missing -= 1
        self._borrowed = self._borrowed or chunk.loan > 0
        effects: list[Effect] = []
        if self._missing == 0 and self._borrowed:
            effects.append(SendTaken(taken=self._seat.taken(step=self._step, bucket=self._index)))
        return effects + self._finish()

    def _send(self, phase: Phase, hop: int, segment: int, chunk: int) -> SendChunk:
        start, stop = self._segments.chunk(segment, chunk)
        header = self._seat.chunk(
            phase, hop, step=self._step, bucket=self._index, chunk=chunk, loan=self._loan
        )
        return SendChunk(chunk=header, start=start, stop=stop)

    def _finish(self) -> list[Effect]:
        return [BucketDone(bucket=self._index)] if self.done else []

    # --- explaining ------------------------------------------------------------------------

    def waits_for(self) -> str:
        """The first chunk that is missing, in words."""
        if self._missing == 0:
            return f"rank {(self._seat.rank + 1) % self._seat.world_size} to read its last chunks"
        phase, hop, here, count = next(
            (phase, hop, here, count)
            for phase in self._phases
            for hop, here in enumerate(self._received[phase])
            if here < (count := self._segments.chunk_count(self._incoming(phase, hop)))
        )
        return (
            f"{phase.name.lower()} hop {hop} chunk {here} of {count}"
            f" from rank {self._seat.previous}"
        )

    def slots_used(self) -> int:
        """Scratch slots that wait here, or are being filled."""
        return self._slots_used

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance."""
        waiting = sum(self._placed[SCATTER]) - sum(self._received[SCATTER])
        assert 0 <= waiting - len(self._early) <= 1
        assert 0 <= self._slots_used <= waiting
        assert self._missing >= 0
