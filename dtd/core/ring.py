"""Ring all-reduce as a state machine: which chunk goes where, in which order, and what to refuse.

Reduce-scatter, then all-gather, pipelined chunk by chunk (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", 2009).  With N ranks a bucket is cut into N
segments.  In hop h of the reduce-scatter rank r sends segment (r - h) mod N to rank r + 1 and adds
what it receives to segment (r - h - 1) mod N; after N - 1 hops it owns the whole sum of segment
(r + 1) mod N.  In hop h of the all-gather it sends segment (r + 1 - h) mod N and receives
(r - h) mod N.  A chunk goes on as soon as it is reduced; buckets start in index order, and several
are in flight at a time.  Each segment is summed in one order, by the ring, so all ranks end with
the same bytes.

The machine handles indices, never bytes.  It must not know sockets, tensors or clocks: the shell
(`dtd.net.ring`) asks it where a payload goes (`place`), tells it what happened (`handle`) and does
what it answers.  One machine serves one generation.

Rule for callers: start every bucket of a step before waiting for any of them.  Chunks for a bucket
that has not started here wait in scratch slots, and when these run out the link pauses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from dtd.core.chunks import BucketShape, Segments, cut
from dtd.core.ring_events import (
    BucketDone,
    BucketStarted,
    ChunkReceived,
    Effect,
    Event,
    InBucket,
    InScratch,
    Reduce,
    Resume,
    SendChunk,
    SendWord,
    StepOpened,
    WordOffered,
    WordReceived,
    WordsDone,
)
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import Chunk, Phase, Word

SCATTER: Final = Phase.REDUCE_SCATTER
GATHER: Final = Phase.ALL_GATHER


@dataclass(slots=True)
class _Bucket:
    segments: Segments
    item_bytes: int
    placed: tuple[list[int], list[int]]
    received: tuple[list[int], list[int]]
    missing: int
    ready: bool = False
    started: bool = False
    early: deque[ChunkReceived] = field(default_factory=deque)


class Ring:
    """One rank's part in one generation's ring.

    Args:
        rank: this rank.
        world_size: number of ranks; 1 works like any other.
        generation: carried by every frame; others are refused.
        first_step: the first step that will be opened; they are opened one after another.
        chunk_bytes: most payload bytes in one frame; equal on all ranks.
        scratch_slots: chunks that may wait in scratch memory at a time.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        generation: int,
        first_step: int,
        chunk_bytes: int,
        scratch_slots: int,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.chunk_bytes = chunk_bytes
        self.step = first_step - 1
        self._first_step = first_step
        self._previous = (rank - 1) % world_size
        self._free_slots = list(range(scratch_slots))
        self._scratch_slots = scratch_slots
        self._buckets: list[_Bucket] = []
        self._next_start = 0
        self._sequence = 0
        self._offered = False
        self._words: dict[int, int] = {}
        self._held = False

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int) -> InScratch | InBucket | Hold:
        """Say where an announced chunk's payload goes, or refuse it.

        Raises:
            ProtocolError: the chunk is not the one that the schedule expects next.
        """
        if self._from_future(chunk.generation, chunk.step, chunk.source):
            return self._hold()
        bucket, segment = self._expect(chunk)
        start, stop = bucket.segments.chunk(segment, chunk.chunk)
        if payload_bytes != (stop - start) * bucket.item_bytes:
            raise self._refuse(
                ErrorCode.BAD_PAYLOAD,
                chunk,
                f"payload is {payload_bytes} bytes, not {(stop - start) * bucket.item_bytes}",
            )
        if chunk.phase == SCATTER and not self._free_slots:
            return self._hold()
        bucket.placed[chunk.phase][chunk.hop] += 1
        if chunk.phase == SCATTER:
            return InScratch(slot=self._free_slots.pop())
        return InBucket(bucket=chunk.bucket, start=start, stop=stop)

    def accept_word(self, word: Word) -> Hold | None:
        """Check an announced word; HOLD when its turn has not come.

        Raises:
            ProtocolError: the word is not one that can come now.
        """
        if self._from_future(word.generation, word.step, word.source):
            return self._hold()
        expected_hop = (self._previous - word.origin) % self.world_size
        if word.origin >= self.world_size or word.hop != expected_hop or word.origin == self.rank:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"word of rank {word.origin} at hop {word.hop}: not possible at rank {self.rank}",
            )
        expected = self._words.get(word.origin, 0)
        if word.sequence != expected:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"word {word.sequence} of rank {word.origin} in step {self.step}:"
                f" expected number {expected}",
            )
        if word.sequence > self._sequence + self._offered:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"word {word.sequence} of rank {word.origin} in step {self.step}:"
                f" it has not seen our word {word.sequence - 1}",
            )
        return None

    def _from_future(self, generation: int, step: int, source: int) -> bool:
        if generation != self.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"frame of generation {generation}; this ring is generation {self.generation}",
            )
        if source != self._previous or self.world_size == 1:
            raise ProtocolError(
                ErrorCode.WRONG_SOURCE,
                f"frame from rank {source}; rank {self.rank} hears rank {self._previous} only",
            )
        if step not in (self.step, self.step + 1) or step < self._first_step:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"frame of step {step}; this ring is at step {max(self.step, self._first_step)}",
            )
        return step == self.step + 1

    def _expect(self, chunk: Chunk) -> tuple[_Bucket, int]:
        """The bucket and segment of a chunk that is the next one of its hop."""
        if chunk.bucket >= len(self._buckets):
            raise self._refuse(
                ErrorCode.UNEXPECTED_CHUNK, chunk, f"the step has {len(self._buckets)} buckets"
            )
        if chunk.phase not in (SCATTER, GATHER):
            raise self._refuse(ErrorCode.UNEXPECTED_CHUNK, chunk, "no such phase")
        if chunk.hop >= self.world_size - 1:
            raise self._refuse(ErrorCode.UNEXPECTED_CHUNK, chunk, "no such hop")
        bucket = self._buckets[chunk.bucket]
        expected = bucket.placed[chunk.phase][chunk.hop]
        segment = self._incoming(chunk.phase, chunk.hop)
        if chunk.chunk != expected or expected >= bucket.segments.chunk_count(segment):
            raise self._refuse(ErrorCode.UNEXPECTED_CHUNK, chunk, f"expected chunk {expected}")
        if chunk.phase == GATHER and not self._sent_for_reduction(bucket, segment, chunk.chunk):
            raise self._refuse(
                ErrorCode.UNEXPECTED_CHUNK, chunk, "its sum cannot be complete: ours is missing"
            )
        return bucket, segment

    def _sent_for_reduction(self, bucket: _Bucket, segment: int, chunk: int) -> bool:
        hop = (self.rank - segment) % self.world_size
        if not bucket.started:
            return False
        return hop == 0 or bucket.received[SCATTER][hop - 1] > chunk

    def _incoming(self, phase: int, hop: int) -> int:
        return (self.rank - hop - (1 if phase == SCATTER else 0)) % self.world_size

    def _hold(self) -> Hold:
        self._held = True
        return HOLD

    def _refuse(self, code: ErrorCode, chunk: Chunk, why: str) -> ProtocolError:
        return ProtocolError(
            code,
            f"chunk {chunk.chunk} of bucket {chunk.bucket}, phase {chunk.phase} hop {chunk.hop},"
            f" step {chunk.step}: {why}",
        )

    # --- events ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event; `now` is not looked at: nothing here depends on time."""
        del now
        if isinstance(event, ChunkReceived):
            return self._on_chunk_received(event)
        if isinstance(event, BucketStarted):
            return self._on_bucket_started(event)
        if isinstance(event, WordReceived):
            return self._on_word_received(event)
        if isinstance(event, WordOffered):
            return self._on_word_offered()
        return self._on_step_opened(event)

    def next_deadline(self) -> float | None:
        """The ring has no time-outs of its own: liveness is the coordinator's business."""
        return None

    def _on_step_opened(self, event: StepOpened) -> list[Effect]:
        if event.step != self.step + 1:
            raise LocalProtocolError(f"step {event.step} opened after step {self.step}")
        if self._offered or any(bucket.missing for bucket in self._buckets):
            raise LocalProtocolError(f"step {event.step} opened while {self.explain()}")
        self.step = event.step
        self._buckets = [self._new_bucket(shape) for shape in event.buckets]
        self._next_start = 0
        self._sequence = 0
        self._offered = False
        self._words = {}
        return self._resume()

    def _new_bucket(self, shape: BucketShape) -> _Bucket:
        segments = cut(shape, world_size=self.world_size, chunk_bytes=self.chunk_bytes)
        hops = self.world_size - 1
        missing = sum(
            segments.chunk_count(self._incoming(phase, hop))
            for phase in Phase
            for hop in range(hops)
        )
        return _Bucket(
            segments=segments,
            item_bytes=shape.item_bytes,
            placed=([0] * hops, [0] * hops),
            received=([0] * hops, [0] * hops),
            missing=missing,
        )

    def _on_bucket_started(self, event: BucketStarted) -> list[Effect]:
        if not 0 <= event.bucket < len(self._buckets) or self._buckets[event.bucket].ready:
            raise LocalProtocolError(f"bucket {event.bucket} started twice or does not exist")
        self._buckets[event.bucket].ready = True
        effects: list[Effect] = []
        while self._next_start < len(self._buckets) and self._buckets[self._next_start].ready:
            self._begin(self._next_start, effects)
            self._next_start += 1
        return effects + self._resume()

    def _begin(self, index: int, effects: list[Effect]) -> None:
        bucket = self._buckets[index]
        bucket.started = True
        if self.world_size == 1:
            effects.append(BucketDone(bucket=index))
            return
        for chunk in range(bucket.segments.chunk_count(self.rank)):
            self._send(effects, SCATTER, 0, index, self.rank, chunk)
        while bucket.early:
            self._reduce(bucket.early.popleft(), effects)

    def _on_chunk_received(self, event: ChunkReceived) -> list[Effect]:
        chunk = event.chunk
        bucket = self._buckets[chunk.bucket]
        effects: list[Effect] = []
        if chunk.phase == GATHER:
            bucket.received[GATHER][chunk.hop] += 1
            bucket.missing -= 1
            if chunk.hop + 1 < self.world_size - 1:
                segment = self._incoming(GATHER, chunk.hop)
                self._send(effects, GATHER, chunk.hop + 1, chunk.bucket, segment, chunk.chunk)
            self._finish(chunk.bucket, effects)
            return effects
        if not bucket.started:
            bucket.early.append(event)
            return effects
        self._reduce(event, effects)
        return effects + self._resume()

    def _reduce(self, event: ChunkReceived, effects: list[Effect]) -> None:
        chunk = event.chunk
        assert event.slot is not None
        bucket = self._buckets[chunk.bucket]
        segment = self._incoming(SCATTER, chunk.hop)
        start, stop = bucket.segments.chunk(segment, chunk.chunk)
        effects.append(Reduce(bucket=chunk.bucket, start=start, stop=stop, slot=event.slot))
        self._free_slots.append(event.slot)
        bucket.received[SCATTER][chunk.hop] += 1
        bucket.missing -= 1
        last = chunk.hop + 1 == self.world_size - 1
        phase, hop = (GATHER, 0) if last else (SCATTER, chunk.hop + 1)
        self._send(effects, phase, hop, chunk.bucket, segment, chunk.chunk)
        self._finish(chunk.bucket, effects)

    def _finish(self, index: int, effects: list[Effect]) -> None:
        if self._buckets[index].missing == 0:
            effects.append(BucketDone(bucket=index))

    def _send(
        self, effects: list[Effect], phase: Phase, hop: int, index: int, segment: int, chunk: int
    ) -> None:
        start, stop = self._buckets[index].segments.chunk(segment, chunk)
        message = Chunk(
            generation=self.generation,
            step=self.step,
            phase=phase,
            hop=hop,
            bucket=index,
            chunk=chunk,
            source=self.rank,
        )
        effects.append(SendChunk(chunk=message, start=start, stop=stop))

    def _on_word_offered(self) -> list[Effect]:
        if self._offered or self.step < self._first_step:
            raise LocalProtocolError(
                f"word {self._sequence} of step {self.step} offered twice, or before the step"
            )
        self._offered = True
        effects: list[Effect] = []
        if self.world_size > 1:
            effects.append(SendWord(word=self._word(self._sequence, 0, self.rank)))
        self._finish_words(effects)
        return effects

    def _on_word_received(self, event: WordReceived) -> list[Effect]:
        word = event.word
        self._words[word.origin] = word.sequence + 1
        effects: list[Effect] = []
        if word.hop + 1 < self.world_size - 1:
            effects.append(SendWord(word=self._word(word.sequence, word.hop + 1, word.origin)))
        self._finish_words(effects)
        return effects

    def _word(self, sequence: int, hop: int, origin: int) -> Word:
        return Word(
            generation=self.generation,
            step=self.step,
            sequence=sequence,
            hop=hop,
            origin=origin,
            source=self.rank,
        )

    def _finish_words(self, effects: list[Effect]) -> None:
        here = sum(count > self._sequence for count in self._words.values())
        if self._offered and here == self.world_size - 1:
            effects.append(WordsDone(sequence=self._sequence))
            self._sequence += 1
            self._offered = False

    def _resume(self) -> list[Effect]:
        held, self._held = self._held, False
        return [Resume()] if held else []

    # --- explaining ------------------------------------------------------------------------

    def explain(self) -> str:
        """What this rank is waiting for, in words."""
        for index, bucket in enumerate(self._buckets):
            if bucket.missing and not bucket.started:
                return f"step {self.step}: bucket {index} waits for its own gradients"
            if bucket.missing:
                phase, hop, here, count = self._missing_chunks(bucket)[0]
                return (
                    f"step {self.step}: bucket {index} waits for {phase.name.lower()}"
                    f" hop {hop} chunk {here} of {count} from rank {self._previous}"
                )
        if self._offered:
            missing = [
                str(rank)
                for rank in range(self.world_size)
                if rank != self.rank and self._words.get(rank, 0) <= self._sequence
            ]
            return f"step {self.step}: waits for the word of rank {', '.join(missing)}"
        return f"step {self.step}: waits for nothing"

    def _missing_chunks(self, bucket: _Bucket) -> list[tuple[Phase, int, int, int]]:
        """(phase, hop, chunks here, chunks in all) of every hop that is not complete."""
        return [
            (phase, hop, here, count)
            for phase in Phase
            for hop, here in enumerate(bucket.received[phase])
            if here < (count := bucket.segments.chunk_count(self._incoming(phase, hop)))
        ]

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance."""
        early = sum(len(bucket.early) for bucket in self._buckets)
        under_way = sum(
            placed - received
            for bucket in self._buckets
            for placed, received in zip(
                bucket.placed[SCATTER], bucket.received[SCATTER], strict=True
            )
        )
        assert 0 <= under_way - early <= 1
        assert len(self._free_slots) + under_way == self._scratch_slots
        assert len(set(self._free_slots)) == len(self._free_slots)
        assert all(bucket.missing >= 0 for bucket in self._buckets)
