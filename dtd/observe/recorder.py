"""Takes workers' reports to the metrics store, off the event loop; training never waits for it.

Rows are collected for a second and written in one transaction by a thread of their own.  What does
not fit into the queue is dropped and counted.  While the disk fails,
rows wait as long as there is room, an event and `dtdctl status` say so, and it is tried again.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from dtd.observe import query, series
from dtd.observe.store import MetricsStore, Row
from dtd.wire import messages as m

WRITE_EVERY_S: Final = 1.0
RETRY_S: Final = 10.0
SYSTEM_EVERY_S: Final = 2.0
"""Between two rows of one worker, and of one link."""

MAX_WAITING: Final = 20_000
WRITE_AT_ONCE: Final = 4_000
MAX_WORKERS: Final = 1024


class MetricsRecorder:
    """Queues rows for the store; used on the event loop only.

    Args:
        directory: the coordinator's state directory.
        limit_bytes: the most that the store may hold.
        tell_operators: reports an incident: kind, message and details.
        run: runs a function in the store's thread, and awaits its result.
        later: the same without waiting.

    Attributes:
        dropped: rows that were not remembered.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        tell_operators: Callable[..., None],
        run: Callable[..., Awaitable[Any]],
        later: Callable[..., object],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tell_operators = tell_operators
        self._run = run
        self._later = later
        self._clock = clock
        self._wall = wall
        self._store = MetricsStore(directory, limit_bytes, self._set_aside)
        self._waiting: deque[Row] = deque()
        self._beats: dict[str, tuple[float, m.Heartbeat]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing = self._closes = False
        self.dropped = 0
        self._stopped = ""
        self._dropped_before = 0

    # --- what comes in -------------------------------------------------------------------------

    def progress(self, identity: str, message: m.Progress) -> None:
        self._put(identity, series.step_entries(message, self._wall()))

    def evaluated(self, identity: str, message: m.Evaluated) -> None:
        self._put(identity, [series.evaluation_entry(message)])

    def heartbeat(self, worker: str, identity: str, message: m.Heartbeat, to: str) -> None:
        """Store a worker's figures, and those of its link to the next one in the ring."""
        now = self._clock()
        at_s, before = self._beats.get(worker, (now, None))
        if before is not None and 0 <= now - at_s < SYSTEM_EVERY_S:
            return
        if before is None and len(self._beats) >= MAX_WORKERS:
            del self._beats[next(iter(self._beats))]
        self._beats[worker] = now, message
        unix_s = self._wall()
        entries = [series.worker_entry(worker, message, before, now - at_s, unix_s)]
        if to:
            entries.append(series.link_entry(worker, to, message, unix_s))
        self._put(identity, entries)

    def _put(self, identity: str, entries: Iterable[series.Entry]) -> None:
        for entry in entries:
            if len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
            else:
                self._waiting.append((identity, entry))
        if self._waiting and not (self._timer or self._writing or self._closes):
            pause_s = RETRY_S if self._stopped else WRITE_EVERY_S
            self._timer = self._loop.call_later(pause_s, self._write)

    # --- writing -------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._writing = True
        batch = list(itertools.islice(self._waiting, WRITE_AT_ONCE))
        self._later(self._write_in_thread, batch)

    def _write_in_thread(self, batch: list[Row]) -> None:
        failure, lost = "", len(batch)  # unless something else is wrong than the disk
        try:
            self._store.write(batch, self._wall())
            lost = 0
        except (OSError, sqlite3.OperationalError) as error:
            failure = str(error)
        finally:
            self._loop.call_soon_threadsafe(self._written, len(batch), lost, failure)

    def _written(self, count: int, lost: int, failure: str) -> None:
        self._writing = False
        if failure:
            if not self._stopped:
                self._dropped_before = self.dropped
                why = f"figures are not stored any more, training continues: {failure}"
                self._tell_operators("metrics_stopped", why)
        else:
            for _ in range(count):
                self._waiting.popleft()
            self.dropped += lost
            if self._stopped:
                missing = self.dropped - self._dropped_before
                what = f"figures are stored again; {missing} were dropped"
                self._tell_operators("metrics_resumed", what, dropped=missing)
        self._stopped = failure
        self._put("", ())

    def _set_aside(self, why: str) -> None:
        """Report a damaged file that was set aside; called in the store's thread."""
        self._loop.call_soon_threadsafe(lambda: self._tell_operators("metrics_set_aside", why))

    def complaint(self) -> str:
        """Return the reason why nothing is stored; empty if figures are stored."""
        return f"metrics: {self._stopped}" if self._stopped else ""

    # --- the store's other calls ---------------------------------------------------------------

    async def answer(self, request: m.GetMetrics) -> dict[str, Any]:
        """Answer GET_METRICS with everything reported so far.

        Raises:
            RequestRefused: there is no such figure.
        """
        await self._write_all()
        found = await self._run(query.answer, self._store, request)
        return {**found, "stopped": self._stopped, "dropped": self.dropped}

    async def _write_all(self) -> None:
        """Write waiting rows, unless the store has stopped."""
        for _ in range(MAX_WAITING // WRITE_AT_ONCE):
            if not self._waiting or self._stopped:
                break
            if not self._writing:
                self._write()
            await self._run(_nothing)  # what is being written first

    async def forget(self, job: str) -> None:
        """Remove a deleted job's figures, now or, if that fails, to make room later."""
        await self._run(self._forget, job)

    def _forget(self, job: str) -> None:
        try:
            self._store.forget(job)
        except (OSError, sqlite3.Error):
            self._store.close()

    async def close(self) -> None:
        """Write waiting rows, and close the file; later reports are not written."""
        self._closes = True
        if self._timer is not None:
            self._timer.cancel()
        await self._write_all()
        await self._run(self._store.close)


def _nothing() -> None:
    """Do nothing: awaiting this means that all earlier requests of the thread are done."""
