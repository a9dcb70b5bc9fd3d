"""Stores what jobs print, and drops what workers report beyond their quotas.

Lines of output are written in the store's last turn, a few at a time; what a worker sends beyond
its share (`dtd.net.limits`) is left out, and said: in the output, as an event, as a figure.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dtd.coordinator.store.store import Store
from dtd.coordinator.store.thread import StoreThread, Turn
from dtd.net.limits import CHECKPOINTS, FIGURES, LINES, NOTICES, Quotas
from dtd.wire import messages as m

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

    def heeds(self, worker: str, message: m.Message) -> bool:
        """Whether a report is within its worker's share; all that is no such report is."""
        if isinstance(message, m.Notice):
            kind = NOTICES
        elif isinstance(message, m.Progress | m.Evaluated):
            kind = FIGURES
        elif isinstance(message, m.CheckpointSaved):
            kind = CHECKPOINTS
        else:
            return True
        allowed = self._quotas.allows(worker, kind, self._clock())
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
