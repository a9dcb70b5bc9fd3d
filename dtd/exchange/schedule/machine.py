"""The exchange of one generation's buckets as a state machine: route, order and form of chunks.

One machine follows any schedule (`schedules.py`): a generation has one for its ring and, with
parameter servers, another one for its star.  Small gathers (`gathers.py`) travel on the links of
the ring beside the buckets.  Buckets start in index order, and several are in flight at a time.

The machine handles indices, never bytes.  It must not know sockets, tensors or clocks: the shell
(`dtd.exchange.node`) asks it where a payload goes (`place`), reports events and performs
the effects, in their order.  One machine serves one generation.

Buckets are declared when a step opens, or added within it, by all ranks alike.  What a bucket needs
is made when it starts or its first chunk comes: a step may have thousands, and opening it must not
hold the shell up.

A chunk waits on its link, which is not read meanwhile, if its step is not open yet, its bucket not
declared, or its turn has not come: it replaces memory of a bucket that has not started here, the
same chunk of another rank is to be added first, or there is no scratch slot.  Contributions to a
bucket that has not started are kept in scratch slots until it does, which depends on no other rank.

Rule for callers: start every bucket of a step before waiting for any of them; or let all ranks wait
for the same first ones before they start the others, which costs nothing, since these are ahead on
each link.  All ranks take part in a small gather on the ring in every step, so none is more than
one step ahead.

Small gathers and buckets that travel whole go down trees (`tree.py`).  A rank passes on what
arrives before it has all of it, so whatever it sends of a gather or bucket precedes on each link
what it sends of a later one that it starts when the first is complete: no held frame is before one
that the receiver waits for.

No link of a star waits for ever.  Links keep order, and every rank starts all buckets in index
order, after the same ones have been awaited on all servers.  Take the lowest bucket u that some
rank never starts.  It waits there for a lower bucket d, which all ranks have started.  What is
missing of d is not behind a held frame of a bucket j on the same link: if j < u, j has started
everywhere and only waits for its turn, and the lowest such frame of the first trainer waits for
nobody; if j >= u, its sender has started u before and so was done with d, if it is a server, and
pushed or pulled chunks are sent as soon as their bucket starts, so those of d come before those of
j.  Thus d is completed and u starts.

Neighbours on one host may read a bucket of the ring from shared memory (protocol.md, "Shared
memory"): chunks are the same and come in the same order, but without payload, and the reader adds
or copies them from there when their turn comes.  That is safe within a bucket: a shared segment is
overwritten only with a later sum, and no later sum exists without the reader's own part.  The
bucket is done only when the reader reports that it has read everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.schedule.chunks import BucketShape, Segments
from dtd.exchange.schedule.effects import (
    BucketDone,
    CopyShared,
    Effect,
    InBucket,
    InContributions,
    InScratch,
    InShared,
    KeepOwn,
    Place,
    Reduce,
    ReduceShared,
    Resume,
    SendChunk,
    SendContribution,
    SendReleased,
    SumContributions,
)
from dtd.exchange.schedule.gathers import SmallGathers
from dtd.exchange.schedule.schedules import RingSchedules, Schedule, StarSchedules, Transfer
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import Chunk, ShmReleased, SmallGather


def refused(chunk: Chunk, why: str, code: ErrorCode = ErrorCode.UNEXPECTED_CHUNK) -> ProtocolError:
    """The error for a chunk that cannot be accepted."""
    return ProtocolError(
        code,
        f"chunk {chunk.chunk} of bucket {chunk.bucket}, phase {chunk.phase} hop {chunk.hop},"
        f" step {chunk.step}: {why}",
    )


@dataclass(frozen=True, slots=True)
class _Header:
    """The fields that the headers of all frames of a bucket share."""

    generation: int
    step: int
    bucket: int
    source: int

    def chunk(self, transfer: Transfer, chunk: int, version: int) -> Chunk:
        return Chunk(
            generation=self.generation,
            step=self.step,
            phase=transfer.phase,
            hop=transfer.hop,
            bucket=self.bucket,
            chunk=chunk,
            source=self.source,
            loan=version,
        )

    def released(self) -> ShmReleased:
        return ShmReleased(generation=self.generation, step=self.step, bucket=self.bucket)


class _Bucket:
    """The exchange of one bucket of one step, as its schedule has it."""

    def __init__(
        self,
        header: _Header,
        free_slots: list[int],
        schedule: Schedule,
        segments: Segments,
        item_bytes: int,
        version: int,
    ) -> None:
        self.started = False
        self.slots_used = 0
        self.schedule = schedule
        self._header = header
        self._free_slots = free_slots
        self._segments = segments
        self._item_bytes = item_bytes
        self._version = version
        self._is_shared = False  # the next rank reads this bucket from shared memory
        self._has_read_shared = False
        self._placed = [0] * len(schedule.arrivals)
        self._received = [0] * len(schedule.arrivals)
        self._early: list[tuple[Chunk, int | None]] = []
        self._missing = sum(segments.chunk_count(one.segment) for one in schedule.arrivals)
        self._is_reported = False

    @property
    def done(self) -> bool:
        """Whether all of the result is here, and no other rank reads it."""
        return self.started and self._missing == 0 and not self._is_shared

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int) -> Place | Hold:
        """Return the place of an announced chunk's payload."""
        at = self.schedule.at.get((chunk.source, chunk.phase, chunk.hop))
        if at is None:
            raise refused(chunk, "the bucket's schedule has no such phase and hop")
        arrival, expected = self.schedule.arrivals[at], self._placed[at]
        if chunk.chunk != expected or expected >= self._segments.chunk_count(arrival.segment):
            raise refused(chunk, f"expected chunk {expected}")
        start, stop = self._segments.chunk(arrival.segment, chunk.chunk)
        expected_bytes = 0 if chunk.loan else (stop - start) * self._item_bytes
        if payload_bytes != expected_bytes:
            why = f"payload is {payload_bytes} bytes, not {expected_bytes}"
            raise refused(chunk, why, ErrorCode.BAD_PAYLOAD)
        if self.schedule.whole:
            self._placed[at] += 1
            return InContributions(bucket=chunk.bucket, origin=arrival.segment)
        is_turn = arrival.after is None or self._received[arrival.after] > chunk.chunk
        needs_slot = arrival.adds and not (chunk.loan and self.started)
        if not is_turn or (needs_slot and not self._free_slots):
            return HOLD
        if not arrival.adds and not self.started:
            return HOLD
        self._placed[at] += 1
        slot = self._free_slots.pop() if needs_slot else None
        self.slots_used += needs_slot
        if chunk.loan:
            return InShared(slot=slot)
        if slot is not None:
            return InScratch(slot=slot)
        return InBucket(bucket=chunk.bucket, start=start, stop=stop)

    # --- moving ----------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """Start the bucket: send what this rank begins with, add chunks that arrived early."""
        self.started = True
        sends, count_of = self.schedule.sends, self._segments.chunk_count
        self._is_shared = self._version > 0 and bool(sends)
        effects: list[Effect] = [KeepOwn(bucket=self._header.bucket)] if self.schedule.whole else []
        for chunk in range(max((count_of(one.segment) for one in sends), default=0)):
            effects += [self._send(one, chunk) for one in sends if chunk < count_of(one.segment)]
        for early, slot in self._early:
            effects += self._arrived(early, slot)
        self._early.clear()
        return effects + self._finish()

    def received(self, chunk: Chunk, slot: int | None) -> list[Effect]:
        if not self.started and not self.schedule.whole:
            self._early.append((chunk, slot))
            return []
        return self._arrived(chunk, slot)

    def released(self, released: ShmReleased) -> list[Effect]:
        """The next rank has read all of the shared bucket."""
        if not self._is_shared:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"bucket {released.bucket} of step {released.step} released, which is not shared",
            )
        self._is_shared = False
        return self._finish()

    def index_of(self, chunk: Chunk) -> int:
        return self.schedule.at[chunk.source, chunk.phase, chunk.hop]

    def _arrived(self, chunk: Chunk, slot: int | None) -> list[Effect]:
        """A chunk's turn has come: it is added or is in its place, and goes on."""
        at = self.index_of(chunk)
        arrival = self.schedule.arrivals[at]
        start, stop = self._segments.chunk(arrival.segment, chunk.chunk)
        effects: list[Effect] = []
        if chunk.loan:
            read = ReduceShared if arrival.adds else CopyShared
            effects.append(read(bucket=chunk.bucket, start=start, stop=stop, version=chunk.loan))
        elif arrival.adds:
            assert slot is not None
            effects.append(Reduce(bucket=chunk.bucket, start=start, stop=stop, slot=slot))
        if slot is not None:
            self._free_slots.append(slot)
            self.slots_used -= 1
        self._received[at] += 1
        self._missing -= 1
        self._has_read_shared = self._has_read_shared or chunk.loan > 0
        effects += [self._send(one, chunk.chunk) for one in arrival.onward]
        if self._missing == 0 and self._has_read_shared:
            effects.append(SendReleased(released=self._header.released()))
        return effects + self._finish()

    def _send(self, transfer: Transfer, chunk: int) -> SendChunk | SendContribution:
        header = self._header.chunk(transfer, chunk, self._version)
        if self.schedule.whole:
            return SendContribution(rank=transfer.peer, chunk=header, origin=transfer.segment)
        start, stop = self._segments.chunk(transfer.segment, chunk)
        return SendChunk(rank=transfer.peer, chunk=header, start=start, stop=stop)

    def _finish(self) -> list[Effect]:
        """Report the bucket, once."""
        if self._is_reported or not self.done:
            return []
        self._is_reported = True
        done = BucketDone(bucket=self._header.bucket)
        return (
            [SumContributions(bucket=self._header.bucket), done] if self.schedule.whole else [done]
        )

    # --- explaining ------------------------------------------------------------------------

    def waits_for(self) -> str:
        """The first missing chunk from each peer, in words."""
        if self._missing == 0:
            return f"rank {self.schedule.sends[0].peer} to read its last chunks"
        missing = [
            (one, here, count)
            for one, here in zip(self.schedule.arrivals, self._received, strict=True)
            if here < (count := self._segments.chunk_count(one.segment))
        ]
        if self.schedule.whole:
            origins = sorted(one.segment for one, _, _ in missing)
            return f"the contribution of rank {', '.join(map(str, origins))}"
        first = {one.peer: (one, here, count) for one, here, count in reversed(missing)}
        return ", ".join(
            f"{one.phase.name.lower()} hop {one.hop} chunk {here} of {count} from rank {peer}"
            for peer, (one, here, count) in sorted(first.items())
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        waiting = sum(self._placed) - sum(self._received) - len(self._early)
        assert 0 <= waiting <= len({one.peer for one in self.schedule.arrivals})
        assert self.slots_used <= waiting + len(self._early)
        assert self._missing >= 0


class Machine:
    """One rank's part in one generation's ring, or in its star.

    Args:
        schedules: those of this rank.
        generation: carried by every frame; frames of others are rejected.
        first_step: the first step that will be opened; steps are opened consecutively.
        scratch_slots: chunks that may wait in scratch memory at a time; in a star one for each
            rank, as each link may bring one.

    Attributes:
        step: the open step; before the first, the one before that.
    """

    def __init__(
        self,
        schedules: RingSchedules | StarSchedules,
        *,
        generation: int,
        first_step: int,
        scratch_slots: int,
    ) -> None:
        self.rank = schedules.rank
        self.world_size = schedules.world_size
        self.generation = generation
        self.step = first_step - 1
        self._first_step = first_step
        self._schedules = schedules
        self._slots = scratch_slots
        self._free_slots = list(range(scratch_slots))
        self._shapes: list[BucketShape] = []
        self._buckets: list[_Bucket | None] = []
        self._whole: set[int] = set()
        self._versions: dict[int, int] = {}
        self._may_add = 0
        self._ready: set[int] = set()
        self._next_start = 0
        self._gathers = self._new_gathers()
        self._held: set[int] = set()

    # --- placing ---------------------------------------------------------------------------

    def place(self, chunk: Chunk, payload_bytes: int, *, link: int) -> Place | Hold:
        """Return the place of an announced chunk's payload; HOLD while it has to wait."""
        if self._is_early(chunk, link):
            return self._hold(link)
        if chunk.bucket >= len(self._buckets):
            if chunk.bucket < len(self._buckets) + self._may_add:
                return self._hold(link)
            raise refused(chunk, f"the step has {len(self._buckets)} buckets")
        place = self._bucket(chunk.bucket).place(chunk, payload_bytes)
        return self._hold(link) if isinstance(place, Hold) else place

    def accept_gather(self, gather: SmallGather, *, link: int) -> Hold | None:
        """Check an announced entry of a small gather; HOLD when it is early."""
        if self._is_early(gather, link):
            return self._hold(link)
        self._gathers.check(gather)
        return None

    def _is_early(self, frame: Chunk | SmallGather, link: int) -> bool:
        """Whether a frame belongs to the step after the open one.

        Raises:
            ProtocolError: it belongs to neither step, to another generation, or to another rank.
        """
        if frame.generation != self.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"frame of generation {frame.generation}; this one is {self.generation}",
            )
        if frame.source != link:
            raise ProtocolError(
                ErrorCode.WRONG_SOURCE, f"frame from rank {frame.source} on the link of rank {link}"
            )
        if frame.step not in (self.step, self.step + 1) or frame.step < self._first_step:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"frame of step {frame.step}; this rank is at step"
                f" {max(self.step, self._first_step)}",
            )
        return frame.step == self.step + 1

    def _hold(self, link: int) -> Hold:
        self._held.add(link)
        return HOLD

    def _resume(self) -> list[Effect]:
        held, self._held = sorted(self._held), set()
        return [Resume(rank=rank) for rank in held]

    # --- events: each returns what the shell has to do, in this order -------------------------

    def open_step(
        self,
        step: int,
        buckets: Sequence[BucketShape],
        *,
        version: int = 0,
        shared: Collection[int] = (),
        may_add: int = 0,
    ) -> list[Effect]:
        """The training thread begins a step with these buckets.

        Args:
            step: its number.
            buckets: equal on all ranks.
            version: the number under which the next rank may read them in shared memory.
            shared: indices of those that it may read; those that travel whole are sent anyway.
            may_add: most buckets that may be added during the step; equal on all ranks.
        """
        if step != self.step + 1:
            raise LocalProtocolError(f"step {step} opened after step {self.step}")
        if self._gathers.offered or not all(bucket and bucket.done for bucket in self._buckets):
            raise LocalProtocolError(f"step {step} opened while {self.explain()}")
        self.step = step
        self._shapes, self._buckets, self._whole = [], [], set()
        self._versions = dict.fromkeys(shared, version)
        self._may_add = may_add
        self._ready = set()
        self._next_start = 0
        self._gathers = self._new_gathers()
        self._add(buckets)
        return self._resume()

    def add(self, shapes: Sequence[BucketShape]) -> list[Effect]:
        """The open step has further buckets, on all ranks, numbered after the existing ones."""
        if len(shapes) > self._may_add:
            raise LocalProtocolError(
                f"{len(shapes)} buckets added to step {self.step}, which takes {self._may_add} more"
            )
        self._may_add -= len(shapes)
        self._add(shapes)
        return self._resume()

    def start(self, started: int) -> list[Effect]:
        """A bucket's own contribution is complete, or its memory may be written to."""
        if not 0 <= started < len(self._buckets) or started in self._ready:
            raise LocalProtocolError(f"bucket {started} started twice or does not exist")
        self._ready.add(started)
        effects: list[Effect] = []
        while self._next_start in self._ready:
            effects += self._bucket(self._next_start).begin()
            self._next_start += 1
        return effects + self._resume()

    def received(self, chunk: Chunk, slot: int | None = None) -> list[Effect]:
        """A chunk's payload is at the place given by `place`, and its tag was correct."""
        bucket = self._bucket(chunk.bucket)
        effects = bucket.received(chunk, slot)
        following = bucket.schedule.following.get(bucket.index_of(chunk))
        if following in self._held:
            self._held.discard(following)
            effects.append(Resume(rank=following))
        return effects

    def released(self, released: ShmReleased) -> list[Effect]:
        """The next rank has read all of a bucket in shared memory."""
        if released.generation != self.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"bucket released in generation {released.generation}"
            )
        if released.step != self.step or released.bucket >= len(self._buckets):
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"bucket {released.bucket} of step {released.step} released; this rank is at step"
                f" {self.step}",
            )
        return self._bucket(released.bucket).released(released)

    def offer_gather(self) -> list[Effect]:
        """This rank's entry of the next small gather is ready."""
        if self.step < self._first_step:
            raise LocalProtocolError("a small gather before the first step")
        return self._gathers.offer()

    def gather_received(self, gather: SmallGather) -> list[Effect]:
        """Another rank's entry of a small gather has arrived."""
        return self._gathers.received(gather)

    # --- buckets ---------------------------------------------------------------------------

    def _add(self, shapes: Sequence[BucketShape]) -> None:
        """Number further buckets; of those added together some may travel whole."""
        first = len(self._shapes)
        self._whole.update(first + at for at in self._schedules.whole(shapes))
        self._shapes += shapes
        self._buckets += [None] * len(shapes)

    def _bucket(self, index: int) -> _Bucket:
        """Return a bucket, which is made when it is asked for first."""
        bucket = self._buckets[index]
        if bucket is None:
            shape, whole = self._shapes[index], index in self._whole
            schedule, segments = self._schedules.of(shape, whole=whole)
            version = 0 if whole else self._versions.get(index, 0)
            header = _Header(self.generation, self.step, index, self.rank)
            bucket = _Bucket(
                header, self._free_slots, schedule, segments, shape.item_bytes, version
            )
            self._buckets[index] = bucket
        return bucket

    def _new_gathers(self) -> SmallGathers:
        tree = self._schedules.tree
        return SmallGathers(tree, generation=self.generation, step=self.step)

    # --- explaining ------------------------------------------------------------------------

    def explain(self) -> str:
        for index, bucket in enumerate(self._buckets):
            if bucket is None or not bucket.started:
                return f"step {self.step}: bucket {index} waits to be started here"
            if not bucket.done:
                return f"step {self.step}: bucket {index} waits for {bucket.waits_for()}"
        if self._gathers.offered:
            missing = ", ".join(map(str, self._gathers.missing()))
            return f"step {self.step}: waits for the small gather's entry of rank {missing}"
        return f"step {self.step}: waits for nothing"

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        used = len(self._free_slots)
        for bucket in self._buckets:
            if bucket is not None:
                bucket.check_invariants()
                used += bucket.slots_used
        assert used == self._slots, "a scratch slot is lost, or free twice"
        assert len(set(self._free_slots)) == len(self._free_slots)
