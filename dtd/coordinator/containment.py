"""Limits internal errors of the coordinator to the connection whose message caused them.

No message from a peer may end this process, even if a check is missing.  So an exception that
nobody expected is caught here and nowhere else: it costs that peer its connection, is told as the
incident `internal_error` and logged with its traceback, and the daemon goes on.  What a peer did
wrong by the protocol (ProtocolError) is not meant: that ends its connection anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import structlog

from dtd.cluster.events import Effect, Event, Submitted, Ticked
from dtd.cluster.pools import Pools
from dtd.coordinator.store.store import job_body, job_from_body
from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.net.limits import Allowance
from dtd.net.link import Link
from dtd.shown import one_line

log = structlog.get_logger()

# --- recent refusals and their reasons, so that a flood does not fill the log ------------------
#
# What an operator is told of it is in `dtd.cluster.status`.


MAX_REFUSALS: Final = 32
LOG_EVERY_S: Final = 60.0
MAX_LOGGED_PER_S: Final = 1.0
LOG_BURST: Final = 16.0


class Refusals:
    """Times of the last logged refusals, or failures, by place and reason; the oldest first."""

    def __init__(self) -> None:
        self._logged_s: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._may_log = Allowance(MAX_LOGGED_PER_S, LOG_BURST)

    def note(self, place: str, reason: str, now: float) -> bool:
        """Take one down; returns whether it should be logged."""
        logged_s = self._logged_s.pop((place, reason), None)
        due = logged_s is None or now - logged_s >= LOG_EVERY_S
        # The log grows by this much only, however many hosts connect.
        logs = due and self._may_log.takes(1, now)
        self._logged_s[place, reason] = now if logs or logged_s is None else logged_s
        while len(self._logged_s) > MAX_REFUSALS:
            self._logged_s.popitem(last=False)
        return logs


# --- internal errors -----------------------------------------------------------------------------


AGAIN_AFTER_S: Final = 1.0
"""A loop that must not end begins again so long after it failed."""

MAX_CAUSE_CHARACTERS: Final = 200
REMEDY: Final = "its log has the traceback, at `internal_error_traceback`: report it"


class Containment:
    """Catches errors of this process.

    Args:
        now: the clock of the daemon, in seconds.
        incident: reports to operators.

    Attributes:
        errors: how many there have been, told or not.
    """

    def __init__(self, now: Callable[[], float], incident: Callable[..., None]) -> None:
        self._now = now
        self.incident = incident
        self._told = Refusals()
        self.errors = 0

    @contextlib.contextmanager
    def around(self, doing: str, link: Link | None = None, *, worker: str = "") -> Iterator[None]:
        """Close `link` on any unexpected exception; protocol errors and refusals propagate.

        Args:
            doing: the action, for people.
            link: the sender of the message, if any.
            worker: its name.
        """
        try:
            yield
        except (ProtocolError, RequestRefused):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
            self.failed(error, doing, link, worker=worker)

    def failed(
        self, error: BaseException, doing: str, link: Link | None = None, *, worker: str = ""
    ) -> None:
        """Report an error, and close the connection that it came from."""
        self.errors += 1
        where, cause = _place(error), one_line(f"{type(error).__name__}: {error}")
        cause = cause[:MAX_CAUSE_CHARACTERS]
        if self._told.note(where, type(error).__name__, self._now()):
            log.error("internal_error_traceback", doing=doing, cause=cause, exc_info=error)
            said = f"{worker or 'the coordinator'}: {doing} failed at {where}: {cause}"
            self.incident("internal_error", said, worker=worker)
        if link is not None:
            why = f"the coordinator failed at {doing}"
            link.fail(ProtocolError(ErrorCode.INTERNAL, why, remedy=REMEDY))

    async def forever(self, doing: str, run: Callable[[], Awaitable[None]]) -> None:
        """Await `run`, and begin it again whenever it fails."""
        while True:
            try:
                await run()
                return
            except Exception as error:  # noqa: BLE001 - as above
                self.failed(error, doing)
            await asyncio.sleep(AGAIN_AFTER_S)

    def stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle an exception of a callback or a task that nothing waits for."""
        error, protocol = context.get("exception"), context.get("protocol")
        if not isinstance(error, Exception):
            loop.default_exception_handler(context)
            return
        link = protocol if isinstance(protocol, Link) else None
        self.failed(error, str(context.get("message", "a callback")), link)


def _place(error: BaseException) -> str:
    """FILE:LINE of ours that is nearest to where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/dtd/" in one.filename and one.filename != __file__]
    ours = ours or list(frames)
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else "?"


# --- the membership core, which this process survives whatever is wrong in it ------------------
#
# The core refuses what it does not want before it changes anything, so an exception within it is a
# defect, and leaves its cluster half changed.  What it had decided by then is done, so that others
# know the cluster's state.  If this is inconsistent, or its clock fails again and again,
# the core begins again from its jobs, as a process that was started anew would: workers are
# disconnected, come back, and say what they hold (ADR 0006).  A job with which that happens too
# often has failed.


WITHIN_S: Final = 60.0
MAX_TICKS_FAILED: Final = 3
MAX_BEGINNINGS: Final = 3
"""So often within that time; then the active job is given up."""


class Driver:
    """Runs the core on the running event loop, and guards it against its own errors.

    Args:
        membership: the core.
        containment: told of errors that no message has caused.
        perform: does one effect; must not block.
        disconnect_all: ends all workers' connections.
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

    @property
    def now(self) -> float:
        """The clock that the core sees, in seconds."""
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
            self.stop()
            deadline_s = self._membership.next_deadline(self.now)
            if deadline_s is not None:
                self._timer = self._loop.call_at(deadline_s, self.handle, Ticked())

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
