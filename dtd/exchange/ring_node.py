"""The shell of the ring machine: owns scratch and contribution memory, and moves the bytes.

`dtd.exchange.ring.machine` makes all decisions; this file turns indices into memoryviews: where an
incoming chunk is stored, which bytes of which bucket are sent, when to add.  The same node serves
the TCP ring (`dtd.exchange.tcp_ring`) and the in-process one (`dtd.exchange.in_process`), since
it reaches its neighbours only through a `NodeHandler`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.busy import BusyTime
from dtd.exchange.ring.chunks import BucketShape
from dtd.exchange.ring.events import (
    BucketDone,
    BucketsAdded,
    BucketStarted,
    BucketTaken,
    ChunkReceived,
    CopyLent,
    Effect,
    InContributions,
    InLent,
    InScratch,
    KeepOwn,
    Reduce,
    ReduceLent,
    SendChunk,
    SendContribution,
    SendTaken,
    SendWord,
    StepOpened,
    SumContributions,
    WordOffered,
    WordReceived,
    WordsDone,
)
from dtd.exchange.ring.lending import ReadPace
from dtd.exchange.ring.machine import Ring
from dtd.exchange.shared_memory import NOTHING_LENT, SharedMemory
from dtd.observe.profile.spans import RingSpans
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import MAX_WORD_BYTES, Chunk, ShmReleased, SmallGather

SCRATCH_SLOTS = 8


class NodeHandler(Protocol):
    """Sends a node's messages, and receives its notifications."""

    def send(self, message: Chunk | SmallGather, payload: bytes | memoryview) -> None:
        """Send a frame to the next rank; the payload is not copied."""
        ...

    def resume(self) -> None:
        """Let a held frame from the previous rank be placed again."""
        ...

    def bucket_done(self, bucket: int) -> None:
        """A bucket holds the sum; its memory may still be draining."""
        ...

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words of an exchange have arrived, in rank order."""
        ...


class RingNode:
    """One rank's node of one generation's ring.  Called from one thread at a time.

    Args:
        core: the state machine.
        handler: sends messages, and is notified of completed work.
        loans: the memory lent and borrowed, if neighbours may share memory.

    Attributes:
        spans: records buckets, words and chunks while the job is profiled; None otherwise.
    """

    def __init__(
        self, core: Ring, handler: NodeHandler, *, loans: SharedMemory | None = None
    ) -> None:
        self.core = core
        self.sent_bytes = 0
        self._handler = handler
        self._loans = loans
        self._buckets: Sequence[BucketMemory] = ()
        self._shapes: tuple[BucketShape, ...] = ()
        self._added: tuple[BucketShape, ...] = ()
        self._slots: dict[int, memoryview] = {}
        self._filled: dict[int, memoryview] = {}
        self._contributions: dict[int, memoryview] = {}
        self._words: dict[int, list[bytes]] = {}
        self._placed_slot: int | None = None
        self._pace = ReadPace()
        self._busy = BusyTime()
        self.spans: RingSpans | None = None

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step with these buckets; up to `may_add` more may be added."""
        self._buckets = buckets
        self._busy = BusyTime()
        self.sent_bytes = 0
        self._drop_unused_slots()
        self._words = {rank: [] for rank in range(self.core.world_size)}
        shapes = _shapes_of(buckets)
        if shapes != self._shapes or self._added:
            self._shapes, self._added, self._contributions = shapes, (), {}
        loan, lent = NOTHING_LENT if self._loans is None else self._loans.lendable(buckets)
        event = StepOpened(step=step, buckets=shapes, loan=loan, lent=lent, may_add=may_add)
        self._perform(self.core.handle(event, 0.0))

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step; they are sent rather than lent."""
        shapes = _shapes_of(buckets)
        effects = self.core.handle(BucketsAdded(buckets=shapes), 0.0)
        self._buckets = (*self._buckets, *buckets)
        self._added = (*self._added, *shapes)
        self._perform(effects)

    def start(self, bucket: int) -> None:
        """A bucket's own contribution is complete."""
        effects = self.core.handle(BucketStarted(bucket=bucket), 0.0)
        self._busy.begin(time.monotonic())
        if self.spans is not None:
            self.spans.bucket_started(bucket, time.monotonic_ns())
        self._perform(effects)

    def offer(self, word: bytes) -> None:
        """Offer this rank's word for the next exchange."""
        if len(word) > MAX_WORD_BYTES:
            raise LocalProtocolError(f"word of {len(word)} bytes exceeds {MAX_WORD_BYTES}")
        effects = self.core.handle(WordOffered(), 0.0)
        self._busy.begin(time.monotonic())
        if self.spans is not None:
            self.spans.word_offered(time.monotonic_ns())
        self._words[self.core.rank].append(word)
        self._perform(effects)

    def busy_s(self) -> float:
        """Time in the open step during which something was in flight."""
        return self._busy.busy_s

    # --- receiving -------------------------------------------------------------------------

    def place(self, message: Chunk | SmallGather, payload_bytes: int) -> memoryview | Hold | None:
        """Return memory for an announced payload, HOLD, or None to use the link's own memory."""
        if isinstance(message, SmallGather):
            if payload_bytes > MAX_WORD_BYTES:
                raise ProtocolError(
                    ErrorCode.BAD_PAYLOAD, f"word of {payload_bytes} bytes > {MAX_WORD_BYTES}"
                )
            return self.core.accept_word(message)
        if message.loan and self._loans is None:
            raise ProtocolError(ErrorCode.UNEXPECTED_CHUNK, "nothing is lent in this ring")
        if message.loan and self._pace.must_pause():
            self._handler.resume()
            return HOLD
        if self.spans is not None:
            self.spans.chunk_announced(time.monotonic_ns())
        place = self.core.place(message, payload_bytes)
        if isinstance(place, Hold):
            return place
        if isinstance(place, InScratch):
            self._placed_slot = place.slot
            self._filled[place.slot] = self._slot(place.slot, payload_bytes)
            return self._filled[place.slot]
        if isinstance(place, InContributions):
            return self._contribution(place.bucket, place.origin)
        if isinstance(place, InLent):
            self._placed_slot = place.slot
            return None
        return self._elements(place.bucket, place.start, place.stop)

    def received(self, message: Chunk | SmallGather, payload: memoryview) -> None:
        """The payload has been stored where `place` said."""
        if isinstance(message, SmallGather):
            self._words[message.origin].append(bytes(payload))
            effects = self.core.handle(WordReceived(word=message), 0.0)
        else:
            slot, self._placed_slot = self._placed_slot, None
            effects = self.core.handle(ChunkReceived(chunk=message, slot=slot), 0.0)
        self._perform(effects)
        if self.spans is not None and isinstance(message, Chunk):
            self.spans.chunk_done(message, time.monotonic_ns())

    def taken(self, message: ShmReleased) -> None:
        """The next rank has read the lent part of a bucket."""
        self._perform(self.core.handle(BucketTaken(taken=message), 0.0))

    def _slot(self, slot: int, payload_bytes: int) -> memoryview:
        memory = self._slots.get(slot)
        if memory is None or len(memory) < payload_bytes:  # most chunks are far from the largest
            memory = memoryview(bytearray(payload_bytes))
            self._slots[slot] = memory
        return memory[:payload_bytes]

    def _drop_unused_slots(self) -> None:
        """Free the slots after a step that filled none, as it is once the buckets are lent."""
        if not self._filled:
            self._slots.clear()
        self._filled.clear()

    def _elements(self, bucket: int, start: int, stop: int) -> memoryview:
        memory = self._buckets[bucket]
        return memory.view[start * memory.item_bytes : stop * memory.item_bytes]

    def _contribution(self, bucket: int, origin: int) -> memoryview:
        """Return one rank's slot in a bucket's contributions; every step uses the same memory."""
        size_bytes = len(self._buckets[bucket].view)
        if bucket not in self._contributions:
            self._contributions[bucket] = memoryview(bytearray(self.core.world_size * size_bytes))
        return self._contributions[bucket][origin * size_bytes : (origin + 1) * size_bytes]

    # --- effects ---------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        try:
            for effect in effects:
                self._do(effect)
        except ProtocolError as error:  # lent memory cannot be read, but has been counted
            assert self._loans is not None
            self._loans.lost(error)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, SendChunk):
            payload = self._elements(effect.chunk.bucket, effect.start, effect.stop)
            self._send_chunk(effect.chunk, payload)
        elif isinstance(effect, Reduce):
            received = self._filled[effect.slot]
            if len(received):
                self._buckets[effect.bucket].add(effect.start, effect.stop, received)
        elif isinstance(effect, ReduceLent | CopyLent):
            self._read_lent(effect)
        elif isinstance(effect, SendTaken):
            assert self._loans is not None
            self._loans.give_back(effect.taken)
        elif isinstance(effect, KeepOwn):
            own = self._contribution(effect.bucket, self.core.rank)
            own[:] = self._buckets[effect.bucket].view
        elif isinstance(effect, SendContribution):
            payload = self._contribution(effect.chunk.bucket, effect.origin)
            self._send_chunk(effect.chunk, payload)
        elif isinstance(effect, SumContributions):
            self._sum(effect.bucket)
        elif isinstance(effect, SendWord):
            self._handler.send(effect.word, self._words[effect.word.origin][effect.word.sequence])
        elif isinstance(effect, BucketDone):
            self._bucket_done(effect.bucket)
        elif isinstance(effect, WordsDone):
            self._words_done(effect.sequence)
        else:
            self._handler.resume()

    def _bucket_done(self, bucket: int) -> None:
        self._busy.end(time.monotonic())
        if self.spans is not None:
            self.spans.bucket_done(bucket, time.monotonic_ns())
        self._handler.bucket_done(bucket)

    def _words_done(self, sequence: int) -> None:
        self._busy.end(time.monotonic())
        if self.spans is not None:
            self.spans.words_done(sequence, time.monotonic_ns())
        words = self._words
        self._handler.words_done([words[rank][sequence] for rank in sorted(words)])

    def _read_lent(self, effect: ReduceLent | CopyLent) -> None:
        assert self._loans is not None
        memory = self._buckets[effect.bucket]
        start, stop = effect.start, effect.stop
        item_bytes = memory.item_bytes
        self._pace.read((stop - start) * item_bytes)
        with self._loans.read(effect.bucket, start * item_bytes, stop * item_bytes) as theirs:
            if isinstance(effect, CopyLent):
                self._elements(effect.bucket, start, stop)[:] = theirs
            elif start < stop:
                memory.add(start, stop, theirs)
        self._loans.still_lent(effect.loan)

    def _send_chunk(self, chunk: Chunk, payload: memoryview) -> None:
        self.sent_bytes += len(payload)
        self._handler.send(chunk, b"" if chunk.loan else payload)

    def _sum(self, bucket: int) -> None:
        """Sum the contributions in rank order on every rank, so that even a NaN is the same."""
        memory = self._buckets[bucket]
        if not memory.elements:
            return
        ranks = range(self.core.world_size)
        contributions = [self._contribution(bucket, origin) for origin in ranks]
        if memory.total is not None:
            memory.total(contributions)
            return
        memory.view[:] = contributions[0]
        for contribution in contributions[1:]:
            memory.add(0, memory.elements, contribution)


def _shapes_of(buckets: Sequence[BucketMemory]) -> tuple[BucketShape, ...]:
    return tuple(bucket.shape for bucket in buckets)
