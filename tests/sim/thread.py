"""A simulated training thread: a generator that computes, waits, and is interrupted by its ring.

It yields how long it computes (nothing interrupts that, as nothing interrupts a forward pass), what
it waits for, or which phase it reaches; a wait that stands on a ring ends with RingBroken when the
ring does.  Whatever it yields is a mark of progress (`dtd.core.progress`); while it computes,
something moves.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from dtd.core.observe.motion import Closely, Evidence
from dtd.errors import RingBroken
from tests.sim.phases import Phase
from tests.sim.ring_endpoint import RingEndpoint


@dataclass(frozen=True, slots=True)
class Busy:
    """Compute for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `ready`; a broken ring ends the wait."""

    ready: Callable[[], bool]
    ring: RingEndpoint | None


@dataclass(frozen=True, slots=True)
class Reach:
    """Come to a phase of a step, counted from 1."""

    phase: Phase
    step: int = -1


Request = Busy | Wait | Reach
Routine = Generator[Request, None, str]


class Thread:
    """Drives one routine after another.

    Args:
        after: does something later, unless the process has died by then.
        clock: tells the time.
        got_on: called with every piece that is done.
        reached: called with every phase; False when the process is gone.
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
        """Begin a routine, once the last one has ended."""
        if self._routine is not None:
            self._next.append(routine)
            return
        self._routine = routine
        self._go_on()

    def look(self) -> None:
        """Something has happened that the routine may be waiting for."""
        if isinstance(self._request, Wait):
            self._go_on()

    def stick(self, waits_for: str = "") -> None:
        """Never return from the next piece of computing; the kernel may say what it waits for."""
        self._stuck, self._waits_for = True, waits_for

    def loop(self) -> None:
        """Never return from the next piece of computing, and compute on."""
        self._stuck = self._loops = True

    def unstick(self) -> None:
        """Return from it after all."""
        self._stuck, self._loops, self._waits_for = False, False, ""
        if self._put_off:
            self._put_off = False
            self._go_on()

    def waits(self) -> bool:
        """It waits for others, or has nothing to do."""
        return not isinstance(self._request, Busy)

    def seen(self, now: float) -> Evidence:
        """What moves: it computes until a piece is done, and beyond that when it is stuck not."""
        until = now if self._loops else min(now, self._computes_until)
        computing_s = max(0.0, until - self._computes_from)
        waits_for = self._waits_for if self._put_off else ""
        return Evidence(
            at_s=now,
            cpu_s=self._computed_s + computing_s,
            closely=Closely(waits_for=waits_for),
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
