"""A whole star in one process, beside the ring of `dtd.exchange.in_process`.

It has the same machine (`dtd.exchange.star.machine`) and the same node (`dtd.exchange.star_node`)
as the star over TCP, with queues instead of links.  Every call holds the ring's lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from dtd.exchange.star.machine import Star
from dtd.exchange.star_node import StarNode
from dtd.exchange.submitted import SubmittedBuckets
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk

Links = dict[tuple[int, int], deque[tuple[Chunk, bytes]]]
"""The frames on the way, by sender and receiver."""


class ProcessRing(Protocol):
    """The ring of the same process, as the ends of a star use it."""

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
            InProcessStarEnd(ring, core, partial(self._enqueue, rank))
            for rank, core in enumerate(cores)
        ]

    def port(self, rank: int) -> SubmittedBuckets:
        """Return one rank's buckets of the star."""
        return self._ends[rank].buckets

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


class InProcessStarEnd:
    """One rank's end: its node, and its buckets as its training thread uses them.

    Args:
        ring: the ring of the same ranks.
        core: the machine.
        send: appends a frame to another rank's queue.

    Attributes:
        node: the star's node.
        buckets: its `dtd.exchange.star_collective.StarPort`.
    """

    def __init__(
        self, ring: ProcessRing, core: Star, send: Callable[[int, Chunk, memoryview], None]
    ) -> None:
        self.node = StarNode(core, self)
        self._send = send
        rank = core.seat.rank

        def hand_over(call: Callable[..., None], *arguments: Any) -> None:
            with ring.changed:
                ring.check(rank)
                call(*arguments)
                ring.move()

        def wait_for(here: Callable[[], bool]) -> None:
            with ring.changed:
                ring.check(rank)
                ring.wait_for(rank, here, core.explain)

        self.buckets = SubmittedBuckets(self.node, ring.changed, hand_over, wait_for)

    # --- StarHandler -------------------------------------------------------------------------

    def send_to(self, rank: int, chunk: Chunk, payload: memoryview) -> None:
        """Append to that rank's queue."""
        self._send(rank, chunk, payload)

    def resume_link(self, rank: int) -> None:
        """Do nothing: a held frame stays in its queue and is offered again."""

    def star_bucket_done(self, bucket: int) -> None:
        """The bucket holds its result."""
        self.buckets.bucket_done(bucket)
