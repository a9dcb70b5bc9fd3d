"""Does a training thread get on?  Its own marks say so; every heartbeat carries the answer.

A thread that neither waits for the ring nor makes a mark is in somebody's code.  Long steps are
normal life, so it is stuck only when nothing moves there either (`dtd.core.observe.motion`): for as
long as the job allows (`elastic.stall_timeout_s`), or for ten times the longest such silence so
far, if that is longer.  What is done for the first time may open or build things: it has the limit
of a warm-up (`elastic.warmup_timeout_s`).  A batch of another shape, as after a change of members,
is such a first time only where something makes code for shapes.  Where something moves the limit is
a long one (`elastic.busy_timeout_s`), for a loop that never ends computes, too.

While the whole process stands still, because somebody stopped it or the machine slept, its event
loop does too: that time is no pause of the thread's.  Pure; times are seconds of any monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from dtd.core.observe.detector import PauseDetector
from dtd.core.observe.motion import Evidence, computes, motion

PATIENCE_SILENCES: Final = 10.0
LOOK_AFTER_S: Final = 0.5
"""A pause this long is worth a look at what moves."""

TELL_AFTER_S: Final = 1.0
"""A pause this long is worth a word."""

MOST_KINDS: Final = 64
"""Of work; where more shapes than these occur, a new one is nothing special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a training thread stands; the fields of a heartbeat.

    Attributes:
        stalled_s: since it last made progress; 0 while it waits for the ring.
        still_s: since anything has moved there, `stalled_s` at most.
        patience_s: beyond this `stalled_s` means that it is stuck.
        evidence: what moves, and which setting is its limit; empty during short pauses.
    """

    stalled_s: float = 0.0
    still_s: float = 0.0
    patience_s: float = 0.0
    evidence: str = ""


@dataclass(slots=True)
class ProgressWatch:
    """Marks of one training thread, and what was seen between them.

    In a worker `look`, `is_enough`, `saw` and `verdict` are called on the event loop, the rest by
    the training thread itself; each field is written by one of them, and at once.

    Attributes:
        first_patience_s: what may pass in silence in whatever is done for the first time.
        least_patience_s: what may pass in silence at any time.
        busy_patience_s: what may pass without a mark while something moves.
    """

    first_patience_s: float
    least_patience_s: float
    busy_patience_s: float
    training: bool = False
    stepped: bool = False
    is_new: bool = False
    marked_at: float = 0.0
    longest_silence_s: float = 0.0
    _work: Hashable = None
    _known: set[Hashable] = field(default_factory=set)
    _clock: PauseDetector = field(default_factory=PauseDetector)
    _seen: Evidence | None = None
    _seen_since: float = 0.0
    _moved_at: float = 0.0
    _moves: str = ""
    _longest_between_s: float = 0.0

    # --- the training thread -------------------------------------------------------------------

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
        seen = self._seen_in_this_pause()
        if seen is not None and seen.at_s > self._moved_at:
            silent_s = min(now, self._clock.ran_until) - max(self._seen_since, self._moved_at)
            self.longest_silence_s = max(self.longest_silence_s, silent_s)
        self.marked_at = now

    def begins(self, kind: str, shape: Hashable = None, *, specialises: bool) -> None:
        """Work of a kind begins.

        Args:
            kind: of work.
            shape: of the batch that it is done with, if it is.
            specialises: something here makes code for the shapes that it meets.  It may wait for
                another process that makes the same, and nothing moves meanwhile.  Then work on
                another shape is new, and so is what follows upon it: code that was made for the
                batch before may not fit the usual one.
        """
        before, self._work = self._work, (kind, shape)
        work = (before, self._work) if specialises else kind
        self.is_new = work not in self._known and len(self._known) < MOST_KINDS
        if self.is_new:
            self._known.add(work)

    def committed(self) -> None:
        """The thread has committed a step."""
        self.stepped = True

    # --- the event loop ------------------------------------------------------------------------

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
            self._moved_at = min(now, self._moved_at + stood_still_s)
        return max(0.0, now - self.marked_at) if self.training else 0.0

    def is_enough(self, glance: Evidence) -> bool:
        """Whether a glance will do: it is the first of a pause, or shows that something moves."""
        seen = self._seen_in_this_pause()
        return seen is None or computes(seen, glance)

    def saw(self, evidence: Evidence) -> None:
        """What moves in a pause of `LOOK_AFTER_S` or more."""
        before = self._seen_in_this_pause()
        if before is None:
            self._seen_since = evidence.at_s
        moves = motion(before, evidence)
        if moves:
            quiet_since = max(self._seen_since, self._moved_at)
            silent_s = (before.at_s if before is not None else quiet_since) - quiet_since
            self._longest_between_s = max(self._longest_between_s, silent_s)
            self._moved_at, self._moves = evidence.at_s, moves
        self._seen = evidence

    def verdict(self, now: float, stalled_s: float) -> Verdict:
        """How the thread stands, `stalled_s` after its last mark."""
        still_s = min(stalled_s, max(0.0, now - max(self.marked_at, self._moved_at)))
        allowed_s, setting = self._limit()
        busy_s = max(self.busy_patience_s, allowed_s)
        return Verdict(
            stalled_s=stalled_s,
            still_s=still_s,
            patience_s=min(stalled_s - still_s + allowed_s, busy_s),
            evidence=self._words(stalled_s, still_s, f"{setting} allows {allowed_s:.3g} s", busy_s),
        )

    def _seen_in_this_pause(self) -> Evidence | None:
        return self._seen if self._seen is not None and self._seen.at_s > self.marked_at else None

    def _limit(self) -> tuple[float, str]:
        """How long nothing may move, and the setting behind that."""
        if self.is_new or not self.stepped:
            first_s = max(self.first_patience_s, self.least_patience_s)
            return first_s, "elastic.warmup_timeout_s"
        longest_s = max(self.longest_silence_s, self._longest_between_s)
        learned_s = min(PATIENCE_SILENCES * longest_s, max(self.first_patience_s, 2 * longest_s))
        return max(self.least_patience_s, learned_s), "elastic.stall_timeout_s"

    def _words(self, stalled_s: float, still_s: float, allowed: str, busy_s: float) -> str:
        if stalled_s < TELL_AFTER_S:
            return ""
        if still_s >= TELL_AFTER_S:
            return f"nothing has moved for {still_s:.1f} s; {allowed}"
        return f"{self._moves}; elastic.busy_timeout_s allows {busy_s:.6g} s"
