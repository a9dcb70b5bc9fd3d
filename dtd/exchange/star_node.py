"""The shell of the star machine: owns scratch memory, and moves the bytes.

`dtd.exchange.star.machine` makes all decisions; this file turns indices into memoryviews, as
`dtd.exchange.ring_node` does for the ring.  The same node serves the TCP star
(`dtd.exchange.star_links`) and the in-process one (`dtd.exchange.in_process`), since it reaches
other ranks only through a `StarHandler`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.events import BucketDone, BucketsAdded, BucketStarted, StepOpened
from dtd.exchange.star.events import AddFrom, ChunkArrived, Effect, InScratchOf, SendTo
from dtd.exchange.star.machine import Star
from dtd.observe.profile.spans import StarSpans
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk


class StarHandler(Protocol):
    """Sends a node's chunks, and receives its notifications."""

    def send_to(self, rank: int, chunk: Chunk, payload: memoryview) -> None:
        """Send a frame to a rank; the payload is not copied."""
        ...

    def resume_link(self, rank: int) -> None:
        """Let a held frame from this rank be placed again."""
        ...

    def star_bucket_done(self, bucket: int) -> None:
        """A bucket holds what this rank gets of it; its memory may still be draining."""
        ...


class StarNode:
    """One rank's node of one generation's star.  Called from one thread at a time.

    Args:
        core: the state machine.
        handler: sends chunks, and is notified of completed work.

    Attributes:
        sent_bytes: bytes of elements sent in the open step, over all links.
        spans: records buckets and chunks while the job is profiled; None otherwise.
    """

    def __init__(self, core: Star, handler: StarHandler) -> None:
        self.core = core
        self.sent_bytes = 0
        self._handler = handler
        self._buckets: tuple[BucketMemory, ...] = ()
        self._scratch: dict[int, memoryview] = {}
        self.spans: StarSpans | None = None

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step with these buckets; up to `may_add` more may be added."""
        shapes = tuple(bucket.shape for bucket in buckets)
        effects = self.core.handle(StepOpened(step=step, buckets=shapes, may_add=may_add), 0.0)
        self._buckets = tuple(buckets)
        self.sent_bytes = 0
        self._perform(effects)

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step."""
        shapes = tuple(bucket.shape for bucket in buckets)
        effects = self.core.handle(BucketsAdded(buckets=shapes), 0.0)
        self._buckets += tuple(buckets)
        self._perform(effects)

    def start(self, bucket: int) -> None:
        """A bucket is complete here, or may be written to."""
        effects = self.core.handle(BucketStarted(bucket=bucket), 0.0)
        if self.spans is not None:
            self.spans.bucket_started(bucket, time.monotonic_ns())
        self._perform(effects)

    def place(self, chunk: Chunk, payload_bytes: int, *, link: int) -> memoryview | Hold:
        """Return memory for an announced payload from the rank at the end of `link`, or HOLD."""
        if self.spans is not None:
            self.spans.chunk_announced(link, time.monotonic_ns())
        place = self.core.place(chunk, payload_bytes, link=link)
        if isinstance(place, Hold):
            return place
        if isinstance(place, InScratchOf):
            return self._scratch_of(link, payload_bytes)
        return self._elements(place.bucket, place.start, place.stop)

    def received(self, chunk: Chunk) -> None:
        """The payload has been stored where `place` said."""
        self._perform(self.core.handle(ChunkArrived(chunk=chunk), 0.0))
        if self.spans is not None:
            self.spans.chunk_done(chunk, time.monotonic_ns())

    def _scratch_of(self, link: int, payload_bytes: int) -> memoryview:
        memory = self._scratch.get(link)
        if memory is None or len(memory) < payload_bytes:  # most chunks are far from the largest
            memory = memoryview(bytearray(payload_bytes))
            self._scratch[link] = memory
        return memory[:payload_bytes]

    def _elements(self, bucket: int, start: int, stop: int) -> memoryview:
        memory = self._buckets[bucket]
        return memory.view[start * memory.item_bytes : stop * memory.item_bytes]

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendTo):
                payload = self._elements(effect.chunk.bucket, effect.start, effect.stop)
                self.sent_bytes += len(payload)
                self._handler.send_to(effect.rank, effect.chunk, payload)
            elif isinstance(effect, AddFrom):
                self._add(effect)
            elif isinstance(effect, BucketDone):
                if self.spans is not None:
                    self.spans.bucket_done(effect.bucket, time.monotonic_ns())
                self._handler.star_bucket_done(effect.bucket)
            else:
                self._handler.resume_link(effect.rank)

    def _add(self, effect: AddFrom) -> None:
        memory = self._buckets[effect.bucket]
        size_bytes = (effect.stop - effect.start) * memory.item_bytes
        if size_bytes:
            received = self._scratch[effect.rank][:size_bytes]
            memory.add(effect.start, effect.stop, received)
