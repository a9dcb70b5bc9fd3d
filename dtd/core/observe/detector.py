"""Failure detector: who has been silent for too long, unless this process itself was paused."""

from __future__ import annotations

import math
from typing import Final

# --- failure detector: who has been silent for too long ----------------------------------------
#
# Silence counts only while our own clock ran: when nothing was handled for longer than a tick, this
# process was stopped or starved itself (`dtd.core.observe.detector`), and the gap is given back to
# everyone. Pure; times are seconds of any monotonic clock.


class Detector:
    """Last sign of life of every watched worker.

    Args:
        timeout_s: silence after which a worker is suspected.
        tick_s: the detector is looked at least this often; longer gaps are our own.
    """

    def __init__(self, *, timeout_s: float, tick_s: float) -> None:
        self.timeout_s = timeout_s
        self.tick_s = tick_s
        self._heard: dict[str, float] = {}
        self._patience: dict[str, float] = {}
        self._clock = PauseDetector()

    def watch(self, name: str, now: float, *, timeout_s: float | None = None) -> None:
        """Begin or go on watching; a longer `timeout_s` is for those who warm up."""
        self._heard[name] = now
        self._patience[name] = self.timeout_s if timeout_s is None else timeout_s

    def heard(self, name: str, now: float) -> None:
        """A sign of life."""
        if name in self._heard:
            self._heard[name] = now

    def forget(self, name: str) -> None:
        """Stop watching."""
        self._heard.pop(name, None)
        self._patience.pop(name, None)

    def silence_s(self, name: str, now: float) -> float:
        """Seconds since the last sign of life; 0 for whom we do not watch."""
        return max(0.0, now - self._heard.get(name, now))

    def awake(self, now: float) -> float:
        """This process runs; returns for how long it did not, which counts for nobody's silence."""
        gap = self._clock.look(now, tick_s=self.tick_s)
        if gap:
            self._heard = {name: min(now, heard + gap) for name, heard in self._heard.items()}
        return gap

    def suspects(self, now: float) -> list[tuple[str, str]]:
        """(name, reason) of everyone silent for longer than his time-out, in name order."""
        self.awake(now)
        return [
            (name, f"no heartbeat for {now - heard:.1f} s (limit {self._patience[name]:g} s)")
            for name, heard in sorted(self._heard.items())
            if now - heard > self._patience[name]
        ]

    def next_deadline(self, now: float) -> float | None:
        """When to look again."""
        return now + self.tick_s if self._heard else None


# ---
# Whether this process itself ran: only then does the silence of others, or of a thread, count.
#
# A process that somebody stops, or whose machine sleeps, sees a long time pass between two looks
# that should have followed one another.  Pure; times are seconds of any monotonic clock.


LATE_TICKS: Final = 2.0
"""A look that is later than so many ticks comes from a process that stood still."""


class PauseDetector:
    """What is known of one process's own running.

    Attributes:
        ran_until: up to here it ran, as far as the last look tells.
    """

    def __init__(self) -> None:
        self.ran_until = math.inf

    def look(self, now: float, *, tick_s: float) -> float:
        """This process runs, and looks again within `tick_s`.

        Returns:
            For how long it stood still before, in seconds.
        """
        stood_still_s = max(0.0, now - self.ran_until)
        self.ran_until = now + LATE_TICKS * tick_s
        return stood_still_s
