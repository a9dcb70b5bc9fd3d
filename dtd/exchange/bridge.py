"""The only interface between the training thread and the event loop.

The training thread submits buckets and words with `call_soon_threadsafe` and sleeps on a condition
variable until the loop reports completion.  No other code in the worker touches the loop from
another thread.  `RingCollective` is the daemons' `Collective`; its counterpart on the loop is
`dtd.exchange.tcp_ring`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dtd.errors import DtdError, RingBroken
from dtd.exchange.api import BucketMemory, CommTiming
from dtd.exchange.ring.neighbours import RingLoss
from dtd.exchange.submitted import SubmittedBuckets
from dtd.exchange.tcp_ring import RingEndpoint
from dtd.net.blocking_link import connect_tcp
from dtd.net.data_server import DataServer
from dtd.net.link import Traffic
from dtd.net.liveness import Lifeline
from dtd.net.tls import tls_connect
from dtd.observe.profile.spans import NS, WAIT, RingSpans, SpanLog
from dtd.security.identity import WORKER
from dtd.wire import messages as m


class Bridge:
    """Posts calls from the training thread onto the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule this call on the loop; it is dropped if the loop has closed."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def posting(self, function: Callable[..., object], *first: object) -> Callable[..., None]:
        """Return a function that other threads can call to run `function` on the loop."""

        def post(*arguments: object) -> None:
            self.post(function, *first, *arguments)

        return post


class RingCollective:
    """One generation's ring as the training thread sees it; see `dtd.exchange.api`.

    It is created on the event loop, which calls `connect`, `end`, `explain` and `traffic` and reads
    `waiting_since`; everything else is called by the training thread.

    Args:
        bridge: posts calls onto the event loop.
        assign: the generation.
        server: the worker's data port.
        chunk_bytes: most payload bytes in one frame.
        beat_interval_s: interval of the heartbeats to all neighbours.
        silence_s: how long a neighbour may be silent, or take to connect.
        agreed: called on the training thread once all ranks have agreed on the initial state.
        lifeline: tells the neighbours when this process ends.
        context: TLS for all links, if the job requires it.
        letters: directory private to this user, through which neighbours on this host pass each
            other memory to read; None sends everything over the sockets.

    Attributes:
        suspect: name of the neighbour that was lost; empty while the ring is up, and if this side
            ended it.
        evidence: how it was lost, as in FROZEN.
        connect_data: opens connections for fetching this generation's state.
        why_broken: why the ring is broken, in words; empty while it is up.
        star: the buckets of the generation's star, for
        `dtd.exchange.star_collective.StarCollective`; None
            without servers.
        waiting_since: monotonic time at which the training thread began to wait for the ring; None
            if it is not waiting.
    """

    def __init__(
        self,
        bridge: Bridge,
        assign: m.Assign,
        server: DataServer,
        *,
        chunk_bytes: int,
        beat_interval_s: float,
        silence_s: float,
        agreed: Callable[[], None],
        lifeline: Lifeline | None = None,
        context: ssl.SSLContext | None = None,
        letters: Path | None = None,
    ) -> None:
        self.assign = assign
        self.suspect = ""
        self.evidence = ""
        self.why_broken = ""
        self.waiting_since: float | None = None
        self.connect_data = connect_tcp if context is None else tls_connect(context, WORKER)
        self._bridge = bridge
        self._agreed: Callable[[], None] | None = agreed
        self._changed = threading.Condition()
        self._up = False
        self._when_broken: list[Callable[[], None]] = []
        self._words: deque[list[bytes]] = deque()
        self._exposed_s = 0.0
        self._waits: SpanLog | None = None
        self._endpoint = RingEndpoint(
            assign,
            server,
            chunk_bytes=chunk_bytes,
            beat_interval_s=beat_interval_s,
            silence_s=silence_s,
            listener=self,
            lifeline=lifeline,
            context=context,
            letters=letters,
        )
        desk = (self._changed, self._hand_over, self._wait_for)
        self._buckets = SubmittedBuckets(self._endpoint.node, *desk)
        links = self._endpoint.star
        self.star = None if links is None else SubmittedBuckets(links.node, *desk)

    @property
    def rank(self) -> int:
        """This worker's position in the roster."""
        return self.assign.rank

    @property
    def world_size(self) -> int:
        """Length of the roster."""
        return len(self.assign.roster)

    @property
    def generation(self) -> int:
        """Number of the roster."""
        return self.assign.generation

    # --- training thread ---------------------------------------------------------------------

    def wait_up(self) -> None:
        """Block until all neighbours are connected."""
        self._wait_for(lambda: self._up)

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call this on the event loop when the ring breaks, or now if it is broken already."""
        with self._changed:
            if not self.why_broken:
                self._when_broken.append(callback)
                return
        callback()

    def give_up(self, reason: str) -> None:
        """End the ring from the training thread, so that the neighbours notice immediately."""
        self._bridge.post(self._endpoint.end, reason)

    def broken(self) -> RingBroken:
        """Return the error that says how the ring ended."""
        return RingBroken(self.why_broken, suspect=self.suspect, evidence=self.evidence)

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
        self._hand_over(self._endpoint.node.offer, word)
        self._wait_for(lambda: bool(self._words))
        return self._words.popleft()

    def agreed(self) -> None:
        """Implement `Collective.agreed`."""
        agreed, self._agreed = self._agreed, None
        if agreed is not None:
            agreed()

    def close_step(self) -> CommTiming:
        """End the open step."""
        node = self._endpoint.node
        return CommTiming(
            busy_s=node.busy_s(), exposed_s=self._exposed_s, sent_bytes=node.sent_bytes
        )

    def record(self, waits: SpanLog | None, ring: RingSpans | None) -> None:
        """Implement `Recorded.record`."""
        self._waits = waits
        self._bridge.post(setattr, self._endpoint.node, "spans", ring)
        if (links := self._endpoint.star) is not None:
            self._bridge.post(setattr, links.node, "spans", None if ring is None else ring.star)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Implement `BreakableCollective.waiting`; a nested wait is part of the outer one."""
        before, self.waiting_since = self.waiting_since, self.waiting_since or time.monotonic()
        try:
            yield
        finally:
            self.waiting_since = before

    def check(self) -> None:
        """Raise if the ring is broken."""
        if self.why_broken:
            raise self.broken()

    def _hand_over(self, function: Callable[..., None], *arguments: object) -> None:
        self.check()
        self._bridge.post(self._on_handed_over, function, arguments)

    def _wait_for(self, here: Callable[[], bool]) -> None:
        begun_s = time.monotonic()
        with self.waiting(), self._changed:
            self._changed.wait_for(lambda: here() or bool(self.why_broken))
            arrived = here()
        ended_s = time.monotonic()
        self._exposed_s += ended_s - begun_s
        if self._waits is not None:
            self._waits.add(WAIT, int(begun_s * NS), int(ended_s * NS))
        if not arrived:
            raise self.broken()

    # --- event loop --------------------------------------------------------------------------

    def connect(self) -> None:
        """Start connecting to all neighbours."""
        self._endpoint.connect()

    def end(self, reason: str) -> None:
        """End this rank's part in the generation."""
        self._endpoint.end(reason)

    def traffic(self) -> Traffic:
        """Return the bytes that this ring has sent and received."""
        return self._endpoint.traffic()

    def explain(self) -> str:
        """Return what ring and star are waiting for, in words."""
        return self._endpoint.explain()

    def _on_handed_over(self, function: Callable[..., None], arguments: Sequence[object]) -> None:
        if self.why_broken:
            return
        try:
            function(*arguments)
        except DtdError as error:
            self._endpoint.end(f"{type(error).__name__}: {error}")

    # --- RingListener ------------------------------------------------------------------------

    def ring_up(self) -> None:
        """All links are established."""
        with self._changed:
            self._up = True
            self._changed.notify_all()

    def ring_broken(self, loss: RingLoss) -> None:
        """Wake the training thread, wherever it waits."""
        with self._changed:
            self.suspect, self.evidence = loss.suspect, loss.evidence
            self.why_broken = loss.reason or "the ring has ended"
            callbacks, self._when_broken = self._when_broken, []
            self._changed.notify_all()
        for callback in callbacks:
            callback()

    def bucket_done(self, bucket: int) -> None:
        """A bucket holds the sum and belongs to the training thread again."""
        self._buckets.bucket_done(bucket)

    def star_bucket_done(self, bucket: int) -> None:
        """A bucket of the star belongs to the training thread again."""
        assert self.star is not None
        self.star.bucket_done(bucket)

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words have arrived."""
        with self._changed:
            self._words.append(words)
            self._changed.notify_all()
