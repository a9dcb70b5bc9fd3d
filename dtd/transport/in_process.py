"""The whole ring in one process: N ranks, N threads, no sockets.

For tests and for reading: the same machine (`dtd.core.ring.machine`) and the same node
(`dtd.transport.ring_node`) as over TCP, with a queue where the network would be.  Every call moves
all messages that can move, under one lock, and then waits for its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dtd.core.ring.machine import Ring
from dtd.errors import ProtocolError, RingBroken
from dtd.transport.api import BucketMemory, CommTiming
from dtd.transport.ring_node import SCRATCH_SLOTS, RingNode
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, Word

Parcel = tuple[Chunk | Word, bytes]


class InProcessRing:
    """A ring of `world_size` ranks within this process.

    Args:
        world_size: number of ranks; give each its own thread.
        generation: number of the roster.
        first_step: the first step that will be opened.
        chunk_bytes: most payload bytes in one frame.
        timeout_s: how long a rank waits for the others before it breaks the ring.
    """

    def __init__(
        self,
        world_size: int,
        *,
        generation: int = 1,
        first_step: int = 0,
        chunk_bytes: int = 64 * 1024,
        timeout_s: float = 60.0,
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

    def collective(self, rank: int) -> InProcessCollective:
        """One rank's end of the ring."""
        return self._ranks[rank]

    def break_ring(self, why: str) -> None:
        """End the generation: everyone who waits or calls from now on gets RingBroken."""
        with self.changed:
            self.broken = self.broken or why
            callbacks, self._when_broken = self._when_broken, []
            self.changed.notify_all()
        for callback in callbacks:
            callback()

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Have this called when the ring breaks, or now if it is broken."""
        with self.changed:
            if not self.broken:
                self._when_broken.append(callback)
                return
        callback()

    def _enqueue(self, to_rank: int, message: Chunk | Word, payload: bytes | memoryview) -> None:
        # A copy, as the kernel would take one: the sender's memory is its own again at once.
        self._queues[to_rank].append((message, bytes(payload)))

    def move(self) -> None:
        """Deliver until nothing moves; called with the lock held."""
        moved = True
        try:
            while moved:
                moved = False
                for rank, queue in enumerate(self._queues):
                    while queue and self._deliver(self._ranks[rank].node, *queue[0]):
                        queue.popleft()
                        moved = True
        except ProtocolError as error:
            self.break_ring(str(error))
        self.changed.notify_all()

    def _deliver(self, node: RingNode, message: Chunk | Word, payload: bytes) -> bool:
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
        send: Callable[[Chunk | Word, bytes | memoryview], None],
    ) -> None:
        self.node = RingNode(core, self)
        self._send = send
        self._ring = ring
        self._done: set[int] = set()
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
        """Raise if the ring is broken; see `Collective.check`."""
        self._check_ring()

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step; see `ExtendableCollective.open_step`."""
        with self._ring.changed:
            self._check_ring()
            self._done.clear()
            self._exposed_s = 0.0
            self.node.open_step(step, buckets, may_add)
            self._ring.move()

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Give the open step more buckets; see `ExtendableCollective.add`."""
        with self._ring.changed:
            self._check_ring()
            self.node.add(buckets)
            self._ring.move()

    def start(self, bucket: int) -> None:
        """Hand a full bucket over; see `Collective.start`."""
        with self._ring.changed:
            self._check_ring()
            self.node.start(bucket)
            self._ring.move()

    def wait(self, bucket: int) -> None:
        """Block until the bucket is averaged; see `Collective.wait`."""
        with self._ring.changed:
            self._check_ring()
            self._wait_for(lambda: bucket in self._done)

    def gather(self, word: bytes) -> list[bytes]:
        """Exchange small words; see `Collective.gather`."""
        with self._ring.changed:
            self._check_ring()
            self.node.offer(word)
            self._ring.move()
            self._wait_for(lambda: bool(self._words))
            return self._words.popleft()

    def exchange(self, word: bytes) -> list[bytes]:
        """Exchange another transport's words; see `BreakableCollective.exchange`."""
        return self.gather(word)

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Have this called when the ring breaks; see `BreakableCollective.on_broken`."""
        self._ring.on_broken(callback)

    def give_up(self, reason: str) -> None:
        """End the ring."""
        self._ring.break_ring(f"rank {self.rank} gave up: {reason}")

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Nobody asks who waits here."""
        return contextlib.nullcontext()

    def close_step(self) -> CommTiming:
        """End the open step; see `Collective.close_step`."""
        return CommTiming(
            busy_s=self.node.busy_s(),
            exposed_s=self._exposed_s,
            sent_bytes=self.node.sent_bytes,
        )

    def _check_ring(self) -> None:
        if self._ring.broken:
            raise RingBroken(f"rank {self.rank}: {self._ring.broken}")

    def _wait_for(self, here: Callable[[], bool]) -> None:
        begun_s = time.monotonic()
        arrived = self._ring.changed.wait_for(
            lambda: here() or bool(self._ring.broken), self._ring.timeout_s
        )
        self._exposed_s += time.monotonic() - begun_s
        if not arrived:
            self._ring.break_ring(f"rank {self.rank} timed out: {self.node.core.explain()}")
        if not here():
            self._check_ring()

    # --- NodeHandler -------------------------------------------------------------------------

    def send(self, message: Chunk | Word, payload: bytes | memoryview) -> None:
        """To the next rank's queue."""
        self._send(message, payload)

    def resume(self) -> None:
        """A held parcel stays in its queue and is offered again by itself."""

    def bucket_done(self, bucket: int) -> None:
        """The bucket holds the sum."""
        self._done.add(bucket)

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words are here."""
        self._words.append(words)
