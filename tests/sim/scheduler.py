"""Virtual time: a queue of timed actions, and a clock that jumps from one to the next.

Nothing sleeps and nothing depends on the machine.  Actions due at the same moment run in the order
in which they were scheduled, so a seed always reproduces the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

MAX_ACTIONS_AT_ONE_MOMENT = 100_000
MAX_ACTIONS = 400_000
"""Limit for a whole plan; a plan that exceeds it repeats some action endlessly."""


@dataclass(slots=True, eq=False)
class Timer:
    """A scheduled action; `cancel` prevents it."""

    action: Callable[[], None] | None

    def cancel(self) -> None:
        """Prevent the action."""
        self.action = None


class Scheduler:
    """The clock of a simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled = 0
        self._queue: list[tuple[float, int, Timer]] = []
        self._asked = 0
        self._at_this_moment = 0

    def at(self, moment_s: float, action: Callable[[], None]) -> Timer:
        """Schedule an action at a moment, now at the earliest."""
        timer = Timer(action)
        self._asked += 1
        heapq.heappush(self._queue, (max(moment_s, self.now), self._asked, timer))
        return timer

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Schedule an action after a delay."""
        return self.at(self.now + delay_s, action)

    def run(self, *, until_s: float, done: Callable[[], bool]) -> None:
        """Let time pass until `done`, until the given moment, or until nothing is left to do.

        Raises:
            AssertionError: so much happens, at one moment or in all, that something asks for itself
            again.
        """
        while self._queue and not done():
            moment, _, timer = self._queue[0]
            if moment > until_s:
                break
            heapq.heappop(self._queue)
            if timer.action is None:
                continue
            self._advance_to(moment)
            timer.action()
            self.handled += 1
            if self.handled > MAX_ACTIONS:
                raise AssertionError(f"no end is in sight at {self.now:.0f} s")

    def _advance_to(self, moment: float) -> None:
        self._at_this_moment = self._at_this_moment + 1 if moment == self.now else 0
        if self._at_this_moment > MAX_ACTIONS_AT_ONE_MOMENT:
            raise AssertionError(f"virtual time stands still at {self.now:.3f} s")
        self.now = moment
