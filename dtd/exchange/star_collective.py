"""Halves of sums through parameter servers; everything else on the ring.

A generation whose roster names servers has a star besides its ring.  The ring keeps its role: it
carries words, votes, sums and whatever has bounds or hops of its own, and its neighbours detect
that a member is gone.  Reduce-scatters and all-gathers of whole buckets
(`dtd.exchange.star.machine.goes_by_star`) use the links with the servers.  Ring and star are up
together, and end together.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from dtd.exchange.api import BreakableCollective, BucketMemory, CommTiming, Recorded
from dtd.exchange.ring.busy import BusyTime
from dtd.exchange.star.machine import goes_by_star
from dtd.observe.profile.spans import RingSpans, SpanLog


class StarPort(Protocol):
    """One rank's end of a star, whose buckets are numbered apart from those of the ring.

    The methods are those of `ExtendableCollective`; all raise `RingBroken` when the ring is broken.
    """

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Open a step of the star."""
        ...

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step."""
        ...

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Start a bucket; `done` is called once its result is here."""
        ...

    def wait(self, bucket: int) -> None:
        """Block until a bucket is done."""
        ...

    def sent_bytes(self) -> int:
        """Bytes of elements that this rank has sent in the open step, over all links."""
        ...


class StarCollective:
    """One generation's collective: whole halves use the star, everything else the ring.

    Called from the training thread; `start` from any.  See `dtd.exchange.api.Collective`.  After a
    reduce-scatter a trainer holds nothing of the sum, and a server what
    `dtd.engine.shards.Division` says; a server contributes nothing to it, but starts the
    bucket like any other rank: its memory is free to be written to.

    Args:
        ring: the generation's ring.
        star: this rank's end of the same generation's star.
    """

    def __init__(self, ring: BreakableCollective, star: StarPort) -> None:
        self._ring = ring
        self._star = star
        self._routes: list[tuple[BreakableCollective | StarPort, int]] = []
        self._counts = {True: 0, False: 0}
        self._timing = threading.Lock()
        self._in_flight: set[int] = set()
        self._busy = BusyTime()
        self._exposed_s = 0.0

    @property
    def rank(self) -> int:
        """This worker's position in the roster."""
        return self._ring.rank

    @property
    def world_size(self) -> int:
        """Length of the roster."""
        return self._ring.world_size

    @property
    def generation(self) -> int:
        """Number of the roster."""
        return self._ring.generation

    def check(self) -> None:
        """Raise if the generation is over."""
        self._ring.check()

    # --- a step ------------------------------------------------------------------------------

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step."""
        with self._timing:
            self._in_flight, self._busy, self._exposed_s = set(), BusyTime(), 0.0
        self._routes, self._counts = [], {True: 0, False: 0}
        by_star, by_ring = self._lay_out(buckets)
        self._ring.open_step(step, by_ring, may_add)
        self._star.open_step(step, by_star, may_add)

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step."""
        by_star, by_ring = self._lay_out(buckets)
        self._ring.add(by_ring)
        self._star.add(by_star)

    def _lay_out(
        self, buckets: Sequence[BucketMemory]
    ) -> tuple[list[BucketMemory], list[BucketMemory]]:
        """Number further buckets on their routes; return those of the star and of the ring.

        This depends on their shapes alone, which are equal on all ranks.
        """
        parts: dict[bool, list[BucketMemory]] = {True: [], False: []}
        for bucket in buckets:
            by_star = goes_by_star(bucket.shape)
            route = self._star if by_star else self._ring
            self._routes.append((route, self._counts[by_star]))
            self._counts[by_star] += 1
            parts[by_star].append(bucket)
        return parts[True], parts[False]

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Submit a full bucket; those of each route are exchanged in index order."""
        with self._timing:
            self._in_flight.add(bucket)
            self._busy.begin(time.monotonic())
        route, index = self._routes[bucket]
        route.start(index, partial(self._on_done, bucket, done))

    def _on_done(self, bucket: int, done: Callable[[], None] | None) -> None:
        """Called on a thread of the transport."""
        self._landed(bucket)
        if done is not None:
            done()

    def _landed(self, bucket: int) -> None:
        """Note that a bucket is not in flight any more; repetitions are ignored."""
        with self._timing:
            if bucket in self._in_flight:
                self._in_flight.remove(bucket)
                self._busy.end(time.monotonic())

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds its result."""
        route, index = self._routes[bucket]
        with self._exposed():
            route.wait(index)
        self._landed(bucket)

    def gather(self, word: bytes) -> list[bytes]:
        """Exchange small words on the ring."""
        with self._exposed(), self._occupied():
            return self._ring.gather(word)

    def agreed(self) -> None:
        """Implement `Collective.agreed`."""
        self._ring.agreed()

    def close_step(self) -> CommTiming:
        """End the open step."""
        timing = self._ring.close_step()
        with self._timing:
            return CommTiming(
                busy_s=self._busy.busy_s,
                exposed_s=self._exposed_s,
                sent_bytes=timing.sent_bytes + self._star.sent_bytes(),
            )

    @contextlib.contextmanager
    def _exposed(self) -> Iterator[None]:
        """The training thread is blocked."""
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._exposed_s += time.monotonic() - begun_s

    @contextlib.contextmanager
    def _occupied(self) -> Iterator[None]:
        """A word is in flight."""
        with self._timing:
            self._busy.begin(time.monotonic())
        yield
        with self._timing:
            self._busy.end(time.monotonic())

    # --- the ring below ------------------------------------------------------------------------

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call this when the ring breaks."""
        self._ring.on_broken(callback)

    def give_up(self, reason: str) -> None:
        """End ring and star."""
        self._ring.give_up(reason)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Implement `BreakableCollective.waiting`."""
        return self._ring.waiting()

    def record(self, waits: SpanLog | None, ring: RingSpans | None) -> None:
        """Record the ring, which carries words and whose node records the star."""
        if isinstance(self._ring, Recorded):
            self._ring.record(waits, ring)
