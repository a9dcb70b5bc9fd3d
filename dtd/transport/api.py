"""The data plane as the training thread sees it: one interface, several transports.

`all_reduce` has exactly the contract of the system: synchronous, deterministic, blocks until all
active workers took part, the same bytes on every worker.  To overlap it with backward it is split
in two: `start` hands a full bucket over and returns at once, `wait` blocks until it is averaged.

The TCP ring (`dtd.transport.bridge`) is the transport of the daemons, a process group of torch
(`dtd.transport.process_group`) may carry its buckets, and `dtd.transport.in_process` is the one for
tests and for reading.  This file holds only the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dtd.core.ring.chunks import Operation


class Lendable(Protocol):
    """Memory that processes of the same host may be let read (`dtd.lent_memory.LentMemory`)."""

    descriptor: int
    nonce: bytes
    size_bytes: int
    loan: int


@dataclass(frozen=True, slots=True)
class BufferLocation:
    """Where in lendable memory a bucket's view lies; the offset is from the file's beginning."""

    memory: Lendable
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketMemory:
    """Where one bucket's contribution lies, and how to add to it.

    Contributions are summed; a rank scales its own by its share of the global batch before it
    starts the bucket, so that the sum is the average.

    Attributes:
        view: the bucket's own memory as writable bytes ("B" format), elements * item_bytes long.
        item_bytes: size of one element; chunks never split an element.
        add: `add(start, stop, received)` adds the received bytes to elements [start, stop); where
            the operation is a maximum, it takes the larger of each.
        total: `total(contributions)` makes the bucket the sum of these, added in their order; None
            where that is to put the first there and to add the others.
        home: where the view lies, if other processes of this host can be let read it.
        operation: what is made of it, and on which ranks; equal on all ranks.
        dtype: name of the element type, as torch has it, where `add` is that type's addition; empty
            where it is something else, so that nobody but `add` can make the sum.
    """

    view: memoryview
    item_bytes: int
    add: Callable[[int, int, memoryview], None]
    total: Callable[[Sequence[memoryview]], None] | None = None
    home: BufferLocation | None = None
    dtype: str = ""
    operation: Operation = Operation.SUM

    @property
    def elements(self) -> int:
        """Number of elements in the bucket."""
        return len(self.view) // self.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommTiming:
    """What one step cost on the wire, as seen by one rank.

    Attributes:
        busy_s: time during which at least one bucket or word was in flight.
        exposed_s: the part of it during which the training thread stood waiting.
        sent_bytes: elements given to the ring neighbour, sent or lent.
    """

    busy_s: float
    exposed_s: float
    sent_bytes: int


class Collective(Protocol):
    """One generation's ring, called from the training thread only.

    Every method may raise `RingBroken`: the generation is over, nothing of the step was applied,
    and the caller goes back to waiting for its next assignment.
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
        """Raise if the ring is broken; costs nothing, so that long work can be cut short."""
        ...

    def open_step(self, step: int, buckets: Sequence[BucketMemory]) -> None:
        """Begin step `step` (0-based); its buckets are known by their index from here on.

        Every rank opens the same steps, one after another without a gap, with buckets of the same
        sizes (or none), and starts all of them before it waits for the first; or every rank waits
        for the same first ones before it starts the others.
        """
        ...

    def start(self, bucket: int) -> None:
        """Hand over a bucket whose contribution is complete; returns at once, thread-safe.

        Buckets may be handed over in any order; they travel in index order.
        """
        ...

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds the sum of all contributions and is ours again."""
        ...

    def gather(self, word: bytes) -> list[bytes]:
        """Block until every rank has called this, then return all ranks' words in rank order.

        Words are small (at most 32 KiB).  Called within an open step, equally often by all ranks.
        """
        ...

    def close_step(self) -> CommTiming:
        """End the open step and say what it cost."""
        ...


class ExtendableCollective(Collective, Protocol):
    """A collective whose steps may get further buckets while they are open.

    For rounds that depend on one another: what is exchanged next is known when the last exchange
    has come back.
    """

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """As `Collective.open_step`.

        Args:
            step: its number.
            buckets: those that are known by now.
            may_add: most buckets that `add` will bring before the step is over; equal on all ranks.
        """
        ...

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """The open step has these buckets, too, numbered after those that it has.

        Every rank adds buckets of the same sizes and operations in the same order.  They are
        started and waited for like others, and those before them are waited for first.
        """
        ...


class BreakableCollective(ExtendableCollective, Protocol):
    """A ring on which another transport rests: it says who takes part, and when that is over."""

    def exchange(self, word: bytes) -> list[bytes]:
        """As `gather`, for the transport's own words: no sign that training has begun."""
        ...

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Have this called when the ring breaks, or now if it is broken; it must not block."""
        ...

    def give_up(self, reason: str) -> None:
        """End the ring from the training thread, so that the neighbours need not wait for it."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Meanwhile the training thread waits for others, and is not to blame if that is long."""
        ...


def all_reduce(collective: Collective, bucket: int) -> None:
    """Sum one bucket over all ranks, blocking: the one primitive, without overlap."""
    collective.start(bucket)
    collective.wait(bucket)
