"""The pulse of a ring: beats on both links, and which neighbour has fallen silent.

A rank may compute for as long as it likes, so chunks and words do not prove that it lives; beats
do, sent from its event loop in both directions of both links.  A neighbour is heard when a frame
of his is whole, or when enough of a long one has arrived; a trickle that completes nothing is no
sign of life.  Whoever is not connected yet is watched in the same way.  What follows from silence
is not decided here: the ring endpoint ends the ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dtd.core.observe.detector import Detector
from dtd.core.ring.neighbours import NEXT, PREVIOUS
from dtd.net.link import Link
from dtd.wire import messages as m

PIECE_BYTES: Final = 4096
"""So much of a frame under way counts as a sign of life; a beat is far shorter."""

LOOKS_PER_SILENCE: Final = 12


@dataclass(slots=True)
class _Heard:
    """What of a link has been counted as a sign of life, and when its last byte came."""

    link: Link
    frames: int = 0
    bytes: int = 0
    seen_bytes: int = 0
    seen_s: float = 0.0

    def is_heard(self, now: float) -> bool:
        """Whether something new counts; while we do not read, nobody is silent."""
        frames, received = self.link.received_frames, self.link.received_bytes
        if received != self.seen_bytes:
            self.seen_bytes, self.seen_s = received, now
        if not self.link.held and frames == self.frames and received - self.bytes < PIECE_BYTES:
            return False
        self.frames, self.bytes = frames, received
        return True


class Pulse:
    """Beats and silence of one generation's ring, on the event loop.

    Args:
        generation: carried by every beat.
        beat_interval_s: how often a beat goes out on each link.
        silence_s: how long a neighbour may be silent, or take to connect.
        silent: called with "next" or "previous" and the time, when that has been silent for longer.
    """

    def __init__(
        self,
        *,
        generation: int,
        beat_interval_s: float,
        silence_s: float,
        silent: Callable[[str, float], None],
    ) -> None:
        self._beat = m.Beat(generation=generation)
        self._beat_interval_s = beat_interval_s
        self._tick_s = min(beat_interval_s, silence_s / LOOKS_PER_SILENCE)
        self._detector = Detector(timeout_s=silence_s, tick_s=self._tick_s)
        self._silent = silent
        self._links: dict[str, _Heard] = {}
        self._next_beat_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch both neighbours from now on."""
        now = asyncio.get_running_loop().time()
        self.watch(now)
        self._again()

    def watch(self, now: float) -> None:
        """Neither has been heard yet."""
        self._detector.watch(NEXT, now)
        self._detector.watch(PREVIOUS, now)

    def attach(self, neighbour: str, link: Link) -> None:
        """This neighbour's link is open."""
        self._links[neighbour] = _Heard(link)

    def is_attached(self, neighbour: str) -> bool:
        """Whether this neighbour's link is open."""
        return neighbour in self._links

    def trickles(self, neighbour: str, now: float) -> bool:
        """Whether bytes still come from this neighbour, though they complete nothing."""
        heard = self._links.get(neighbour)
        return heard is not None and now - heard.seen_s < self._detector.timeout_s / 2

    def silence_s(self, neighbour: str, now: float) -> float:
        """For how long this neighbour has been silent."""
        return self._detector.silence_s(neighbour, now)

    def end(self) -> None:
        """Send and watch no more."""
        self._detector.forget(NEXT)
        self._detector.forget(PREVIOUS)
        self._links.clear()
        if self._timer is not None:
            self._timer.cancel()

    def look(self, now: float) -> None:
        """Send what is due, and report the first who is silent for too long."""
        for neighbour, heard in self._links.items():
            if heard.is_heard(now):
                self._detector.heard(neighbour, now)
        if now >= self._next_beat_s - self._tick_s / 2:
            self._next_beat_s = now + self._beat_interval_s
            self._send_beats()
        for neighbour, _ in self._detector.suspects(now)[:1]:
            self._silent(neighbour, now)

    def _send_beats(self) -> None:
        """Where bytes wait to be taken by the kernel, a beat would only wait behind them."""
        for heard in self._links.values():
            if not heard.link.queued_bytes():
                heard.link.send(self._beat)

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._again()
        self.look(asyncio.get_running_loop().time())
