"""Message rates of workers, bounds on unanswered questions, and which refusals are logged."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractContextManager
from typing import Any, Final

from dtd.errors import ErrorCode, ProtocolError
from dtd.net.limits import Allowance, Pacing
from dtd.net.link import Link
from dtd.security.identity import LOCAL
from dtd.wire import messages as m
from dtd.wire.frames import HOLD, Hold

# --- message rates of workers: connections that exceed them are read later ---------------------
# A message costs this process a fraction of a millisecond; without a rate limit, one member that
# floods its connection would delay all others and operators.  One that connects and disconnects
# repeatedly would fill the store, since each of these is an event.


MESSAGES_PER_S: Final = 500.0
"""Rate of one credential.  A host of sixteen workers needs about a hundred."""

MESSAGES_AT_ONCE: Final = 250.0
BYTES_OF_A_MESSAGE: Final = 32 * 1024
"""A payload of so many bytes counts as one message more."""

REGISTERED_PER_S: Final = 2.0
REGISTERED_AT_ONCE: Final = 16.0
"""Burst of one worker's name, on all its connections, one after the other."""


class Pace:
    """The rates of all workers; belongs to the event loop."""

    def __init__(self) -> None:
        self._pacing = Pacing(rate_per_s=MESSAGES_PER_S, burst=MESSAGES_AT_ONCE)
        self._registering = Pacing(rate_per_s=REGISTERED_PER_S, burst=REGISTERED_AT_ONCE)

    def place(self, link: Link, message: m.Message, payload_bytes: int) -> Hold | None:
        """Whether a worker's message has to wait; then its connection is not read meanwhile."""
        if link.session.role is not m.Role.WORKER:
            return None
        loop = asyncio.get_running_loop()
        if isinstance(message, m.Register):
            wait_s = self._registering.wait_s(message.name, loop.time())
        else:
            amount = 1 + payload_bytes // BYTES_OF_A_MESSAGE
            wait_s = self._pacing.wait_s(_credential_of(link), loop.time(), amount)
        if not wait_s:
            return None
        loop.call_later(wait_s, link.resume)
        return HOLD


def _credential_of(link: Link) -> tuple[str, str]:
    """Workers of the coordinator's own user are told apart by their connections."""
    who = link.identity
    if who is None or who.role == LOCAL:
        return "", str(id(link))
    return who.role, who.name


UNREAD_S: Final = 30.0
"""Time without any byte being read, after which the client is considered gone."""


Contain = Callable[[str, Link], AbstractContextManager[None]]
"""A context for an action and its link: an unexpected error closes the link (`containment`)."""


MAX_UNANSWERED: Final = 4
"""A worker that has just connected again may ask twice for the same thing."""


class BoundedAnswers:
    """A few questions of each connection are answered at a time; belongs to the event loop.

    Args:
        question: the request, in words.
        contain: contains errors that prevent an answer.
    """

    def __init__(self, question: str, contain: Contain) -> None:
        self._question = question
        self._contain = contain
        self._tasks: dict[asyncio.Task[None], Link] = {}

    def begin(self, link: Link, answering: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Answer in a task of its own.

        Raises:
            ProtocolError: REFUSED, too many on this connection are not answered yet.
        """
        if sum(one is link for one in self._tasks.values()) >= MAX_UNANSWERED:
            raise ProtocolError(
                ErrorCode.REFUSED, f"{MAX_UNANSWERED} {self._question} are unanswered"
            )
        task = asyncio.create_task(self._contained(link, answering))
        self._tasks[task] = link
        task.add_done_callback(self._tasks.pop)

    async def _contained(
        self, link: Link, answering: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        with self._contain(f"answering {self._question}", link):
            await answering()


async def go_on(pacing: Pacing, who: Hashable) -> None:
    """Return when a waiting client may continue; clients do not block each other."""
    clock = asyncio.get_running_loop().time
    wait_s = pacing.wait_s(who, clock())
    while wait_s:
        await asyncio.sleep(wait_s)
        wait_s = pacing.wait_s(who, clock())


async def read_out(link: Link) -> None:
    """Return when the peer has read the answer; a peer that reads nothing is disconnected."""
    while (drained := link.drained()) is not None:
        before = link.queued_bytes()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drained, UNREAD_S)
        if drained.cancelled() and link.queued_bytes() >= before:
            link.abort()
            return


# --- recent refusals and their reasons, so that a flood does not fill the log ------------------
#
# What an operator is told of it is `dtd.cluster.diagnostics`.  Pure.


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
