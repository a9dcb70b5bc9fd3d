"""The membership core, which this process survives whatever is wrong in it.

The core refuses what it does not want before it changes anything, so an exception within it is a
defect, and leaves its books half changed.  What it had decided by then is done, so that others know
what the books say.  If these do not balance any more, or its clock fails again and again, the core
begins again from its jobs, as a process that was started anew would: workers are disconnected, come
back, and say what they hold (ADR 0006).  A job with which that happens too often has failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from dtd.coordinator.containment import Containment
from dtd.coordinator.records import job_body, job_from_body
from dtd.core.membership.events import Effect, Event, Submitted, Ticked
from dtd.core.membership.machine import Membership
from dtd.errors import RequestRefused

WITHIN_S: Final = 60.0
MAX_TICKS_FAILED: Final = 3
MAX_BEGINNINGS: Final = 3
"""So often within that time; then the active job is given up."""


class GuardedCore:
    """Membership, with what follows when it fails.

    Args:
        membership: the core.
        containment: told of errors that nobody's message has brought about.
        perform: does an effect.
        disconnect_all: ends all workers' connections.
    """

    def __init__(
        self,
        membership: Membership,
        containment: Containment,
        *,
        perform: Callable[[Effect], None],
        disconnect_all: Callable[[str], None],
    ) -> None:
        self._membership = membership
        self._containment = containment
        self._perform = perform
        self._disconnect_all = disconnect_all
        self._ticks_failed: deque[float] = deque(maxlen=MAX_TICKS_FAILED)
        self._beginnings: deque[float] = deque(maxlen=MAX_BEGINNINGS)

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Advance by one event.

        Raises:
            RequestRefused: an operator's request cannot be met; nothing has changed.
            Exception: the core has failed; by then all that it had decided is done.
        """
        try:
            return self._membership.handle(event, now)
        except RequestRefused:
            raise
        except Exception as error:
            self._do_what_was_decided()
            if isinstance(event, Ticked):
                self._ticks_failed.append(now)
            if not self._is_sound(now):
                self._begin_again(now)
            if not isinstance(event, Ticked):
                raise
            self._containment.failed(error, "keeping time")
            return []

    def next_deadline(self, now: float) -> float | None:
        """When the core must be woken if nothing else happens before."""
        return self._membership.next_deadline(now)

    def _do_what_was_decided(self) -> None:
        books = self._membership.books
        decided, books.effects = books.effects, []
        for effect in decided:
            self._perform(effect)

    def _is_sound(self, now: float) -> bool:
        if _often(self._ticks_failed, now):
            return False
        try:
            self._membership.check_invariants()
        except Exception:  # noqa: BLE001 - whatever does not hold
            return False
        return True

    def _begin_again(self, now: float) -> None:
        given_up = _often(self._beginnings, now)
        self._beginnings.append(now)
        self._ticks_failed.clear()
        jobs = self._membership.begin_again(given_up=given_up)
        self._do_what_was_decided()
        self._disconnect_all("the coordinator begins again after an error of its own")
        for job in jobs:
            with self._containment.around(f"taking up job {job.id}"):
                again = job_from_body(job_body(job))
                for effect in self._membership.handle(Submitted(job=again), now):
                    self._perform(effect)


def _often(times: deque[float], now: float) -> bool:
    return len(times) == times.maxlen and now - times[0] <= WITHIN_S
