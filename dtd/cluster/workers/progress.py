"""Decides whether a training thread makes progress, from its own marks; every heartbeat reports it.

A thread that neither waits for the ring nor makes a mark is running user code. Long steps are
normal, so it counts as stuck only when nothing moves there either (`motion`): for
as long as the job allows (`elastic.stall_timeout_s`), or for ten times the longest such silence so
far, if that is longer. Work that is done for the first time may open or build things: it has the
limit of a warm-up (`elastic.warmup_timeout_s`). A batch of another shape, as after a change of
members, counts as a first time only where code is generated for shapes. Where something moves the
limit is long (`elastic.busy_timeout_s`), since an infinite loop computes, too.

While the whole process stands still, because it was stopped or the machine slept, its event loop
does too: that time does not count as a pause of the thread. Pure; times are seconds of any
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from dtd.cluster.workers.detector import PauseDetector

PATIENCE_SILENCES: Final = 10.0
LOOK_AFTER_S: Final = 0.5
"""Pause after which activity is examined."""

TELL_AFTER_S: Final = 1.0
"""Pause after which it is reported."""

MOST_KINDS: Final = 64
"""Most shapes of one kind of work; beyond these, a new shape is not treated specially."""


MOVING_SHARE: Final = 0.05
"""Share of one processor; a loop that polls once a millisecond stays below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of a training thread at one moment.

    A glance reads the process's own clock. Only when that shows nothing does the shell read the
    rest from /proc, since this costs system calls.

    Attributes:
        at_s: time of the observation, on the clock of the marks.
        cpu_s: processor time of the process without its event loop.
        children_cpu_s: processor time of all child processes, ended ones too; None after a glance.
        waits_for: what the kernel lets the thread or a child wait for, such as "a disk"; or empty.
    """

    at_s: float
    cpu_s: float
    children_cpu_s: float | None = None
    waits_for: str = ""


def computes(before: Evidence, after: Evidence) -> bool:
    """Whether a glance suffices, because the process itself computes."""
    return _share(before.cpu_s, after.cpu_s, before, after) >= MOVING_SHARE


def motion(before: Evidence | None, after: Evidence) -> str:
    """The activity in words; empty when there is none.

    Args:
        before: an earlier observation of the same pause, if any.
        after: the newest observation.
    """
    if before is not None and computes(before, after):
        share = _share(before.cpu_s, after.cpu_s, before, after)
        return f"it computes ({share:.0%} of a processor)"
    if after.waits_for:
        return f"it waits for {after.waits_for}"
    if before is None or before.children_cpu_s is None or after.children_cpu_s is None:
        return ""
    share = _share(before.children_cpu_s, after.children_cpu_s, before, after)
    moves = share >= MOVING_SHARE
    return f"its child processes compute ({share:.0%} of a processor)" if moves else ""


def _share(then_s: float, now_s: float, before: Evidence, after: Evidence) -> float:
    return (now_s - then_s) / max(after.at_s - before.at_s, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The progress of a training thread; the fields of a heartbeat.

    Attributes:
        stalled_s: time since it last made progress; 0 while it waits for the ring.
        still_s: of that time, how long nothing moved, before and after whatever did.
        patience_s: when `stalled_s` exceeds this, the thread is stuck.
        evidence: the activity, and the setting that is the limit; empty during short pauses.
    """

    stalled_s: float = 0.0
    still_s: float = 0.0
    patience_s: float = 0.0
    evidence: str = ""


@dataclass(slots=True)
class ProgressWatch:
    """The marks of one training thread, and the observations between them.

    In a worker `look`, `is_enough`, `saw` and `verdict` are called on the event loop, the rest by
    the training thread itself; each field is written by one of them, and at once.

    Attributes:
        first_stall_limit_s: longest silence in work that is done for the first time.
        least_stall_limit_s: silence that is always allowed.
        busy_limit_s: longest time without a mark while something moves.
    """

    first_stall_limit_s: float
    least_stall_limit_s: float
    busy_limit_s: float
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
    _moving_s: float = 0.0
    _moving_since: float = 0.0
    _judged_until: float = 0.0
    _moves: str = ""
    _longest_between_s: float = 0.0

    # --- the training thread -------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Record that the thread takes part in a generation from now on."""
        self.marked_at = now
        self.training = True

    def end(self) -> None:
        """Record that the thread waits for its next generation."""
        self.training = False

    def mark(self, now: float) -> None:
        """Record progress of the thread; ignored outside a generation."""
        if not self.training:
            return
        seen = self._seen_in_this_pause()
        if seen is not None and seen.at_s > self._moved_at:
            silent_s = min(now, self._clock.ran_until) - max(self._seen_since, self._moved_at)
            self.longest_silence_s = max(self.longest_silence_s, silent_s)
        self.marked_at = now

    def begins(self, kind: str, shape: Hashable = None, *, specialises: bool) -> None:
        """Record that work of a kind begins.

        Args:
            kind: the kind of work.
            shape: the shape of its batch, if it has one.
            specialises: code is generated for each new shape, possibly while waiting without
                activity for another process that generates the same.  Then work on another shape is
                new, and so is the work after it: code generated for that batch may not fit the
                usual one.
        """
        before, self._work = self._work, (kind, shape)
        work = (before, self._work) if specialises else kind
        self.is_new = work not in self._known and len(self._known) < MOST_KINDS
        if self.is_new:
            self._known.add(work)

    def committed(self) -> None:
        """Record that the thread has committed a step."""
        self.stepped = True

    # --- the event loop ------------------------------------------------------------------------

    def look(self, now: float, *, tick_s: float, waits: bool) -> float:
        """Record that the process runs, and will check again within `tick_s`.

        Args:
            now: a reading of the clock of the marks.
            tick_s: time until the next check.
            waits: the thread waits for the ring, so it is not the cause of a delay.

        Returns:
            Seconds without a mark; 0 outside a generation.
        """
        stood_still_s = self._clock.look(now, tick_s=tick_s)
        if waits:
            self.marked_at = now
        elif stood_still_s:  # else the mark is unchanged: the thread may just be writing one
            same = self._moving_since == self.marked_at
            self.marked_at = min(now, self.marked_at + stood_still_s)
            self._moving_since = self.marked_at if same else self._moving_since
            self._moved_at = min(now, self._moved_at + stood_still_s)
            self._judged_until = min(now, self._judged_until + stood_still_s)
        return max(0.0, now - self.marked_at) if self.training else 0.0

    def is_enough(self, glance: Evidence) -> bool:
        """Whether a glance suffices: it is the first of a pause, or shows activity."""
        seen = self._seen_in_this_pause()
        return seen is None or computes(seen, glance)

    def saw(self, evidence: Evidence) -> None:
        """Record the observations in a pause of `LOOK_AFTER_S` or more."""
        before = self._seen_in_this_pause()
        if before is None:
            self._seen_since = evidence.at_s
        if self._moving_since != self.marked_at:
            self._moving_since = self._judged_until = self.marked_at
            self._moving_s = 0.0
        moves = motion(before, evidence)
        if moves:
            quiet_since = max(self._seen_since, self._moved_at)
            silent_s = (before.at_s if before is not None else quiet_since) - quiet_since
            self._longest_between_s = max(self._longest_between_s, silent_s)
            self._moving_s += evidence.at_s - self._judged_until
            self._moved_at, self._moves = evidence.at_s, moves
        if moves or before is not None:
            self._judged_until = evidence.at_s
        self._seen = evidence

    def verdict(self, now: float, stalled_s: float) -> Verdict:
        """The verdict on the thread, `stalled_s` after its last mark."""
        silent_s = min(stalled_s, max(0.0, now - max(self.marked_at, self._moved_at)))
        moving_s = self._moving_s if self._moving_since == self.marked_at else 0.0
        allowed_s, setting = self._limit()
        busy_s = max(self.busy_limit_s, allowed_s)
        words = self._words(stalled_s, silent_s, f"{setting} allows {allowed_s:.3g} s", busy_s)
        return Verdict(
            stalled_s=stalled_s,
            still_s=max(silent_s, stalled_s - moving_s),
            patience_s=min(stalled_s - silent_s + allowed_s, busy_s),
            evidence=words,
        )

    def _seen_in_this_pause(self) -> Evidence | None:
        return self._seen if self._seen is not None and self._seen.at_s > self.marked_at else None

    def _limit(self) -> tuple[float, str]:
        """The limit of silence, and the setting that determines it."""
        if self.is_new or not self.stepped:
            first_s = max(self.first_stall_limit_s, self.least_stall_limit_s)
            return first_s, "elastic.warmup_timeout_s"
        longest_s = max(self.longest_silence_s, self._longest_between_s)
        learned_s = min(PATIENCE_SILENCES * longest_s, max(self.first_stall_limit_s, 2 * longest_s))
        return max(self.least_stall_limit_s, learned_s), "elastic.stall_timeout_s"

    def _words(self, stalled_s: float, silent_s: float, allowed: str, busy_s: float) -> str:
        if stalled_s < TELL_AFTER_S:
            return ""
        if silent_s >= TELL_AFTER_S:
            return f"nothing has moved for {silent_s:.1f} s; {allowed}"
        return f"{self._moves}; elastic.busy_timeout_s allows {busy_s:.6g} s"
