"""Signs of life between the members of a generation: heartbeats, and connections that end first.

*Heartbeats.* A rank may compute for any length of time, so chunks and small gathers do not prove
that it is alive; heartbeats do, sent from its event loop where nothing else was sent for an
interval. A complete frame from a neighbour is a sign of life, and so is enough of a long frame; a
trickle that completes nothing is not. A neighbour that has not connected yet is watched in the same
way. Most links of a ring bring frames one way only, and then heartbeats too: so 64 ranks of 12
links each are not busy with the proof that they live. What follows from silence is not decided
here.

*Lifeline.* When a process is killed the kernel first frees its memory and only then closes its
sockets. With torch in memory that takes 50 ms, on a busy machine three times as long, with a GPU
longer still; during that time no peer notices. A thread with its own table of file descriptors ends
earlier: its sockets are closed as soon as it ends, a few milliseconds after the kill. So one thread
does nothing but hold an idle connection to each ring neighbour. It is only a hint: a ring without
lifelines works as well, and notices a death when its links are reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import math
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dtd.address import Address
from dtd.cluster.workers.detector import Detector
from dtd.errors import DtdError
from dtd.exchange.schedule.neighbours import Neighbour
from dtd.net.clients.blocking_link import BlockingLink, Connect, connect_tcp
from dtd.net.clients.tls import tls_connect
from dtd.net.link import Link
from dtd.security.identity import WORKER
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

PIECE_BYTES: Final = 4096
"""This many bytes of an incomplete frame count as a sign of life; a heartbeat is far shorter."""

LOOKS_PER_SILENCE: Final = 12


@dataclass(slots=True)
class _Watched:
    """The traffic counted as a sign of life, and the times of the last byte in either direction."""

    link: Link
    sent_bytes: int = 0
    sent_s: float = -math.inf
    frames: int = 0
    bytes: int = 0
    seen_bytes: int = 0
    seen_s: float = 0.0

    def is_heard(self, now: float) -> bool:
        """Whether there is a new sign of life; a link that is not read is never silent."""
        frames, received = self.link.received_frames, self.link.received_bytes
        if received != self.seen_bytes:
            self.seen_bytes, self.seen_s = received, now
        if not self.link.held and frames == self.frames and received - self.bytes < PIECE_BYTES:
            return False
        self.frames, self.bytes = frames, received
        return True


class LinkHeartbeats:
    """Heartbeats and silence of one generation's links, on the event loop.

    Args:
        beat_interval_s: longest time between two frames on a link.
        silence_s: how long a neighbour may be silent, or take to connect.
        silent: called with a neighbour and the time, when that limit is exceeded.
    """

    def __init__(
        self,
        *,
        generation: int,
        beat_interval_s: float,
        silence_s: float,
        silent: Callable[[Neighbour, float], None],
        neighbours: Sequence[Neighbour],
    ) -> None:
        self._beat = m.LinkHeartbeat(generation=generation)
        self._beat_interval_s = beat_interval_s
        self._tick_s = min(beat_interval_s, silence_s / LOOKS_PER_SILENCE)
        self._detector = Detector(timeout_s=silence_s, tick_s=self._tick_s)
        self._silent = silent
        self._neighbours = {str(one): one for one in neighbours}
        self._links: dict[Neighbour, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch all neighbours from now on."""
        now = asyncio.get_running_loop().time()
        self.watch(now)
        self._again()

    def watch(self, now: float) -> None:
        """Start counting silence of all neighbours now."""
        for name in self._neighbours:
            self._detector.watch(name, now)

    def attach(self, neighbour: Neighbour, link: Link) -> None:
        self._links[neighbour] = _Watched(link)
        if neighbour.opens and not neighbour.beats:
            self._detector.forget(str(neighbour))

    def trickles(self, neighbour: Neighbour, now: float) -> bool:
        """Whether bytes still arrive from this neighbour without completing a frame."""
        heard = self._links.get(neighbour)
        return heard is not None and now - heard.seen_s < self._detector.timeout_s / 2

    def silence_s(self, neighbour: Neighbour, now: float) -> float:
        return self._detector.silence_s(str(neighbour), now)

    def end(self) -> None:
        for name in self._neighbours:
            self._detector.forget(name)
        self._links.clear()
        if self._timer is not None:
            self._timer.cancel()

    def look(self, now: float) -> None:
        """Send due heartbeats, and report the first neighbour that is silent for too long."""
        for neighbour, watched in self._links.items():
            if watched.is_heard(now):
                self._detector.heard(str(neighbour), now)
            if neighbour.opens or neighbour.beats:
                self._beat_if_due(watched, now)
        for name, _ in self._detector.suspects(now)[:1]:
            self._silent(self._neighbours[name], now)

    def _beat_if_due(self, watched: _Watched, now: float) -> None:
        """Send a heartbeat where nothing was sent for an interval, and no queue would delay it."""
        if watched.link.sent_bytes != watched.sent_bytes:
            watched.sent_bytes, watched.sent_s = watched.link.sent_bytes, now
        elif (
            now >= watched.sent_s + self._beat_interval_s - self._tick_s / 2
            and not watched.link.queued_bytes()
        ):
            watched.sent_s = now
            watched.link.send(self._beat)

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._again()
        self.look(asyncio.get_running_loop().time())


_SYS_CLOSE_RANGE: Final = 436  # same number on all architectures; Linux 5.9
_CLOSE_RANGE_UNSHARE: Final = 2
_FIRST_PRIVATE: Final = 3
_ALL: Final = 0xFFFFFFFF
_FIRST_NUMBER: Final = 600
"""Numbers of this thread's descriptors: far from those of the process, to avoid confusion."""


class Lifeline(threading.Thread):
    """Holds connections that end with the process.  One instance per process."""

    def __init__(self) -> None:
        super().__init__(name="lifeline", daemon=True)
        self._orders: queue.SimpleQueue[Callable[[], list[BlockingLink]]] = queue.SimpleQueue()
        self._held: list[BlockingLink] = []

    def hold(
        self,
        targets: Sequence[Address],
        *,
        name: str,
        entry: DataCredential,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to `targets` as `name`; earlier connections are closed."""
        connect: Connect = _connect_far
        if context is not None:
            connect = tls_connect(context, WORKER, under=_connect_far)

        def greet_all() -> list[BlockingLink]:
            made = []
            for target in targets:
                with contextlib.suppress(OSError, DtdError):
                    made.append(
                        BlockingLink(
                            target,
                            role=m.Role.LIFELINE,
                            name=name,
                            timeout_s=timeout_s,
                            entry=entry,
                            connect=connect,
                        )
                    )
            return made

        self._orders.put(greet_all)

    def run(self) -> None:
        """Follow orders until the process ends."""
        if not _own_descriptors():
            return
        while True:
            greet_all = self._orders.get()
            collects = gc.isenabled()
            # A garbage collection in this thread could close other threads' descriptors, by number.
            gc.disable()
            try:
                for link in self._held:
                    link.close()
                self._held = greet_all()
            finally:
                if collects:
                    gc.enable()


def _connect_far(target: Address, timeout_s: float) -> socket.socket:
    with connect_tcp(target, timeout_s) as made:
        number = fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_NUMBER)
    link = socket.socket(fileno=number)
    link.settimeout(timeout_s)
    return link


def _own_descriptors() -> bool:
    """Give this thread its own descriptor table, empty except for the standard streams."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(_SYS_CLOSE_RANGE),
        ctypes.c_uint(_FIRST_PRIVATE),
        ctypes.c_uint(_ALL),
        ctypes.c_uint(_CLOSE_RANGE_UNSHARE),
    )
    return int(result) == 0
