"""The one crossing between the training thread and the event loop.

The training thread hands buckets and words over with `call_soon_threadsafe` and sleeps on a
condition until the loop says that they are done.  Nothing else in the worker touches the loop from
another thread.  `RingCollective` is the `Collective` of the daemons; its other half, on the loop,
is `dtd.transport.tcp_ring`.
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

from dtd.core.ring.neighbours import RingLoss
from dtd.errors import DtdError, RingBroken
from dtd.net.blocking_link import connect_tcp
from dtd.net.data_server import DataServer
from dtd.net.lifeline import Lifeline
from dtd.net.tls_connect import tls_connect
from dtd.net.traffic import Traffic
from dtd.security.identity import WORKER
from dtd.transport.api import BucketMemory, CommTiming
from dtd.transport.tcp_ring import RingEndpoint
from dtd.wire import messages as m


class Bridge:
    """Posts calls from the training thread onto the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Run this on the loop soon; dropped when the loop has closed."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def posting(self, function: Callable[..., object], *first: object) -> Callable[..., None]:
        """A function for other threads that runs `function` on the loop."""

        def post(*arguments: object) -> None:
            self.post(function, *first, *arguments)

        return post


class RingCollective:
    """One generation's ring as the training thread sees it; see `dtd.transport.api`.

    Made on the event loop, where `connect`, `end`, `explain`, `traffic` and `waiting_since` belong;
    the rest belongs to the training thread.

    Args:
        bridge: the crossing.
        assign: the generation.
        server: the worker's data port.
        chunk_bytes: most payload bytes in one frame.
        beat_interval_s: how often either neighbour is told that this side lives.
        silence_s: how long a neighbour may be silent, or take to connect.
        agreed: called on the training thread after the generation's first exchange of words.
        lifeline: tells the neighbours when this process ends.
        context: TLS for all links, if the job wants that.
        letters: directory of this user alone, through which neighbours on this host hand each other
            memory to read; None: everything is sent.

    Attributes:
        suspect: whom the ring lost; empty while it stands, and when this side ended it.
        evidence: how, as in FROZEN.
        connect_data: makes connections for fetching this generation's state.
        why_broken: why it is broken, in words; empty while it stands.
        waiting_since: the monotonic time since which the training thread waits for the ring.
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
        self._done: set[int] = set()
        self._words: deque[list[bytes]] = deque()
        self._exposed_s = 0.0
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
        """Block until both neighbours are connected."""
        self._wait_for(lambda: self._up)

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Have this called on the event loop when the ring breaks, or now if it is broken."""
        with self._changed:
            if not self.why_broken:
                self._when_broken.append(callback)
                return
        callback()

    def give_up(self, reason: str) -> None:
        """End the ring from the training thread, so that the neighbours need not wait for it."""
        self._bridge.post(self._endpoint.end, reason)

    def broken(self) -> RingBroken:
        """The error that says how the ring has ended."""
        return RingBroken(self.why_broken, suspect=self.suspect, evidence=self.evidence)

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step; see `ExtendableCollective.open_step`."""
        with self._changed:
            self._done.clear()
            self._exposed_s = 0.0
        self._hand_over(self._endpoint.node.open_step, step, tuple(buckets), may_add)

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Give the open step more buckets; see `ExtendableCollective.add`."""
        self._hand_over(self._endpoint.node.add, tuple(buckets))

    def start(self, bucket: int) -> None:
        """Hand a full bucket over; see `Collective.start`."""
        self._hand_over(self._endpoint.node.start, bucket)

    def wait(self, bucket: int) -> None:
        """Block until the bucket is averaged; see `Collective.wait`."""
        self._wait_for(lambda: bucket in self._done)

    def gather(self, word: bytes) -> list[bytes]:
        """Exchange small words; see `Collective.gather`."""
        words = self.exchange(word)
        agreed, self._agreed = self._agreed, None
        if agreed is not None:
            agreed()
        return words

    def exchange(self, word: bytes) -> list[bytes]:
        """Exchange small words of another transport's; see `BreakableCollective.exchange`."""
        self._hand_over(self._endpoint.node.offer, word)
        self._wait_for(lambda: bool(self._words))
        return self._words.popleft()

    def close_step(self) -> CommTiming:
        """End the open step; see `Collective.close_step`."""
        node = self._endpoint.node
        return CommTiming(
            busy_s=node.busy_s(), exposed_s=self._exposed_s, sent_bytes=node.sent_bytes
        )

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile the training thread waits for others, and is not to blame if that is long."""
        self.waiting_since = time.monotonic()
        try:
            yield
        finally:
            self.waiting_since = None

    def check(self) -> None:
        """Raise if the ring is broken; see `Collective.check`."""
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
        self._exposed_s += time.monotonic() - begun_s
        if not arrived:
            raise self.broken()

    # --- event loop --------------------------------------------------------------------------

    def connect(self) -> None:
        """Begin to connect to both neighbours."""
        self._endpoint.connect()

    def end(self, reason: str) -> None:
        """Take no further part in this generation."""
        self._endpoint.end(reason)

    def traffic(self) -> Traffic:
        """What this ring has sent and received."""
        return self._endpoint.traffic()

    def explain(self) -> str:
        """What the ring waits for, in words."""
        return self._endpoint.node.core.explain()

    def _on_handed_over(self, function: Callable[..., None], arguments: Sequence[object]) -> None:
        if self.why_broken:
            return
        try:
            function(*arguments)
        except DtdError as error:
            self._endpoint.end(f"{type(error).__name__}: {error}")

    # --- RingListener ------------------------------------------------------------------------

    def ring_up(self) -> None:
        """Both links stand."""
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
        """A bucket holds the sum and is the training thread's again."""
        with self._changed:
            self._done.add(bucket)
            self._changed.notify_all()

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words are here."""
        with self._changed:
            self._words.append(words)
            self._changed.notify_all()
