"""Runs the membership core, and lets this process survive whatever is wrong in it.

The core refuses what it does not want before it changes anything, so an exception within it is a
defect, and leaves its cluster half changed.  What it had decided by then is done, so that others
know the cluster's state.  If this is inconsistent, or its clock fails again and again, the core
begins again from its jobs, as a process that was started anew would: workers are disconnected, come
back, and say what they hold (ADR 0006).  A job with which that happens too often has failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from dtd.cluster.events import Effect, Event, Submitted, Ticked
from dtd.cluster.several_jobs.pools import Pools
from dtd.coordinator.containment import Containment
from dtd.coordinator.store.store import job_body, job_from_body
from dtd.errors import RequestRefused

WITHIN_S: Final = 60.0
MAX_TICKS_FAILED: Final = 3
MAX_BEGINNINGS: Final = 3
"""So often within that time; then the active job is given up."""


class Driver:
    """Runs the core on the running event loop, and guards it against its own errors.

    Args:
        perform: does one effect; must not block.
    """

    def __init__(
        self,
        membership: Pools,
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
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0

    @property
    def now(self) -> float:
        return self._loop.time()

    def handle(self, event: Event) -> None:
        """Pass an event in and do the effects; keep the deadline even if the core raises.

        Raises:
            RequestRefused: an operator's request cannot be met; nothing has changed.
            Exception: the core has failed; by then all that it had decided is done.
        """
        try:
            for effect in self._decided_on(event, self.now):
                self._perform(effect)
        finally:
            self._keep_time(self._membership.next_deadline(self.now))

    def _keep_time(self, deadline_s: float | None) -> None:
        """Wake the core at a deadline or before; a timer that is due keeps its turn."""
        if self._timer is not None and deadline_s is not None and self._deadline_s <= deadline_s:
            return
        self.stop()
        if deadline_s is not None:
            self._deadline_s = deadline_s
            self._timer = self._loop.call_at(deadline_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.handle(Ticked())

    def stop(self) -> None:
        """Stop waking the core."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _decided_on(self, event: Event, now: float) -> list[Effect]:
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

    def _do_what_was_decided(self) -> None:
        for effect in self._membership.take_decided():
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
        self._disconnect_all("the coordinator reloaded its jobs after an internal error")
        for job in jobs:
            with self._containment.around(f"taking up job {job.id}"):
                again = job_from_body(job_body(job))
                for effect in self._membership.handle(Submitted(job=again), now):
                    self._perform(effect)


def _often(times: deque[float], now: float) -> bool:
    return len(times) == times.maxlen and now - times[0] <= WITHIN_S
