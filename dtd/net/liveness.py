"""Signs of life between the members of a generation: heartbeats, and connections that end first.

*Heartbeats.* A rank may compute for any length of time, so chunks and small gathers do not prove
that it is alive; heartbeats do, sent from its event loop in both directions of each link. A
complete frame from a neighbour is a sign of life, and so is enough of a long frame; a trickle that
completes nothing is not. A neighbour that has not connected yet is watched in the same way. What
follows from silence is not decided here.

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
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dtd.address import Address
from dtd.cluster.detector import Detector
from dtd.errors import DtdError
from dtd.exchange.schedule.neighbours import NEXT, PREVIOUS
from dtd.net.blocking_link import BlockingLink, Connect, connect_tcp
from dtd.net.link import Link
from dtd.net.tls import tls_connect
from dtd.security.identity import WORKER
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

PIECE_BYTES: Final = 4096
"""This many bytes of an incomplete frame count as a sign of life; a heartbeat is far shorter."""

LOOKS_PER_SILENCE: Final = 12


@dataclass(slots=True)
class _Heard:
    """The traffic counted as a sign of life, and the time of the last byte."""

    link: Link
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
        generation: carried by every heartbeat.
        beat_interval_s: interval of heartbeats on each link.
        silence_s: how long a neighbour may be silent, or take to connect.
        silent: called with a neighbour and the time, when that limit is exceeded.
        neighbours: those to watch; those of a ring, unless there are others
            (`dtd.exchange.schedule.neighbours.Neighbours.all`).
    """

    def __init__(
        self,
        *,
        generation: int,
        beat_interval_s: float,
        silence_s: float,
        silent: Callable[[str, float], None],
        neighbours: Sequence[str] = (NEXT, PREVIOUS),
    ) -> None:
        self._beat = m.LinkHeartbeat(generation=generation)
        self._beat_interval_s = beat_interval_s
        self._tick_s = min(beat_interval_s, silence_s / LOOKS_PER_SILENCE)
        self._detector = Detector(timeout_s=silence_s, tick_s=self._tick_s)
        self._silent = silent
        self._neighbours = neighbours
        self._links: dict[str, _Heard] = {}
        self._next_beat_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch all neighbours from now on."""
        now = asyncio.get_running_loop().time()
        self.watch(now)
        self._again()

    def watch(self, now: float) -> None:
        """Start counting silence of all neighbours now."""
        for neighbour in self._neighbours:
            self._detector.watch(neighbour, now)

    def attach(self, neighbour: str, link: Link) -> None:
        """This neighbour's link is open."""
        self._links[neighbour] = _Heard(link)

    def trickles(self, neighbour: str, now: float) -> bool:
        """Whether bytes still arrive from this neighbour without completing a frame."""
        heard = self._links.get(neighbour)
        return heard is not None and now - heard.seen_s < self._detector.timeout_s / 2

    def silence_s(self, neighbour: str, now: float) -> float:
        """Return how long this neighbour has been silent."""
        return self._detector.silence_s(neighbour, now)

    def end(self) -> None:
        """Stop sending and watching."""
        for neighbour in self._neighbours:
            self._detector.forget(neighbour)
        self._links.clear()
        if self._timer is not None:
            self._timer.cancel()

    def look(self, now: float) -> None:
        """Send due heartbeats, and report the first neighbour that is silent for too long."""
        for neighbour, heard in self._links.items():
            if heard.is_heard(now):
                self._detector.heard(neighbour, now)
        if now >= self._next_beat_s - self._tick_s / 2:
            self._next_beat_s = now + self._beat_interval_s
            self._send_beats()
        for neighbour, _ in self._detector.suspects(now)[:1]:
            self._silent(neighbour, now)

    def _send_beats(self) -> None:
        """Send heartbeats, except where queued bytes would delay them anyway."""
        for heard in self._links.values():
            if not heard.link.queued_bytes():
                heard.link.send(self._beat)

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
