"""The data plane as seen by the training thread: one interface, several transports.

`all_reduce` states the contract of the system: it is synchronous and deterministic, blocks until
all active workers have taken part, and leaves the same bytes on every worker.  To overlap with
backward it is split in two: `start` submits a full bucket and returns immediately, `wait` blocks
until that bucket is averaged.

The daemons use the ring over TCP (`dtd.exchange.endpoint`), whose buckets a torch process group
(`dtd.exchange.process_group`) can carry.  `dtd.exchange.in_process` serves tests and is the
simplest one to read.  This file holds only the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dtd.exchange.schedule.chunks import BucketShape
from dtd.observe.profile.spans import RingSpans, SpanLog


class Shareable(Protocol):
    """Memory that processes of the same host may read (`dtd.host.shared_memory.OfferedMemory`)."""

    descriptor: int
    nonce: bytes
    size_bytes: int
    version: int


@dataclass(frozen=True, slots=True)
class BufferLocation:
    """Location of a bucket's view in shareable memory; the offset is from the file's start."""

    memory: Shareable
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketMemory:
    """The memory of one bucket's contribution, and how to add to it.

    Contributions are summed.  Each rank scales its own by its share of the global batch before it
    starts the bucket, so the sum is the average.

    Attributes:
        view: the bucket's own memory as writable bytes ("B" format).
        shape: the properties of the bucket that the ring needs.
        add: `add(start, stop, received)` adds the received bytes to elements [start, stop); if the
            operation is a maximum, it takes the elementwise maximum instead.
        total: `total(contributions)` sets the bucket to the sum of these, added in order; None
            means: copy the first one and `add` the others.
        home: location of the view, if it can be shared with other processes of this host.
        dtype: torch's name of the element type if `add` is that type's addition; empty if it is
            something else, so that only `add` can compute the sum.
    """

    view: memoryview
    shape: BucketShape
    add: Callable[[int, int, memoryview], None]
    total: Callable[[Sequence[memoryview]], None] | None = None
    home: BufferLocation | None = None
    dtype: str = ""

    def shaped(self, **changes: Any) -> BucketMemory:
        """Return the same memory with changes of its shape, such as another operation."""
        return replace(self, shape=replace(self.shape, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommTiming:
    """The communication cost of one step, as seen by one rank.

    Attributes:
        busy_s: time during which at least one bucket or small gather was in flight.
        exposed_s: the part of it during which the training thread was blocked.
        sent_bytes: bytes of elements passed to the ring neighbour, over the socket or through
            shared memory.
    """

    busy_s: float
    exposed_s: float
    sent_bytes: int


class BusyTime:
    """Time during which at least one of several operations was in progress.

    Attributes:
        busy_s: total so far, without the current busy period.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._in_flight = 0
        self._since_s = 0.0

    def begin(self, now: float) -> None:
        """One more operation begins; `now` in seconds, on any clock."""
        if self._in_flight == 0:
            self._since_s = now
        self._in_flight += 1

    def end(self, now: float) -> None:
        """One operation has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self.busy_s += now - self._since_s


class Collective(Protocol):
    """One generation's ring.  Only the training thread calls it, except `start` (any thread).

    Every method may raise `RingBroken`: the generation is over, nothing of the step was applied,
    and the caller returns to waiting for its next assignment.
    """

    @property
    def rank(self) -> int:
        """This worker's position in the roster."""
        ...

    @property
    def world_size(self) -> int:
        """Length of the roster."""
        ...

    @property
    def generation(self) -> int:
        """Number of the roster."""
        ...

    def check(self) -> None:
        """Raise if the ring is broken; cheap enough to be polled during long work."""
        ...

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step; from now on its buckets are addressed by their index.

        Every rank opens the same steps, consecutively, with buckets of the same shapes (or none).
        It starts all of them before it waits for the first one, or waits for a leading part before
        it starts the others; that leading part must be the same on every rank.

        Args:
            step: its number, from 0.
            buckets: those that are known already.
            may_add: most buckets that `add` may add during the step; equal on all ranks.
        """
        ...

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step, numbered after its present ones.

        For dependent rounds, where the next exchange is known only after the previous one has
        completed.  Every rank adds buckets of the same shapes in the same order.  They are started
        and awaited like any other bucket, after all earlier ones have been awaited.
        """
        ...

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Submit a bucket whose contribution is complete; returns immediately, from any thread.

        Buckets may be submitted in any order; they are exchanged in index order.  A bucket that
        depends on the results of others can be submitted once those have arrived, provided that
        they have lower indices and that no thread which they need is blocked in the meantime.

        Args:
            bucket: its index.
            done: called on a thread of the transport once the bucket holds its result and belongs
                to the caller again; never called if the generation ends first.  Must not block.
        """
        ...

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds the sum of all contributions and is the caller's again.

        Only for the training thread, which may call it before another thread submits the bucket.
        """
        ...

    def gather(self, entry: bytes) -> list[bytes]:
        """Block until every rank has called this, then return all ranks' entries in rank order.

        A small gather: an entry has at most 32 KiB.  All ranks call this equally often, within an
        open step.
        """
        ...

    def agreed(self) -> None:
        """All ranks have compared the generation's initial state, and it is equal: it has begun.

        Further calls say nothing new.
        """
        ...

    def close_step(self) -> CommTiming:
        """End the open step and return its timing."""
        ...

    def record(self, waits: SpanLog | None, ring: RingSpans | None) -> None:
        """Record from now on; None: no more.  Only for the training thread, between steps.

        Args:
            waits: gets the times in which the training thread waits for the others; that thread's.
            ring: gets buckets, small gathers and chunks, also of a star; from now on the
                transport's thread's.
        """
        ...


def all_reduce(collective: Collective, bucket: int) -> None:
    """Sum one bucket over all ranks and block until done: the basic primitive, without overlap."""
    collective.start(bucket)
    collective.wait(bucket)
