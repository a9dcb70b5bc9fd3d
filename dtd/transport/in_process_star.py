"""A whole star in one process, beside the ring of `dtd.transport.in_process`.

It has the same machine (`dtd.core.star.machine`) and the same node (`dtd.transport.star_node`) as
the star over TCP, with queues instead of links.  Every call holds the ring's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dtd.core.star.machine import Star
from dtd.transport.api import BucketMemory
from dtd.transport.star_node import StarNode
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk

Links = dict[tuple[int, int], deque[tuple[Chunk, bytes]]]
"""The frames on the way, by sender and receiver."""


class ProcessRing(Protocol):
    """What the ends of a star use of the ring in the same process."""

    changed: threading.Condition

    def check(self, rank: int) -> None:
        """Raise RingBroken if the ring is broken."""
        ...

    def move(self) -> None:
        """Deliver what can be delivered; called with the lock held."""
        ...

    def wait_for(self, rank: int, here: Callable[[], bool], explain: Callable[[], str]) -> None:
        """Block until something is here; called with the lock held."""
        ...


class InProcessStar:
    """All ends of a star within this process.

    Args:
        ring: the ring of the same ranks.
        cores: the machine of every rank.
    """

    def __init__(self, ring: ProcessRing, cores: Sequence[Star]) -> None:
        self._links: Links = {}
        self._ends = [
            InProcessStarPort(ring, core, partial(self._enqueue, rank))
            for rank, core in enumerate(cores)
        ]

    def port(self, rank: int) -> InProcessStarPort:
        """Return one rank's end of the star."""
        return self._ends[rank]

    def move(self) -> bool:
        """Deliver frames until none can be delivered; returns whether there was one.

        Raises:
            ProtocolError: a frame is refused.
        """
        moved = False
        for (sender, receiver), queue in list(self._links.items()):
            while queue and self._deliver(self._ends[receiver].node, sender, queue):
                moved = True
        return moved

    def _enqueue(self, sender: int, receiver: int, chunk: Chunk, payload: memoryview) -> None:
        # A copy, like the kernel's: the sender may use its memory again immediately.
        self._links.setdefault((sender, receiver), deque()).append((chunk, bytes(payload)))

    @staticmethod
    def _deliver(node: StarNode, sender: int, queue: deque[tuple[Chunk, bytes]]) -> bool:
        """Deliver the first frame unless it is held; it leaves the queue before it has effects."""
        chunk, payload = queue[0]
        place = node.place(chunk, len(payload), link=sender)
        if isinstance(place, Hold):
            return False
        queue.popleft()
        place[:] = payload
        node.received(chunk)
        return True


class InProcessStarPort:
    """One rank's `dtd.transport.star.StarPort` over an `InProcessStar`."""

    def __init__(
        self, ring: ProcessRing, core: Star, send: Callable[[int, Chunk, memoryview], None]
    ) -> None:
        self.node = StarNode(core, self)
        self._ring = ring
        self._rank = core.seat.rank
        self._send = send
        self._done: set[int] = set()
        self._when_done: dict[int, Callable[[], None]] = {}

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step; see `ExtendableCollective.open_step`."""
        with self._ring.changed:
            self._ring.check(self._rank)
            self._done.clear()
            self._when_done.clear()
            self.node.open_step(step, buckets, may_add)
            self._ring.move()

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step; see `ExtendableCollective.add`."""
        with self._ring.changed:
            self._ring.check(self._rank)
            self.node.add(buckets)
            self._ring.move()

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Submit a full bucket; see `Collective.start`."""
        with self._ring.changed:
            self._ring.check(self._rank)
            if done is not None:
                self._when_done[bucket] = done
            self.node.start(bucket)
            self._ring.move()

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds its result; see `Collective.wait`."""
        with self._ring.changed:
            self._ring.check(self._rank)
            self._ring.wait_for(self._rank, lambda: bucket in self._done, self.node.core.explain)

    def sent_bytes(self) -> int:
        """Bytes of elements sent in the open step."""
        return self.node.sent_bytes

    # --- StarHandler -------------------------------------------------------------------------

    def send_to(self, rank: int, chunk: Chunk, payload: memoryview) -> None:
        """Append to that rank's queue."""
        self._send(rank, chunk, payload)

    def resume_link(self, rank: int) -> None:
        """Do nothing: a held frame stays in its queue and is offered again."""

    def star_bucket_done(self, bucket: int) -> None:
        """The bucket holds its result."""
        self._done.add(bucket)
        if bucket in self._when_done:
            self._when_done.pop(bucket)()
