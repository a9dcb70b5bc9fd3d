"""A whole ring in one process: N ranks, N threads, no sockets.

This ring serves tests and is the simplest one to read.  It has the same machine
(`dtd.exchange.ring.machine`) and the same node (`dtd.exchange.ring_node`) as the TCP ring, with
queues instead of the network.  Every call delivers, under one lock, all messages that can be
delivered, and then waits for its own result.

With `servers`, the last ranks are parameter servers: the generation has a star besides the ring
(`dtd.exchange.in_process_star`), and every rank's thread uses `InProcessRing.star(rank)` instead
of `InProcessRing.collective(rank)`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dtd.errors import ProtocolError, RingBroken
from dtd.exchange.api import BucketMemory, CommTiming
from dtd.exchange.in_process_star import InProcessStar
from dtd.exchange.ring.machine import Ring
from dtd.exchange.ring_node import SCRATCH_SLOTS, RingNode
from dtd.exchange.star.machine import Star
from dtd.exchange.star_collective import StarCollective
from dtd.exchange.submitted import SubmittedBuckets
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, SmallGather

Parcel = tuple[Chunk | SmallGather, bytes]


class InProcessRing:
    """A ring of `world_size` ranks within this process.

    Args:
        world_size: number of ranks; each needs its own thread.
        generation: number of the roster.
        first_step: the first step that will be opened.
        chunk_bytes: most payload bytes in one frame.
        timeout_s: how long a rank waits for the others before it breaks the ring.
        servers: how many of the ranks are parameter servers, the last ones; 0: there is no star.
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
    ) -> None:
        self.timeout_s = timeout_s
        self.changed = threading.Condition()
        self.broken = ""
        self._when_broken: list[Callable[[], None]] = []
        self._queues: list[deque[Parcel]] = [deque() for _ in range(world_size)]
        self._ranks = [
            InProcessCollective(
                self,
                Ring(
                    rank=rank,
                    world_size=world_size,
                    generation=generation,
                    first_step=first_step,
                    chunk_bytes=chunk_bytes,
                    scratch_slots=SCRATCH_SLOTS,
                ),
                partial(self._enqueue, (rank + 1) % world_size),
            )
            for rank in range(world_size)
        ]
        self._star = InProcessStar(
            self,
            [
                Star(
                    rank=rank,
                    world_size=world_size,
                    servers=servers,
                    generation=generation,
                    first_step=first_step,
                    chunk_bytes=chunk_bytes,
                )
                for rank in range(world_size)
                if servers
            ],
        )

    def collective(self, rank: int) -> InProcessCollective:
        """Return one rank's end of the ring."""
        return self._ranks[rank]

    def star(self, rank: int) -> StarCollective:
        """Return one rank's end of ring and star, if there are servers."""
        return StarCollective(self._ranks[rank], self._star.port(rank))

    def check(self, rank: int) -> None:
        """Raise RingBroken, as this rank's error, if the ring is broken."""
        if self.broken:
            raise RingBroken(f"rank {rank}: {self.broken}")

    def wait_for(self, rank: int, here: Callable[[], bool], explain: Callable[[], str]) -> None:
        """Block until something is here; called with the lock held.

        Args:
            rank: that waits.
            here: whether it is.
            explain: returns what is waited for, in words, if it never comes.

        Raises:
            RingBroken: the ring is broken, or it took too long.
        """
        if not self.changed.wait_for(lambda: here() or bool(self.broken), self.timeout_s):
            self.break_ring(f"rank {rank} timed out: {explain()}")
        if not here():
            self.check(rank)

    def break_ring(self, why: str) -> None:
        """End the generation: all waiting and later calls raise RingBroken."""
        with self.changed:
            self.broken = self.broken or why
            callbacks, self._when_broken = self._when_broken, []
            self.changed.notify_all()
        for callback in callbacks:
            callback()

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call this when the ring breaks, or now if it is broken already."""
        with self.changed:
            if not self.broken:
                self._when_broken.append(callback)
                return
        callback()

    def _enqueue(
        self, to_rank: int, message: Chunk | SmallGather, payload: bytes | memoryview
    ) -> None:
        # A copy, like the kernel's: the sender may use its memory again immediately.
        self._queues[to_rank].append((message, bytes(payload)))

    def move(self) -> None:
        """Deliver messages until none can be delivered; called with the lock held."""
        moved = True
        try:
            while moved:
                moved = False
                for rank, queue in enumerate(self._queues):
                    while queue and self._deliver(self._ranks[rank].node, *queue[0]):
                        queue.popleft()
                        moved = True
                moved = self._star.move() or moved
        except ProtocolError as error:
            self.break_ring(str(error))
        self.changed.notify_all()

    def _deliver(self, node: RingNode, message: Chunk | SmallGather, payload: bytes) -> bool:
        place = node.place(message, len(payload))
        if isinstance(place, Hold):
            return False
        if place is None:
            place = memoryview(bytearray(payload))
        else:
            place[:] = payload
        node.received(message, place)
        return True


class InProcessCollective:
    """One rank's `Collective` over an `InProcessRing`."""

    def __init__(
        self,
        ring: InProcessRing,
        core: Ring,
        send: Callable[[Chunk | SmallGather, bytes | memoryview], None],
    ) -> None:
        self.node = RingNode(core, self)
        self._send = send
        self._ring = ring
        self._buckets = SubmittedBuckets(self.node, ring.changed, self._hand_over, self._wait_for)
        self._words: deque[list[bytes]] = deque()
        self._exposed_s = 0.0

    @property
    def rank(self) -> int:
        """This end's position in the roster."""
        return self.node.core.rank

    @property
    def world_size(self) -> int:
        """Length of the roster."""
        return self.node.core.world_size

    @property
    def generation(self) -> int:
        """Number of the roster."""
        return self.node.core.generation

    def check(self) -> None:
        """Raise if the ring is broken."""
        self._ring.check(self.rank)

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step."""
        self._exposed_s = 0.0
        self._buckets.open_step(step, buckets, may_add)

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step."""
        self._buckets.add(buckets)

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Submit a full bucket."""
        self._buckets.start(bucket, done)

    def wait(self, bucket: int) -> None:
        """Block until the bucket is averaged."""
        self._buckets.wait(bucket)

    def gather(self, word: bytes) -> list[bytes]:
        """Exchange small words."""
        self._hand_over(self.node.offer, word)
        self._wait_for(lambda: bool(self._words))
        return self._words.popleft()

    def agreed(self) -> None:
        """Do nothing: no end waits to hear it."""

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call this when the ring breaks."""
        self._ring.on_broken(callback)

    def give_up(self, reason: str) -> None:
        """End the ring."""
        self._ring.break_ring(f"rank {self.rank} gave up: {reason}")

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Implement `BreakableCollective.waiting`; waits are not monitored here."""
        return contextlib.nullcontext()

    def close_step(self) -> CommTiming:
        """End the open step."""
        return CommTiming(
            busy_s=self.node.busy_s(),
            exposed_s=self._exposed_s,
            sent_bytes=self.node.sent_bytes,
        )

    def _hand_over(self, call: Callable[..., None], *arguments: Any) -> None:
        with self._ring.changed:
            self._ring.check(self.rank)
            call(*arguments)
            self._ring.move()

    def _wait_for(self, here: Callable[[], bool]) -> None:
        begun_s = time.monotonic()
        try:
            with self._ring.changed:
                self._ring.check(self.rank)
                self._ring.wait_for(self.rank, here, self.node.core.explain)
        finally:
            self._exposed_s += time.monotonic() - begun_s

    # --- NodeHandler -------------------------------------------------------------------------

    def send(self, message: Chunk | SmallGather, payload: bytes | memoryview) -> None:
        """Append to the next rank's queue."""
        self._send(message, payload)

    def resume(self) -> None:
        """Do nothing: a held parcel stays in its queue and is offered again."""

    def bucket_done(self, bucket: int) -> None:
        """The bucket holds the sum."""
        self._buckets.bucket_done(bucket)

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words have arrived."""
        self._words.append(words)
