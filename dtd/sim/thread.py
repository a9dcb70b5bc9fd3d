"""A simulated training thread: a generator that computes, waits, and is interrupted by its ring.

It yields how long it computes (nothing interrupts that, as nothing interrupts a forward pass) or
what it waits for; a wait that stands on a ring ends with RingBroken when the ring does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from dtd.errors import RingBroken
from dtd.sim.ring_endpoint import RingEndpoint


@dataclass(frozen=True, slots=True)
class Busy:
    """Compute for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `ready`; a broken ring ends the wait."""

    ready: Callable[[], bool]
    ring: RingEndpoint | None


Routine = Generator[Busy | Wait, None, str]


class Thread:
    """Drives one routine after another.

    Args:
        after: does something later, unless the process has died by then.
    """

    def __init__(self, after: Callable[[float, Callable[[], None]], None]) -> None:
        self._after = after
        self._routine: Routine | None = None
        self._request: Busy | Wait | None = None

    def run(self, routine: Routine) -> None:
        """Begin a routine; the last one has ended."""
        self._routine = routine
        self._go_on()

    def look(self) -> None:
        """Something has happened that the routine may be waiting for."""
        if isinstance(self._request, Wait):
            self._go_on()

    def _go_on(self) -> None:
        while self._routine is not None:
            request = self._request
            if isinstance(request, Wait) and not request.ready():
                if request.ring is None or not request.ring.why_broken:
                    return
                self._advance(self._routine, RingBroken(request.ring.why_broken))
            else:
                self._advance(self._routine, None)
            if isinstance(self._request, Busy):
                self._after(self._request.seconds, self._go_on)
                return

    def _advance(self, routine: Routine, broken: RingBroken | None) -> None:
        self._request = None
        try:
            self._request = routine.throw(broken) if broken is not None else routine.send(None)
        except StopIteration:
            self._routine = None
