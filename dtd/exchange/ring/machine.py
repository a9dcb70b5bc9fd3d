"""Ring all-reduce as a state machine: the route and order of chunks, and their rejection.

A bucket travels around the ring in one of two ways, chosen by its size and the world
(`dtd.exchange.ring.chunks.exchanged`): a small one whole, in few hops
(`dtd.exchange.ring.exchange`), any other in segments, in few bytes (`dtd.exchange.ring.segments`).
Either way all ranks end with the same bytes.  Buckets start in index order, and several are in
flight at a time.  Words (`dtd.exchange.ring.words`) travel in the same direction.

The machine handles indices, never bytes.  It must not know sockets, tensors or clocks: the shell
(`dtd.exchange.ring_node`) asks it where a payload goes (`place`), reports events
(`handle`) and performs the effects.  One machine serves one generation.

Buckets are declared when a step opens, or added within it, by all ranks alike.  A chunk of a
bucket that this rank adds later waits on the link.  What a bucket needs is made when it starts or
its first chunk comes: a step may have thousands, and opening it must not hold the shell up.

Rule for callers: start every bucket of a step before waiting for any of them; or let all ranks wait
for the same first ones before they start the others, which costs nothing, since these are ahead on
each link.  Chunks to be added to a bucket that has not started here wait in scratch slots, and when
these run out the link pauses.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.ring.chunks import BucketShape, cut, exchanged
from dtd.exchange.ring.events import (
    BucketsAdded,
    BucketStarted,
    BucketTaken,
    ChunkReceived,
    Effect,
    Event,
    Place,
    Resume,
    StepOpened,
    WordOffered,
    WordReceived,
)
from dtd.exchange.ring.exchange import ExchangedBucket
from dtd.exchange.ring.position import RingPosition, refused
from dtd.exchange.ring.segments import Scratch, SegmentedBucket
from dtd.exchange.ring.words import Words
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import Chunk, SmallGather


class Ring:
    """One rank's part in one generation's ring.

    Args:
        rank: this rank.
        world_size: number of ranks; 1 works like any other.
        generation: carried by every frame; frames of others are rejected.
        first_step: the first step that will be opened; steps are opened consecutively.
        chunk_bytes: most payload bytes in one frame; equal on all ranks.
        scratch_slots: chunks that may wait in scratch memory at a time.
        one_host: all ranks are on one host, as far as the roster tells; equal on all ranks.

    Attributes:
        step: the open step; before the first, the one before that.
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
        one_host: bool = False,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.generation = generation
        self.chunk_bytes = chunk_bytes
        self._one_host = one_host
        self.step = first_step - 1
        self._seat = RingPosition(
            rank=rank, world_size=world_size, generation=generation, first_step=first_step
        )
        self._scratch = Scratch(scratch_slots)
        self._shapes: list[BucketShape] = []
        self._buckets: list[SegmentedBucket | ExchangedBucket | None] = []
        self._whole: set[int] = set()
        self._loans: dict[int, int] = {}
        self._may_add = 0
        self._ready: set[int] = set()
        self._next_start = 0
        self._words = Words(self._seat, step=self.step)
        self._held = False

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int) -> Place | Hold:
        """Return the place of an announced chunk's payload, or reject the chunk.

        Raises:
            ProtocolError: the schedule does not expect this chunk now.
        """
        if self._seat.is_early(chunk, step=self.step):
            return self._hold()
        if chunk.bucket >= len(self._buckets):
            if chunk.bucket < len(self._buckets) + self._may_add:
                return self._hold()
            raise refused(chunk, f"the step has {len(self._buckets)} buckets")
        place = self._bucket(chunk.bucket).place(chunk, payload_bytes)
        return self._hold() if isinstance(place, Hold) else place

    def accept_word(self, word: SmallGather) -> Hold | None:
        """Check an announced word; HOLD when it is early.

        Raises:
            ProtocolError: the word is not possible now.
        """
        if self._seat.is_early(word, step=self.step):
            return self._hold()
        self._words.check(word)
        return None

    def _hold(self) -> Hold:
        self._held = True
        return HOLD

    # --- events ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event; `now` is not looked at: nothing here depends on time."""
        del now
        if isinstance(event, ChunkReceived):
            return self._bucket(event.chunk.bucket).received(event) + self._resume()
        if isinstance(event, BucketStarted):
            return self._on_bucket_started(event)
        if isinstance(event, BucketTaken):
            return self._on_bucket_taken(event)
        if isinstance(event, WordReceived):
            return self._words.received(event.word)
        if isinstance(event, WordOffered):
            return self._words.offer()
        if isinstance(event, BucketsAdded):
            return self._on_buckets_added(event)
        return self._on_step_opened(event)

    def next_deadline(self) -> float | None:
        """The ring has no time-outs of its own: the coordinator judges liveness."""
        return None

    def _on_step_opened(self, event: StepOpened) -> list[Effect]:
        if event.step != self.step + 1:
            raise LocalProtocolError(f"step {event.step} opened after step {self.step}")
        if self._words.offered or not all(bucket and bucket.done for bucket in self._buckets):
            raise LocalProtocolError(f"step {event.step} opened while {self.explain()}")
        self.step = event.step
        self._shapes, self._buckets, self._whole, self._loans = [], [], set(), {}
        self._add(event.buckets, loan=event.loan, lent=event.lent)
        self._may_add = event.may_add
        self._ready = set()
        self._next_start = 0
        self._words = Words(self._seat, step=self.step)
        return self._resume()

    def _on_buckets_added(self, event: BucketsAdded) -> list[Effect]:
        if len(event.buckets) > self._may_add:
            raise LocalProtocolError(
                f"{len(event.buckets)} buckets added to step {self.step}, which takes"
                f" {self._may_add} more"
            )
        self._may_add -= len(event.buckets)
        self._add(event.buckets)
        return self._resume()

    def _add(
        self, shapes: Sequence[BucketShape], *, loan: int = 0, lent: frozenset[int] = frozenset()
    ) -> None:
        """Number further buckets; of those added together some may travel whole."""
        for shape in shapes:
            if shape.bounds:  # a wrong one is the caller's fault, not that of the chunk that asks
                cut(shape, world_size=self.world_size, chunk_bytes=self.chunk_bytes)
        first = len(self._shapes)
        whole = exchanged(
            shapes,
            world_size=self.world_size,
            chunk_bytes=self.chunk_bytes,
            one_host=self._one_host,
        )
        self._whole.update(first + at for at in whole)
        self._loans.update((first + at, loan) for at in lent)
        self._shapes += shapes
        self._buckets += [None] * len(shapes)

    def _bucket(self, index: int) -> SegmentedBucket | ExchangedBucket:
        """Return a bucket, which is made when it is asked for first."""
        bucket = self._buckets[index]
        if bucket is None:
            bucket = self._buckets[index] = self._made(index)
        return bucket

    def _made(self, index: int) -> SegmentedBucket | ExchangedBucket:
        if index in self._whole:
            return ExchangedBucket(self._seat, self._shapes[index], step=self.step, index=index)
        return SegmentedBucket(
            self._seat,
            self._scratch,
            self._shapes[index],
            step=self.step,
            index=index,
            chunk_bytes=self.chunk_bytes,
            loan=self._loans.get(index, 0),
        )

    def _on_bucket_started(self, event: BucketStarted) -> list[Effect]:
        if not 0 <= event.bucket < len(self._buckets) or event.bucket in self._ready:
            raise LocalProtocolError(f"bucket {event.bucket} started twice or does not exist")
        self._ready.add(event.bucket)
        effects: list[Effect] = []
        while self._next_start in self._ready:
            effects += self._bucket(self._next_start).begin()
            self._next_start += 1
        return effects + self._resume()

    def _on_bucket_taken(self, event: BucketTaken) -> list[Effect]:
        taken = event.taken
        self._seat.check_taken(taken, step=self.step)
        bucket = self._bucket(taken.bucket) if taken.bucket < len(self._buckets) else None
        if not isinstance(bucket, SegmentedBucket):
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK, f"bucket {taken.bucket} taken, which is not lent"
            )
        return bucket.taken(taken)

    def _resume(self) -> list[Effect]:
        held, self._held = self._held, False
        return [Resume()] if held else []

    # --- explaining ------------------------------------------------------------------------

    def explain(self) -> str:
        """Return what this rank waits for, in words."""
        for index, bucket in enumerate(self._buckets):
            if bucket is None or not bucket.started:
                return f"step {self.step}: bucket {index} waits for its own gradients"
            if not bucket.done:
                return f"step {self.step}: bucket {index} waits for {bucket.waits_for()}"
        if self._words.offered:
            missing = ", ".join(map(str, self._words.missing()))
            return f"step {self.step}: waits for the word of rank {missing}"
        return f"step {self.step}: waits for nothing"

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        slots_used = 0
        for bucket in self._buckets:
            if bucket is not None:
                bucket.check_invariants()
            if isinstance(bucket, SegmentedBucket):
                slots_used += bucket.slots_used()
        self._scratch.check_invariants(slots_used)
