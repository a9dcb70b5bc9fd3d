"""The driver of all cores: passes events in, performs effects, and keeps deadlines.

A core decides in `handle(event, now)`; the driver gives it the clock, performs its effects in
order, and wakes it at its next deadline.  It does not know what events and effects mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

EventT_contra = TypeVar("EventT_contra", contravariant=True)
EffectT_co = TypeVar("EffectT_co", covariant=True)
AnyEvent = TypeVar("AnyEvent")
AnyEffect = TypeVar("AnyEffect")


class Core(Protocol[EventT_contra, EffectT_co]):
    """The interface of every core."""

    def handle(self, event: EventT_contra, now: float) -> Sequence[EffectT_co]:
        """Advance by one event."""
        ...

    def next_deadline(self, now: float) -> float | None:
        """The time at which the core must be woken if no event comes first."""
        ...


class Driver(Generic[AnyEvent, AnyEffect]):
    """Runs one core on the running event loop.

    Args:
        core: the core.
        perform: performs one effect; must not block.
        wake: creates the event that is passed in when a deadline is reached.
    """

    def __init__(
        self,
        core: Core[AnyEvent, AnyEffect],
        perform: Callable[[AnyEffect], None],
        wake: Callable[[], AnyEvent],
    ) -> None:
        self._core = core
        self._perform = perform
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def now(self) -> float:
        """The clock that the core sees, in seconds."""
        return self._loop.time()

    def handle(self, event: AnyEvent) -> None:
        """Pass an event in and perform the effects; keep the deadline even if the core raises."""
        try:
            self._do(self._core.handle(event, self.now))
        finally:
            self._schedule()

    def stop(self) -> None:
        """Stop waking the core."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _do(self, effects: Iterable[AnyEffect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _schedule(self) -> None:
        self.stop()
        deadline = self._core.next_deadline(self.now)
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        self.handle(self._wake())
