"""Does a training thread get on?  Its own marks say so; every heartbeat carries the answer.

A thread that neither waits for the ring nor makes a mark is stuck in somebody's code.  How long it
may take between two marks is learned: ten times the longest gap so far, at least what the job
allows (`elastic.stall_timeout_s`); and before the first step of the process, which may compile
things, what a warm-up may take (`elastic.warmup_timeout_s`).  While the whole process stands still,
because somebody stopped it or the machine slept, its event loop does too: that time is no gap of
the thread's.

Pure; times are seconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dtd.core.own_clock import OwnClock

PATIENCE_GAPS: Final = 10.0


@dataclass(slots=True)
class ProgressWatch:
    """Marks of one training thread.

    In a worker `look` and `patience_s` are called on the event loop, the rest by the training
    thread itself; a float is written at once.

    Attributes:
        first_patience_s: what may pass before the first committed step.
        least_patience_s: what may pass at any time.
    """

    first_patience_s: float
    least_patience_s: float
    training: bool = False
    stepped: bool = False
    longest_gap_s: float = 0.0
    marked_at: float = 0.0
    _clock: OwnClock = field(default_factory=OwnClock)

    def begin(self, now: float) -> None:
        """The thread takes part in a generation from now on."""
        self.marked_at = now
        self.training = True

    def end(self) -> None:
        """The thread waits for its next generation."""
        self.training = False

    def mark(self, now: float) -> None:
        """The thread got on; outside a generation that says nothing."""
        if not self.training:
            return
        gap_s = min(now, self._clock.ran_until) - self.marked_at
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        self.marked_at = now

    def committed(self) -> None:
        """The thread has committed a step: what it can take is known from here on."""
        if not self.stepped:
            self.longest_gap_s, self.stepped = 0.0, True

    def look(self, now: float, *, tick_s: float, waits: bool) -> float:
        """The process runs, and looks again within `tick_s`.

        Args:
            now: a reading of the clock of the marks.
            tick_s: when the next look follows.
            waits: the thread waits for the ring, and so has others to blame, if any.

        Returns:
            Seconds without a mark; 0 outside a generation.
        """
        stood_still_s = self._clock.look(now, tick_s=tick_s)
        if waits:
            self.marked_at = now
        elif stood_still_s:  # else the mark is left alone: the thread may just be making one
            self.marked_at = min(now, self.marked_at + stood_still_s)
        return max(0.0, now - self.marked_at) if self.training else 0.0

    def patience_s(self) -> float:
        """Seconds without a mark after which the thread counts as stuck."""
        if not self.stepped:
            return self.first_patience_s
        return max(self.least_patience_s, PATIENCE_GAPS * self.longest_gap_s)
