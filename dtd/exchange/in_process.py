"""A whole ring in one process: N ranks, N threads, no sockets.

This ring serves tests and is the simplest one to read.  It has the same machine
(`dtd.exchange.schedule.machine`) and the same node (`dtd.exchange.node`) as the ring over TCP, with
queues instead of the network.  Every call delivers, under one lock, all messages that can be
delivered, and then waits for its own result.

With `servers`, the last ranks are parameter servers: the generation has a star besides the ring.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from dtd.errors import ProtocolError
from dtd.exchange.node import SCRATCH_SLOTS, Node, NodeCollective
from dtd.exchange.schedule.crossover import whole_bytes
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.neighbours import RingLoss
from dtd.exchange.schedule.schedules import RingSchedules, StarSchedules
from dtd.exchange.schedule.tree import most_hops
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, SmallGather

Frames = deque[tuple[Chunk | SmallGather, bytes]]


class InProcessRing:
    """A ring of `world_size` ranks within this process.

    Args:
        world_size: number of ranks; each needs its own thread.
        generation: number of the roster.
        first_step: the first step that will be opened.
        chunk_bytes: most payload bytes in one frame.
        timeout_s: how long a rank waits for the others before it breaks the ring.
        servers: how many of the ranks are parameter servers, the last ones; 0: there is no star.
        changed: lock of everything, and signal of any news; None makes one.

    Attributes:
        changed: likewise.
        broken: why the generation has ended; empty while it goes on.
    """

    def __init__(
        self,
        world_size: int,
        *,
        generation: int = 1,
        first_step: int = 0,
        chunk_bytes: int = 64 * 1024,
        timeout_s: float = 60.0,
        servers: int = 0,
        changed: threading.Condition | None = None,
    ) -> None:
        self.changed = changed or threading.Condition()
        self.broken = ""
        self._queues: dict[tuple[int, int, int], Frames] = {}
        self._ranks: list[NodeCollective] = []
        for rank in range(world_size):
            schedules: list[RingSchedules | StarSchedules] = [
                RingSchedules(
                    rank,
                    world_size,
                    chunk_bytes=chunk_bytes,
                    whole_bytes=whole_bytes(world_size, most_hops(world_size)),
                )
            ]
            if servers:
                star = StarSchedules(rank, world_size, servers=servers, chunk_bytes=chunk_bytes)
                schedules.append(star)
            nodes = [
                Node(
                    Machine(
                        of_route,
                        generation=generation,
                        first_step=first_step,
                        scratch_slots=max(SCRATCH_SLOTS, world_size),
                    ),
                    _Links(self, rank, route),
                )
                for route, of_route in enumerate(schedules)
            ]
            collective = NodeCollective(
                nodes,
                run=self._run,
                end=self.break_ring,
                changed=self.changed,
                timeout_s=timeout_s,
            )
            self._ranks.append(collective)

    def collective(self, rank: int) -> NodeCollective:
        return self._ranks[rank]

    def break_ring(self, why: str) -> None:
        """End the generation: all waiting and later calls raise RingBroken."""
        with self.changed:
            if self.broken:
                return
            self.broken = why
            for rank, collective in enumerate(self._ranks):
                collective.ring_broken(RingLoss(reason=f"rank {rank}: {why}"))

    def send(self, route: int, sender: int, rank: int, message: Any, payload: Any) -> None:
        # A copy, like the kernel's: the sender may use its memory again immediately.
        queue = self._queues.setdefault((route, sender, rank), deque())
        queue.append((message, bytes(payload)))

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        """Make a call and deliver frames until none can be delivered."""
        with self.changed:
            function(*arguments)
            try:
                while any(self._deliver(*link) for link in list(self._queues)):
                    pass
            except ProtocolError as error:
                self.break_ring(str(error))

    def _deliver(self, route: int, sender: int, rank: int) -> bool:
        """Deliver a link's frames until one is held; returns whether there was one."""
        node, queue = self._ranks[rank].nodes[route], self._queues[route, sender, rank]
        delivered = False
        while queue:
            message, payload = queue[0]
            place = node.place(message, len(payload), link=sender)
            if isinstance(place, Hold):
                break
            if place is None:
                place = memoryview(bytearray(payload))
            place[:] = payload
            queue.popleft()  # before it has effects
            node.received(message, place)
            delivered = True
        return delivered


class _Links:
    """The links of one rank's node."""

    def __init__(self, ring: InProcessRing, rank: int, route: int) -> None:
        self._ring, self._rank, self._route = ring, rank, route

    def send(self, rank: int, message: Chunk | SmallGather, payload: bytes | memoryview) -> None:
        self._ring.send(self._route, self._rank, rank, message, payload)

    def resume(self, rank: int) -> None:
        """Do nothing: a held frame stays in its queue and is offered again."""

    def bucket_done(self, bucket: int) -> None:
        self._ring.collective(self._rank).bucket_done(self._route, bucket)

    def gather_done(self, entries: list[bytes]) -> None:
        self._ring.collective(self._rank).gather_done(entries)
