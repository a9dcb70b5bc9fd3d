"""Both sides of the thread boundary: the node that moves bytes, and the training thread's view.

A `Node` belongs to the thread of its transport.  Its machine (`dtd.exchange.schedule.machine`)
makes all decisions; the node turns indices into memoryviews: where an incoming chunk is stored,
which bytes of which bucket are sent, when to add.  It reaches other ranks only through its `Links`,
so the same node serves TCP (`dtd.exchange.endpoint`) and one process (`dtd.exchange.in_process`).

A `NodeCollective` belongs to the training thread.  It hands calls over to the nodes of one
generation, the ring's and perhaps a star's, and blocks until their results are here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError, RingBroken
from dtd.exchange.api import BucketMemory, BusyTime, CommTiming
from dtd.exchange.memory_offers import NOTHING_SHARED, SharedMemory
from dtd.exchange.schedule.chunks import BucketShape, Segments
from dtd.exchange.schedule.effects import (
    BucketDone,
    CopyShared,
    Effect,
    GatherDone,
    InContributions,
    InScratch,
    InShared,
    KeepOwn,
    Reduce,
    ReduceShared,
    Resume,
    SendChunk,
    SendContribution,
    SendGather,
    SendReleased,
    SumContributions,
)
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.neighbours import RingLoss
from dtd.exchange.schedule.schedules import goes_by_star
from dtd.observe.profile.spans import NS, WAIT, NodeSpans, RingSpans, SpanLog
from dtd.wire.frames import HOLD, Hold
from dtd.wire.messages import MAX_WORD_BYTES, Chunk, ShmReleased, SmallGather

SCRATCH_SLOTS = 8
READ_AT_ONCE_BYTES = 8 * 1024 * 1024
"""After reading this much shared memory other work comes first: frames without payload arrive many
at a time, and the memory that they name takes 0.14 ms for each MiB to add, at first sight 0.33 ms.
"""


class Links(Protocol):
    """Sends a node's messages, and receives its notifications."""

    def send(self, rank: int, message: Chunk | SmallGather, payload: bytes | memoryview) -> None:
        """Send a frame to a rank; the payload is not copied."""
        ...

    def resume(self, rank: int) -> None:
        """Let a held frame from a rank be placed again, in a later call."""
        ...

    def bucket_done(self, bucket: int) -> None:
        """A bucket holds its result; its memory may still be draining."""
        ...

    def gather_done(self, entries: list[bytes]) -> None:
        """All ranks' entries of a small gather have arrived, in rank order."""
        ...


class Node:
    """One rank's node of one generation's ring or star.  Called from one thread at a time.

    Attributes:
        sent_bytes: bytes of elements sent in the open step.
        spans: records buckets, gathers and chunks while the job is profiled; None otherwise.
    """

    def __init__(
        self, machine: Machine, links: Links, *, shared: SharedMemory | None = None
    ) -> None:
        self.machine = machine
        self.sent_bytes = 0
        self.spans: NodeSpans | None = None
        self._links = links
        self._shared = shared
        self._busy = BusyTime()
        self._buckets: Sequence[BucketMemory] = ()
        self._shapes: tuple[BucketShape, ...] = ()
        self._added: tuple[BucketShape, ...] = ()
        self._slots: dict[int, memoryview] = {}
        self._filled: dict[int, memoryview] = {}
        self._placed_slot: dict[int, int | None] = {}
        self._contributions: dict[int, memoryview] = {}
        self._entries: dict[int, list[bytes]] = {}
        self._read_bytes = 0
        self._actions: dict[type, Callable[[Any], None]] = {
            SendChunk: self._send_chunk,
            Reduce: self._reduce,
            ReduceShared: self._read_shared,
            CopyShared: self._read_shared,
            SendReleased: self._send_released,
            KeepOwn: self._keep_own,
            SendContribution: self._send_contribution,
            SumContributions: self._sum,
            SendGather: self._send_gather,
            BucketDone: self._bucket_done,
            GatherDone: self._gather_done,
            Resume: lambda effect: self._links.resume(effect.rank),
        }

    def open_step(
        self,
        step: int,
        buckets: Sequence[BucketMemory],
        may_add: int = 0,
        busy: BusyTime | None = None,
    ) -> None:
        """Begin a step with these buckets; up to `may_add` more may be added."""
        self._buckets = buckets
        self._busy = busy or BusyTime()
        self.sent_bytes = 0
        if not self._filled:  # so it is once the buckets are shared
            self._slots.clear()
        self._filled.clear()
        self._entries = {rank: [] for rank in range(self.machine.world_size)}
        shapes = _shapes_of(buckets)
        if shapes != self._shapes or self._added:
            self._shapes, self._added, self._contributions = shapes, (), {}
        version, shared = NOTHING_SHARED if self._shared is None else self._shared.offer(buckets)
        self._perform(
            self.machine.open_step(step, shapes, version=version, shared=shared, may_add=may_add)
        )

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step; they are sent rather than shared."""
        shapes = _shapes_of(buckets)
        effects = self.machine.add(shapes)
        self._buckets = (*self._buckets, *buckets)
        self._added = (*self._added, *shapes)
        self._perform(effects)

    def start(self, bucket: int) -> None:
        """A bucket's own contribution is complete, or its memory may be written to."""
        effects = self.machine.start(bucket)
        self._busy.begin(time.monotonic())
        if self.spans is not None:
            self.spans.bucket_started(bucket, time.monotonic_ns())
        self._perform(effects)

    def offer(self, entry: bytes) -> None:
        """Offer this rank's entry of the next small gather."""
        if len(entry) > MAX_WORD_BYTES:
            raise LocalProtocolError(f"entry of {len(entry)} bytes exceeds {MAX_WORD_BYTES}")
        effects = self.machine.offer_gather()
        self._busy.begin(time.monotonic())
        if self.spans is not None:
            self.spans.gather_offered(time.monotonic_ns())
        self._entries[self.machine.rank].append(entry)
        self._perform(effects)

    # --- receiving -------------------------------------------------------------------------

    def place(
        self, message: Chunk | SmallGather, payload_bytes: int, *, link: int
    ) -> memoryview | Hold | None:
        """Return memory for an announced payload, HOLD, or None to use the link's own memory."""
        if isinstance(message, SmallGather):
            if payload_bytes > MAX_WORD_BYTES:
                raise ProtocolError(
                    ErrorCode.BAD_PAYLOAD, f"entry of {payload_bytes} bytes > {MAX_WORD_BYTES}"
                )
            return self.machine.accept_gather(message, link=link)
        if message.loan and self._shared is None:
            raise ProtocolError(ErrorCode.UNEXPECTED_CHUNK, "no memory is shared here")
        if message.loan and self._read_bytes >= READ_AT_ONCE_BYTES:
            self._read_bytes = 0
            self._links.resume(link)
            return HOLD
        if self.spans is not None:
            self.spans.chunk_announced(link, time.monotonic_ns())
        place = self.machine.place(message, payload_bytes, link=link)
        if isinstance(place, Hold):
            return place
        self._placed_slot[link] = place.slot if isinstance(place, InScratch | InShared) else None
        if isinstance(place, InScratch):
            self._filled[place.slot] = self._slot(place.slot, payload_bytes)
            return self._filled[place.slot]
        if isinstance(place, InContributions):
            return self._contribution(place.bucket, place.origin)
        if isinstance(place, InShared):
            return None
        return self._elements(place.bucket, place.start, place.stop)

    def received(self, message: Chunk | SmallGather, payload: memoryview) -> None:
        """The payload has been stored where `place` said."""
        if isinstance(message, SmallGather):
            self._entries[message.origin].append(bytes(payload))
            self._perform(self.machine.gather_received(message))
            return
        slot = self._placed_slot[message.source]
        self._perform(self.machine.received(message, slot))
        if self.spans is not None:
            self.spans.chunk_done(message, time.monotonic_ns())

    def item_bytes(self, bucket: int) -> int:
        """Width of a bucket's elements."""
        return self._buckets[bucket].shape.item_bytes

    def released(self, message: ShmReleased) -> None:
        """The next rank has read the shared part of a bucket."""
        self._perform(self.machine.released(message))

    def _slot(self, slot: int, payload_bytes: int) -> memoryview:
        memory = self._slots.get(slot)
        if memory is None or len(memory) < payload_bytes:  # most chunks are far from the largest
            memory = memoryview(bytearray(payload_bytes))
            self._slots[slot] = memory
        return memory[:payload_bytes]

    def _elements(self, bucket: int, start: int, stop: int) -> memoryview:
        memory, item_bytes = self._buckets[bucket], self.item_bytes(bucket)
        return memory.view[start * item_bytes : stop * item_bytes]

    def _contribution(self, bucket: int, origin: int) -> memoryview:
        """Return one rank's place in a bucket's contributions; every step uses the same memory."""
        size_bytes = len(self._buckets[bucket].view)
        if bucket not in self._contributions:
            self._contributions[bucket] = memoryview(
                bytearray(self.machine.world_size * size_bytes)
            )
        return self._contributions[bucket][origin * size_bytes : (origin + 1) * size_bytes]

    # --- effects ---------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        try:
            for effect in effects:
                self._actions[type(effect)](effect)
        except ProtocolError as error:  # shared memory cannot be read, but has been counted
            assert self._shared is not None
            self._shared.links.unreadable(error)

    def _send_chunk(self, effect: SendChunk) -> None:
        payload = self._elements(effect.chunk.bucket, effect.start, effect.stop)
        self.sent_bytes += len(payload)
        self._links.send(effect.rank, effect.chunk, b"" if effect.chunk.loan else payload)

    def _send_contribution(self, effect: SendContribution) -> None:
        payload = self._contribution(effect.chunk.bucket, effect.origin)
        self.sent_bytes += len(payload)
        self._links.send(effect.rank, effect.chunk, payload)

    def _send_gather(self, effect: SendGather) -> None:
        gather = effect.gather
        self._links.send(effect.rank, gather, self._entries[gather.origin][gather.sequence])

    def _send_released(self, effect: SendReleased) -> None:
        assert self._shared is not None
        self._shared.links.tell_previous(effect.released)

    def _reduce(self, effect: Reduce) -> None:
        received = self._filled[effect.slot]
        if len(received):
            self._buckets[effect.bucket].add(effect.start, effect.stop, received)

    def _read_shared(self, effect: ReduceShared | CopyShared) -> None:
        assert self._shared is not None
        memory, item_bytes = self._buckets[effect.bucket], self.item_bytes(effect.bucket)
        start, stop = effect.start * item_bytes, effect.stop * item_bytes
        self._read_bytes += stop - start
        with self._shared.read(effect.bucket, start, stop) as theirs:
            if isinstance(effect, CopyShared):
                memory.view[start:stop] = theirs
            elif start < stop:
                memory.add(effect.start, effect.stop, theirs)
        self._shared.check_unchanged(effect.version)

    def _keep_own(self, effect: KeepOwn) -> None:
        own = self._contribution(effect.bucket, self.machine.rank)
        own[:] = self._buckets[effect.bucket].view

    def _sum(self, effect: SumContributions) -> None:
        """Sum the contributions in one order on every rank.

        It is that of the ring in segments: segment i begins with the part of rank i.  So the way of
        a bucket changes no bit, unless the bucket has a `total` of its own.
        """
        memory, world_size = self._buckets[effect.bucket], self.machine.world_size
        elements, item_bytes = memory.shape.elements, memory.shape.item_bytes
        if not elements:
            return
        contributions = [self._contribution(effect.bucket, one) for one in range(world_size)]
        if memory.total is not None:
            memory.total(contributions)
            return
        segments = Segments(elements, world_size, elements)
        bounds = [segments.segment(index) for index in range(world_size)]
        added = memoryview(bytearray(len(memory.view)))
        for turn in range(world_size):
            to = added if turn else memory.view
            for index, (first, last) in enumerate(bounds):
                start, stop = first * item_bytes, last * item_bytes
                to[start:stop] = contributions[(index + turn) % world_size][start:stop]
            if turn:
                memory.add(0, elements, added)

    def _bucket_done(self, effect: BucketDone) -> None:
        self._busy.end(time.monotonic())
        if self.spans is not None:
            self.spans.bucket_done(effect.bucket, time.monotonic_ns())
        self._links.bucket_done(effect.bucket)

    def _gather_done(self, effect: GatherDone) -> None:
        self._busy.end(time.monotonic())
        if self.spans is not None:
            self.spans.gather_done(effect.sequence, time.monotonic_ns())
        entries = self._entries
        self._links.gather_done([entries[rank][effect.sequence] for rank in sorted(entries)])


def _shapes_of(buckets: Sequence[BucketMemory]) -> tuple[BucketShape, ...]:
    return tuple(bucket.shape for bucket in buckets)


RING, STAR = 0, 1
"""The routes of buckets: positions in the list of a generation's nodes."""


class NodeCollective:
    """One generation's `dtd.exchange.api.Collective`, on the nodes of one rank.

    With parameter servers there is a star besides the ring: reduce-scatters and all-gathers of
    whole buckets (`goes_by_star`) use it, all other buckets and small gathers the ring.  The
    buckets of each route are numbered apart on the wire.  After a reduce-scatter a trainer holds
    nothing of the sum, and a server what `dtd.engine.shards.Division` says; a server contributes
    nothing to it, but starts the bucket like any other rank: its memory is free to be written to.

    Args:
        nodes: the ring's node, then the star's if there are servers.
        run: runs a call on the nodes' thread.
        end: ends this rank's part in the generation, on the nodes' thread.
        agreed: called once all ranks have agreed on the initial state.
        changed: lock and signal of the ring; shared with other ranks in the same process.
        timeout_s: how long to wait for the others before the ring is broken; None: for ever.

    Attributes:
        suspect: name of the neighbour that was lost; empty while the ring is up, and if this side
            ended it.
        evidence: how it was lost, as in FROZEN.
        why_broken: why the ring is broken, in words; empty while it is up.
        waiting_since: monotonic time at which the training thread began to wait for the ring; None
            if it is not waiting.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        run: Callable[..., None],
        end: Callable[[str], None],
        agreed: Callable[[], None] | None = None,
        changed: threading.Condition | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.nodes = nodes
        self.suspect = ""
        self.evidence = ""
        self.why_broken = ""
        self.waiting_since: float | None = None
        self._run = run
        self._end = end
        self._agreed = agreed
        self._changed = changed or threading.Condition()
        self._timeout_s = timeout_s
        self._when_broken: list[Callable[[], None]] = []
        self._routes: list[tuple[int, int]] = []
        self._counts = [0] * len(nodes)
        self._done: set[tuple[int, int]] = set()
        self._when_done: dict[tuple[int, int], Callable[[], None]] = {}
        self._gathered: deque[list[bytes]] = deque()
        self._busy = BusyTime()
        self._exposed_s = 0.0
        self._waits: SpanLog | None = None
        self._up = threading.Event()

    @property
    def rank(self) -> int:
        return self.nodes[RING].machine.rank

    @property
    def world_size(self) -> int:
        return self.nodes[RING].machine.world_size

    @property
    def generation(self) -> int:
        return self.nodes[RING].machine.generation

    # --- training thread -------------------------------------------------------------------

    def check(self) -> None:
        if self.why_broken:
            raise self.broken()

    def broken(self) -> RingBroken:
        """Return the error that says how the ring ended."""
        return RingBroken(self.why_broken, suspect=self.suspect, evidence=self.evidence)

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        with self._changed:
            self._done.clear()
            self._when_done.clear()
        self._exposed_s, self._busy = 0.0, BusyTime()
        self._routes, self._counts = [], [0] * len(self.nodes)
        for node, part in zip(self.nodes, self._routed(buckets), strict=True):
            self._hand_over(node.open_step, step, part, may_add, self._busy)

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        for node, part in zip(self.nodes, self._routed(buckets), strict=True):
            if part:
                self._hand_over(node.add, part)

    def _routed(self, buckets: Sequence[BucketMemory]) -> list[tuple[BucketMemory, ...]]:
        """Number further buckets on their routes; depends on shapes alone, equal on all ranks."""
        parts: list[list[BucketMemory]] = [[] for _ in self.nodes]
        for bucket in buckets:
            route = STAR if len(parts) > 1 and goes_by_star(bucket.shape) else RING
            self._routes.append((route, self._counts[route]))
            self._counts[route] += 1
            parts[route].append(bucket)
        return [tuple(part) for part in parts]

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        route, index = self._routes[bucket] if bucket < len(self._routes) else (RING, bucket)
        if done is not None:
            with self._changed:
                self._when_done[route, index] = done
        self._hand_over(self.nodes[route].start, index)

    def wait(self, bucket: int) -> None:
        self._wait_for(lambda: bucket < len(self._routes) and self._routes[bucket] in self._done)

    def gather(self, entry: bytes) -> list[bytes]:
        self._hand_over(self.nodes[RING].offer, entry)
        self._wait_for(lambda: bool(self._gathered))
        return self._gathered.popleft()

    def agreed(self) -> None:
        agreed, self._agreed = self._agreed, None
        if agreed is not None:
            agreed()

    def close_step(self) -> CommTiming:
        return CommTiming(
            busy_s=self._busy.busy_s,
            exposed_s=self._exposed_s,
            sent_bytes=sum(node.sent_bytes for node in self.nodes),
        )

    def record(self, waits: SpanLog | None, ring: RingSpans | None) -> None:
        self._waits = waits
        of_nodes = (None, None) if ring is None else (ring.ring, ring.star)
        for node, spans in zip(self.nodes, of_nodes, strict=False):
            self._run(setattr, node, "spans", spans)

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call this when the ring breaks, or now if it is broken already; it must not block."""
        with self._changed:
            if not self.why_broken:
                self._when_broken.append(callback)
                return
        callback()

    def give_up(self, reason: str) -> None:
        """End the ring from the training thread, so that the neighbours notice immediately."""
        self._run(self._end, reason)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While this is open, the training thread waits for other ranks and is not itself slow.

        A nested wait is part of the outer one.
        """
        before, self.waiting_since = self.waiting_since, self.waiting_since or time.monotonic()
        try:
            yield
        finally:
            self.waiting_since = before

    def _hand_over(self, function: Callable[..., None], *arguments: object) -> None:
        self.check()
        self._run(function, *arguments)

    def _wait_for(self, here: Callable[[], bool]) -> None:
        begun_s = time.monotonic()
        with self.waiting(), self._changed:
            if not self._changed.wait_for(lambda: here() or bool(self.why_broken), self._timeout_s):
                self._end(f"rank {self.rank} timed out: {self.explain()}")
            arrived = here()
        ended_s = time.monotonic()
        self._exposed_s += ended_s - begun_s
        if self._waits is not None:
            self._waits.add(WAIT, int(begun_s * NS), int(ended_s * NS))
        if not arrived:
            raise self.broken()

    # --- the nodes' thread -----------------------------------------------------------------

    def explain(self) -> str:
        """Return what ring and star are waiting for, in words."""
        return "; in the star ".join(node.machine.explain() for node in self.nodes)

    def wait_up(self) -> None:
        """Block until all neighbours are connected."""
        self._wait_for(self._up.is_set)

    def ring_up(self) -> None:
        """All links are established."""
        with self._changed:
            self._up.set()
            self._changed.notify_all()

    def bucket_done(self, route: int, bucket: int) -> None:
        """A bucket of a route belongs to the training thread again."""
        with self._changed:
            self._done.add((route, bucket))
            done = self._when_done.pop((route, bucket), None)
            self._changed.notify_all()
        if done is not None:
            done()

    def gather_done(self, entries: list[bytes]) -> None:
        """All ranks' entries have arrived."""
        with self._changed:
            self._gathered.append(entries)
            self._changed.notify_all()

    def ring_broken(self, loss: RingLoss) -> None:
        """Wake the training thread, wherever it waits; called once."""
        with self._changed:
            self.suspect, self.evidence = loss.suspect, loss.evidence
            self.why_broken = loss.reason or "the ring has ended"
            callbacks, self._when_broken = self._when_broken, []
            self._changed.notify_all()
        for callback in callbacks:
            callback()
