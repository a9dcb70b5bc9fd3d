"""A simulated training thread: a generator that computes, waits, and is interrupted by its ring.

The generator yields a duration of computation (which cannot be interrupted, like a forward pass), a
condition to wait for, or a phase that it reaches; a wait for a ring ends with RingBroken if the
ring breaks.  Every yield is a mark of progress (`dtd.cluster.workers.progress`); while the thread
computes, there is evidence of activity.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from dtd.cluster.workers.progress import Evidence
from dtd.errors import RingBroken
from tests.sim.phases import Phase
from tests.sim.ring_endpoint import RingEndpoint


@dataclass(frozen=True, slots=True)
class Busy:
    """Compute for this duration."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `ready`; a broken ring ends the wait."""

    ready: Callable[[], bool]
    ring: RingEndpoint | None


@dataclass(frozen=True, slots=True)
class Reach:
    """Reach a phase of a step, counted from 1."""

    phase: Phase
    step: int = -1


Request = Busy | Wait | Reach
Routine = Generator[Request, None, str]


class Thread:
    """Drives one routine after another.

    Args:
        after: runs an action after a delay, unless the process has died by then.
        clock: returns the time.
        got_on: called for every completed piece of work.
        reached: called with every phase; returns False if the process has ended.
    """

    def __init__(
        self,
        after: Callable[[float, Callable[[], None]], None],
        *,
        clock: Callable[[], float],
        got_on: Callable[[], None],
        reached: Callable[[Reach], bool],
    ) -> None:
        self._after = after
        self._clock = clock
        self._got_on = got_on
        self._reached = reached
        self._routine: Routine | None = None
        self._next: list[Routine] = []
        self._request: Request | None = None
        self._stuck = self._loops = False
        self._waits_for = ""
        self._put_off = False
        self._computed_s = 0.0
        self._computes_from = self._computes_until = 0.0

    def run(self, routine: Routine) -> None:
        """Start a routine once the previous one has ended."""
        if self._routine is not None:
            self._next.append(routine)
            return
        self._routine = routine
        self._go_on()

    def look(self) -> None:
        """Check again whether the routine's wait is over."""
        if isinstance(self._request, Wait):
            self._go_on()

    def stick(self, waits_for: str = "") -> None:
        """Hang in the next computation, without activity; `waits_for` is the kernel's report."""
        self._stuck, self._waits_for = True, waits_for

    def loop(self) -> None:
        """Hang in the next computation, and keep computing."""
        self._stuck = self._loops = True

    def unstick(self) -> None:
        """End the hang."""
        self._stuck, self._loops, self._waits_for = False, False, ""
        if self._put_off:
            self._put_off = False
            self._go_on()

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to do."""
        return self._routine is None

    def waits(self) -> bool:
        """Whether the thread waits for other workers, or has nothing to do."""
        return not isinstance(self._request, Busy)

    def seen(self, now: float) -> Evidence:
        """Evidence of activity: CPU time grows during a computation, or always in a loop."""
        until = now if self._loops else min(now, self._computes_until)
        computing_s = max(0.0, until - self._computes_from)
        waits_for = self._waits_for if self._put_off else ""
        return Evidence(
            at_s=now,
            cpu_s=self._computed_s + computing_s,
            children_cpu_s=0.0,
            waits_for=waits_for,
        )

    def _compute(self, seconds: float) -> None:
        now = self._clock()
        self._computed_s += self._computes_until - self._computes_from
        self._computes_from, self._computes_until = now, now + seconds
        self._after(seconds, self._on_computed)

    def _on_computed(self) -> None:
        if self._stuck:
            self._put_off = True
        else:
            self._go_on()

    def _go_on(self) -> None:
        while self._routine is not None:
            request = self._request
            if isinstance(request, Wait) and not request.ready():
                if request.ring is None or not request.ring.why_broken:
                    return
                self._advance(self._routine, _broken(request.ring))
            else:
                self._advance(self._routine, None)
            if isinstance(self._request, Reach) and not self._reached(self._request):
                return
            if isinstance(self._request, Busy):
                self._compute(self._request.seconds)
                return

    def _advance(self, routine: Routine, broken: RingBroken | None) -> None:
        self._got_on()
        self._request = None
        try:
            self._request = routine.throw(broken) if broken is not None else routine.send(None)
        except StopIteration:
            self._routine = self._next.pop(0) if self._next else None


def _broken(ring: RingEndpoint) -> RingBroken:
    return RingBroken(ring.why_broken, suspect=ring.suspect, evidence=ring.evidence)
