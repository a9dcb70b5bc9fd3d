"""The exchange with parameter servers as a state machine: routes, order, and rejection.

Owner-compute over a star (Li et al., "Scaling distributed machine learning with the parameter
server", 2014; protocol.md, "Star").  With S servers a bucket is cut into S segments; server i owns
segment i and mirrors those of the servers before it (`dtd.engine.shards.Division`).

Reduce-scatter: every trainer *pushes* each segment to its owner, in chunks.  The owner receives the
first trainer's chunk in place and adds the others' to it in rank order, so the sums do not depend
on who was faster.  It passes a complete chunk on to its mirrors as *summed*.  All-gather: every
owner lets each rank that does not hold its segment *pull* it, unasked.  A trainer sends and
receives every bucket once, whatever the number of ranks; a server T times its own segment.

The machine handles indices, never bytes.  The shell (`dtd.exchange.star_node`) asks it where a
payload goes (`place`), reports events (`handle`) and performs the effects.  One machine serves one
generation.  Words, votes and all other buckets use the generation's ring.  What a bucket needs is
made when it is needed first, as in a ring.

A chunk that comes before its step or bucket has started here, or before the chunks of the ranks
before it, waits on its link, which is not read meanwhile: so a link needs the memory of one chunk.

No link waits for ever.  Links keep order, and every rank starts all buckets in index order, after
the same ones have been awaited on all servers ("Rule for callers").  Take the lowest bucket u that
some rank never starts.  It waits there for a lower bucket d, which all ranks have started.  What is
missing of d is not behind a held frame of a bucket j on the same link: if j < u, j has started
everywhere and only waits for its turn, and the lowest such frame of the first trainer waits for
nobody; if j >= u, its sender has started u before and so was done with d, if it is a server, and
pushed or pulled chunks are sent as soon as their bucket starts, so those of d come before those of
j.  Thus d is completed and u starts.

Rule for callers: start every bucket of a step before waiting for any of them, or wait for the same
first ones on all ranks before starting others, as in a ring.  All ranks exchange words on the ring
in every step, so none is more than one step ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from dtd.errors import LocalProtocolError
from dtd.exchange.ring.chunks import BucketShape, Operation, Segments
from dtd.exchange.ring.events import BucketDone, BucketsAdded, BucketStarted, InBucket, StepOpened
from dtd.exchange.ring.position import check_payload, refused
from dtd.exchange.star.events import (
    AddFrom,
    ChunkArrived,
    Effect,
    Event,
    InScratchOf,
    Place,
    ResumeLink,
    SendTo,
)
from dtd.exchange.star.lanes import Lane
from dtd.exchange.star.position import StarPosition
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import Chunk, Phase


def goes_by_star(shape: BucketShape) -> bool:
    """Whether a bucket uses the star of a generation that has servers; all others use the ring."""
    return shape.operation.is_half and not shape.bounds and shape.hops is None


@dataclass(slots=True)
class _Bucket:
    """One bucket of the open step.

    Attributes:
        missing: chunks that have not arrived, or are not summed yet.
        started: the caller has handed it over, and all earlier ones.
    """

    shape: BucketShape
    segments: Segments
    missing: int
    started: bool = False

    @property
    def scatters(self) -> bool:
        return self.shape.operation is Operation.REDUCE_SCATTER

    @property
    def done(self) -> bool:
        return self.started and self.missing == 0


class Star:
    """One rank's part in one generation's star.

    Args:
        rank: this rank.
        world_size: number of ranks.
        servers: how many of them are servers, the last ones; at least one, and not all.
        generation: carried by every frame; frames of others are rejected.
        first_step: the first step that will be opened; steps are opened consecutively.
        chunk_bytes: most payload bytes in one frame; equal on all ranks.

    Attributes:
        step: the open step; before the first, the one before that.

    Raises:
        LocalProtocolError: there is no server, or no trainer.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        servers: int,
        generation: int,
        first_step: int,
        chunk_bytes: int,
    ) -> None:
        self.seat = StarPosition(
            rank=rank,
            world_size=world_size,
            servers=servers,
            generation=generation,
            first_step=first_step,
        )
        self.chunk_bytes = chunk_bytes
        self.step = first_step - 1
        self._shapes: list[BucketShape] = []
        self._buckets: list[_Bucket | None] = []
        self._lanes = self._new_lanes()
        self._may_add = 0
        self._ready: set[int] = set()
        self._next_start = 0
        self._held: set[int] = set()

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int, *, link: int) -> Place | Hold:
        """Return the place of an announced chunk's payload, or reject the chunk.

        Args:
            chunk: the chunk.
            payload_bytes: the length of its payload.
            link: the rank at the other end of the link that it comes over.

        Raises:
            ProtocolError: the link cannot bring this chunk now.
        """
        if self.seat.is_early(chunk, link=link, step=self.step):
            self._check_finished(chunk)
            return self._hold(link)
        lane = self._lanes[link, chunk.phase]
        if chunk.hop or chunk.loan:
            raise refused(chunk, "a star has one hop, and lends nothing")
        if lane.finished and 0 <= chunk.bucket - len(self._buckets) < self._may_add:
            return self._hold(link)
        lane.check(chunk)
        bucket = self._bucket(chunk.bucket)
        start, stop = bucket.segments.chunk(lane.segment, chunk.chunk)
        check_payload(chunk, payload_bytes, (stop - start) * bucket.shape.item_bytes)
        if not bucket.started or not self._is_turn(chunk, lane):
            return self._hold(link)
        if chunk.phase == Phase.PUSH and link > 0:
            return InScratchOf(rank=link)
        return InBucket(bucket=chunk.bucket, start=start, stop=stop)

    def _check_finished(self, chunk: Chunk) -> None:
        """Reject a chunk of the next step from a rank that owes chunks of this one."""
        for (source, _), lane in self._lanes.items():
            if source == chunk.source and not lane.finished:
                raise refused(chunk, f"expected {lane} of step {self.step} before")

    def _is_turn(self, chunk: Chunk, lane: Lane) -> bool:
        """Whether a contribution has those of all ranks before it; other chunks are no sums."""
        if chunk.phase != Phase.PUSH or chunk.source == 0:
            return True
        return self._lanes[chunk.source - 1, Phase.PUSH].received > lane.received

    def _hold(self, link: int) -> Hold:
        self._held.add(link)
        return HOLD

    # --- events ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event; `now` is not looked at: nothing here depends on time."""
        del now
        if isinstance(event, ChunkArrived):
            return self._on_chunk_arrived(event.chunk)
        if isinstance(event, BucketStarted):
            effects = self._on_bucket_started(event)
        elif isinstance(event, BucketsAdded):
            effects = self._on_buckets_added(event)
        else:
            effects = self._on_step_opened(event)
        return effects + self._resume(sorted(self._held))

    def _on_step_opened(self, event: StepOpened) -> list[Effect]:
        if event.step != self.step + 1:
            raise LocalProtocolError(f"step {event.step} opened after step {self.step}")
        if not all(bucket and bucket.done for bucket in self._buckets):
            raise LocalProtocolError(f"step {event.step} opened while {self.explain()}")
        self.step = event.step
        self._shapes, self._buckets = [], []
        self._lanes = self._new_lanes()
        self._may_add = event.may_add
        self._ready = set()
        self._next_start = 0
        self._add(event.buckets)
        return []

    def _on_buckets_added(self, event: BucketsAdded) -> list[Effect]:
        if len(event.buckets) > self._may_add:
            raise LocalProtocolError(
                f"{len(event.buckets)} buckets added to step {self.step}, which takes"
                f" {self._may_add} more"
            )
        self._may_add -= len(event.buckets)
        self._add(event.buckets)
        return []

    def _on_bucket_started(self, event: BucketStarted) -> list[Effect]:
        if not 0 <= event.bucket < len(self._buckets) or event.bucket in self._ready:
            raise LocalProtocolError(f"bucket {event.bucket} started twice or does not exist")
        self._ready.add(event.bucket)
        effects: list[Effect] = []
        while self._next_start in self._ready:
            effects += self._begin(self._next_start)
            self._next_start += 1
        return effects

    def _begin(self, index: int) -> list[Effect]:
        """Start a bucket: send what this rank has of it, chunk by chunk to all in turn."""
        bucket = self._bucket(index)
        bucket.started = True
        targets: list[tuple[int, int]] = []  # segment, rank
        phase = Phase.PUSH if bucket.scatters else Phase.PULL
        if bucket.scatters and self.seat.own is None:
            targets = [(one, self.seat.owner(one)) for one in range(self.seat.servers)]
        elif not bucket.scatters and self.seat.own is not None:
            holders = self.seat.holders(self.seat.own, bucket.shape.copies)
            others = (rank for rank in range(self.seat.world_size) if rank not in holders)
            targets = [(self.seat.own, rank) for rank in others]
        most = max((bucket.segments.chunk_count(segment) for segment, _ in targets), default=0)
        effects: list[Effect] = [
            self._send(phase, index, segment, chunk, rank)
            for chunk in range(most)
            for segment, rank in targets
            if chunk < bucket.segments.chunk_count(segment)
        ]
        return effects + self._finish(index)

    def _on_chunk_arrived(self, chunk: Chunk) -> list[Effect]:
        lane = self._lanes[chunk.source, chunk.phase]
        lane.advance()
        if chunk.phase == Phase.PUSH:
            return self._pushed(chunk)
        return self._arrived(chunk)

    def _pushed(self, chunk: Chunk) -> list[Effect]:
        """A contribution has arrived; the last one completes the sum."""
        bucket, own = self._bucket(chunk.bucket), self.seat.own
        assert own is not None
        start, stop = bucket.segments.chunk(own, chunk.chunk)
        effects: list[Effect] = []
        if chunk.source > 0:
            add = AddFrom(rank=chunk.source, bucket=chunk.bucket, start=start, stop=stop)
            effects.append(add)
        following = chunk.source + 1
        if following < self.seat.trainers:
            return effects + self._resume(self._held & {following})
        mirrors = self.seat.holders(own, bucket.shape.copies)[1:]
        effects += [
            self._send(Phase.SUMMED, chunk.bucket, own, chunk.chunk, mirror) for mirror in mirrors
        ]
        return effects + self._arrived(chunk)

    def _arrived(self, chunk: Chunk) -> list[Effect]:
        """A chunk's final bytes are in the bucket."""
        self._bucket(chunk.bucket).missing -= 1
        return self._finish(chunk.bucket)

    def _finish(self, index: int) -> list[Effect]:
        return [BucketDone(bucket=index)] if self._bucket(index).done else []

    def _send(self, phase: Phase, index: int, segment: int, chunk: int, rank: int) -> SendTo:
        start, stop = self._bucket(index).segments.chunk(segment, chunk)
        header = self.seat.chunk(phase, step=self.step, bucket=index, chunk=chunk)
        return SendTo(rank=rank, chunk=header, start=start, stop=stop)

    def _resume(self, links: Iterable[int]) -> list[Effect]:
        ranks = list(links)
        self._held.difference_update(ranks)
        return [ResumeLink(rank=rank) for rank in ranks]

    # --- what a step brings ------------------------------------------------------------------

    def _new_lanes(self) -> dict[tuple[int, int], Lane]:
        """One lane for each link and phase that it may carry."""
        seat = self.seat
        lanes: dict[tuple[int, int], Lane] = {}
        for source in range(seat.world_size):
            for phase in (Phase.PUSH, Phase.SUMMED, Phase.PULL):
                if seat.carries(phase, source):
                    segment = self._segment(source, phase)
                    lanes[source, phase] = Lane(segment, partial(self._brings, phase, segment))
        return lanes

    def _segment(self, source: int, phase: Phase) -> int:
        """The segment that a rank sends: a trainer the receiver's, a server its own."""
        own = self.seat.own
        return own if phase == Phase.PUSH and own is not None else source - self.seat.trainers

    def _brings(self, phase: Phase, segment: int, index: int) -> int | None:
        """Return how many chunks of a bucket's segment come here in a phase; None: no bucket."""
        if index == len(self._shapes):
            return None
        shape = self._shapes[index]
        scatters = shape.operation is Operation.REDUCE_SCATTER
        if scatters == (phase == Phase.PULL) or (
            phase != Phase.PUSH and segment not in self._awaited(shape)
        ):
            return 0
        return self._bucket(index).segments.chunk_count(segment)

    def _add(self, shapes: Sequence[BucketShape]) -> None:
        """Number further buckets."""
        for index, shape in enumerate(shapes, start=len(self._shapes)):
            if not goes_by_star(shape):
                raise LocalProtocolError(f"bucket {index} of step {self.step} needs the ring")
        self._shapes += shapes
        self._buckets += [None] * len(shapes)

    def _bucket(self, index: int) -> _Bucket:
        """Return a bucket, which is made when it is asked for first."""
        bucket = self._buckets[index]
        if bucket is None:
            shape = self._shapes[index]
            chunk_elements = max(1, self.chunk_bytes // shape.item_bytes)
            segments = Segments(shape.elements, self.seat.servers, chunk_elements)
            missing = sum(map(segments.chunk_count, self._awaited(shape)))
            bucket = self._buckets[index] = _Bucket(shape, segments, missing)
        return bucket

    def _awaited(self, shape: BucketShape) -> list[int]:
        """The segments whose final bytes come from others; of a scatter the own one is first."""
        held = self.seat.held(shape.copies)
        if shape.operation is Operation.REDUCE_SCATTER:
            return held
        return [segment for segment in range(self.seat.servers) if segment not in held]

    # --- explaining ------------------------------------------------------------------------

    def explain(self) -> str:
        """Return what this rank waits for, in words."""
        for index, bucket in enumerate(self._buckets):
            if bucket is None or not bucket.started:
                return f"step {self.step}: star bucket {index} waits to be started here"
            if not bucket.done:
                sources = ", ".join(
                    f"{Phase(phase).name.lower()} {lane} from rank {source}"
                    for (source, phase), lane in self._lanes.items()
                    if lane.bucket == index
                )
                return f"step {self.step}: star bucket {index} waits for {sources}"
        return f"step {self.step}: the star waits for nothing"

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        seat = self.seat
        for index, bucket in enumerate(self._buckets):
            assert bucket is None or bucket.missing >= 0
            assert (bucket is not None and bucket.started) == (index < self._next_start)
            if bucket is not None and bucket.done:
                assert all(lane.bucket != index for lane in self._lanes.values())
        if seat.own is not None:
            pushed = [self._lanes[rank, Phase.PUSH].received for rank in range(seat.trainers)]
            assert pushed == sorted(pushed, reverse=True)
