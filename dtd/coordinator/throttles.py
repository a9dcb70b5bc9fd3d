"""Rates of workers' messages and reports, bounds on unanswered questions, output of jobs.

What a worker reports beyond its quota (`dtd.net.limits`) is left out, and said: in the output, as
an event, as a figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple

from dtd.coordinator.containment import Containment
from dtd.coordinator.store.database import StoreThread, Turn
from dtd.coordinator.store.store import Store
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.limits import LINES, Pacing, Quotas
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


# --- answers ---------------------------------------------------------------------------------


UNREAD_S: Final = 30.0
"""Time without any byte being read, after which the client is considered gone."""

MAX_UNANSWERED: Final = 64
"""Most unanswered requests of one connection."""


class Answers:
    """Answers the requests of each connection in order, each when the last answer was read."""

    def __init__(self, containment: Containment) -> None:
        self._contain = containment.around
        self._waiting: dict[Link, deque[tuple[str, Callable[[], Awaitable[None]]]]] = {}
        self._tasks: dict[Link, asyncio.Task[None]] = {}

    def begin(
        self,
        link: Link,
        request: m.Message,
        answer: Callable[[], Awaitable[None]],
        *,
        most: int = MAX_UNANSWERED,
    ) -> None:
        """Await `answer` in its turn, unless the connection ends; its errors close the connection.

        Raises:
            ProtocolError: REFUSED, `most` requests of this connection are not answered yet.
        """
        waiting = self._waiting.setdefault(link, deque())
        if len(waiting) >= most:
            raise ProtocolError(ErrorCode.REFUSED, f"{most} requests are unanswered")
        waiting.append((m.message_name(type(request)), answer))
        if link not in self._tasks:
            self._tasks[link] = asyncio.create_task(self._serve(link, waiting))

    def forget(self, link: Link) -> None:
        """The connection is gone."""
        self._waiting.pop(link, deque()).clear()
        task = self._tasks.pop(link, None)
        if task is not None:
            task.cancel()

    async def _serve(
        self, link: Link, waiting: deque[tuple[str, Callable[[], Awaitable[None]]]]
    ) -> None:
        while waiting and not link.closing:
            name, answer = waiting[0]
            with self._contain(f"answering {name}", link):
                await _answered(link, answer)
                await drain(link)
            if waiting:  # the connection may have ended meanwhile
                waiting.popleft()
        self.forget(link)


async def _answered(link: Link, answer: Callable[[], Awaitable[None]]) -> None:
    try:
        await answer()
    except DtdError as error:
        link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
    except (OSError, sqlite3.Error) as error:
        why = f"the coordinator's store failed: {error}"
        link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy="check its disk"))


async def acquire(pacing: Pacing, who: Hashable) -> None:
    """Return when a client may continue; clients do not block each other."""
    clock = asyncio.get_running_loop().time
    wait_s = pacing.wait_s(who, clock())
    while wait_s:
        await asyncio.sleep(wait_s)
        wait_s = pacing.wait_s(who, clock())


async def drain(link: Link) -> None:
    """Return when the peer has read the answer; a peer that reads nothing is disconnected."""
    while (drained := link.drained()) is not None:
        before = link.queued_bytes()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drained, UNREAD_S)
        if drained.cancelled() and link.queued_bytes() >= before:
            link.abort()
            return


# --- quotas of reports: lines are written in the store's last turn, a few at a time --------------


LINES_AT_ONCE: Final = 250
"""Most lines of one transaction: urgent calls wait for at most one, a few milliseconds."""

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of lines that the disk has not taken yet."""

_OF_A_LINE: Final = 100
"""Bytes that a line takes besides its text, roughly."""


class _Batch(NamedTuple):
    job: str
    rank: int
    worker: str
    lines: list[str]
    size_bytes: int


class ReportQuotas:
    """Drops reports beyond a worker's quota, and stores output; belongs to the event loop."""

    def __init__(
        self,
        quotas: Quotas,
        store: Store,
        thread: StoreThread,
        incident: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quotas = quotas
        self._store = store
        self._thread = thread
        self.incident = incident
        self._clock = clock
        self._waiting: deque[_Batch] = deque()
        self._put_bytes = 0
        self._written_bytes = 0  # counted by the store's thread alone
        self._outputs: dict[str, tuple[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def accepts(self, worker: str, message: m.Message) -> bool:
        """Whether a message is no notice beyond its worker's quota.

        One of a failed checkpoint counts always: it may answer SAVE.
        """
        if not isinstance(message, m.Notice) or message.event == "checkpoint_failed":
            return True
        allowed = self._quotas.allows_notice(worker, self._clock())
        if not allowed:
            self._watch()
        return allowed

    def output(self, worker: str, message: m.JobOutput, payload: bytes) -> None:
        """Have the lines of a JOB_OUTPUT written, as many as the worker may have."""
        lines = self._quotas.lines(worker, payload, self._clock())
        for begin in range(0, len(lines), LINES_AT_ONCE):
            self._put(message.job, message.rank, worker, lines[begin : begin + LINES_AT_ONCE])
        if self._quotas.is_marked(worker):
            self._outputs[worker] = message.job, message.rank
            self._mark(worker)
        self._watch()

    def dropped(self) -> Counter[tuple[str, str]]:
        """Return the number of reports that were left out, by (worker, kind)."""
        return self._quotas.dropped

    def close(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _put(self, job: str, rank: int, worker: str, lines: list[str]) -> None:
        size_bytes = sum(map(len, lines)) + _OF_A_LINE * len(lines)
        if self._put_bytes - self._written_bytes + size_bytes > MAX_WAITING_BYTES:
            self._quotas.drop(worker, LINES, len(lines))
            return
        self._put_bytes += size_bytes
        self._waiting.append(_Batch(job, rank, worker, lines, size_bytes))
        self._thread.later(self._write, turn=Turn.PATIENT)

    def _write(self) -> None:
        """Write one batch; in the store's thread."""
        batch = self._waiting.popleft()
        self._written_bytes += batch.size_bytes
        self._store.add_lines(batch.job, batch.rank, batch.worker, batch.lines)

    # --- what was left out ---------------------------------------------------------------------

    def _mark(self, worker: str) -> None:
        """Say in the output that lines are missing here."""
        line = self._quotas.mark(worker, self._clock())
        if line:
            job, rank = self._outputs[worker]
            self._put(job, rank, worker, [line])

    def _watch(self) -> None:
        now = self._clock()
        moment = self._quotas.look_again_at(now)
        if moment is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(moment - now, self._look)

    def _look(self) -> None:
        self._timer = None
        for worker in tuple(self._outputs):
            self._mark(worker)
            if not self._quotas.is_marked(worker):
                del self._outputs[worker]
        for worker, counts in self._quotas.to_tell(self._clock()):
            what = " and ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            why = f"{worker} reports more than its quota: {what} were dropped"
            self.incident("share_exceeded", why, worker=worker, **counts)
        self._watch()
