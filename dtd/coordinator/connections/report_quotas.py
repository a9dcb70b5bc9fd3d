"""Reports of workers: notices and lines of output within a quota, lines written a few at a time.

What a worker reports beyond its quota is dropped; the output, an event and a figure say so.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dtd.coordinator.store.database import StoreThread, Turn
from dtd.coordinator.store.store import Store
from dtd.net.rates import Allowance
from dtd.wire import messages as m

LINES: Final = "lines"
NOTICES: Final = "notices"
BURST_S: Final = 4.0
"""Burst of lines, in seconds' worth: a worker that was away sends them at once."""

LINE_BYTES: Final = 4 * 4096
"""Longest line; the rest is cut off, as by workers."""

MEAN_LINE_BYTES: Final = 1024
NOTICES_PER_S: Final = 1.0
NOTICES_BURST: Final = 32.0
MAX_REPORTERS: Final = 512
TELL_EVERY_S: Final = 60.0
"""Seconds between events about a worker that continues to exceed its quota."""

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


class _Reporter:
    """One worker's allowances, and its dropped reports since the last event."""

    def __init__(self, lines_per_s: float) -> None:
        bytes_per_s = lines_per_s * MEAN_LINE_BYTES
        self.lines = Allowance(lines_per_s, lines_per_s * BURST_S)
        self.line_bytes = Allowance(bytes_per_s, bytes_per_s * BURST_S)
        self.notices = Allowance(NOTICES_PER_S, NOTICES_BURST)
        self.untold: Counter[str] = Counter()
        self.told_s = float("-inf")


class ReportQuotas:
    """Drops reports beyond a worker's quota, and stores output; belongs to the event loop.

    Attributes:
        dropped: number of dropped reports, by (worker, kind).
    """

    def __init__(
        self,
        lines_per_s: float,
        store: Store,
        thread: StoreThread,
        incident: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped: Counter[tuple[str, str]] = Counter()
        self._lines_per_s = lines_per_s
        self._store = store
        self._thread = thread
        self._tell_operators = incident
        self._clock = clock
        self._reporters: OrderedDict[str, _Reporter] = OrderedDict()
        self._waiting: deque[_Batch] = deque()
        self._put_bytes = 0
        self._written_bytes = 0  # counted by the store's thread alone

    def accepts(self, worker: str, message: m.Message) -> bool:
        """Whether a message is no notice beyond its worker's quota.

        One of a failed checkpoint counts always: it may answer SAVE.  Called for every report, so
        that what was dropped is told even if nothing more is.
        """
        self._tell(worker)
        if not isinstance(message, m.Notice) or message.event == "checkpoint_failed":
            return True
        allowed = self._reporter(worker).notices.takes(1, self._clock())
        if not allowed:
            self._drop(worker, NOTICES, 1)
        return allowed

    def output(self, worker: str, message: m.JobOutput, payload: bytes) -> None:
        """Have the lines of a JOB_OUTPUT written, as many as the worker may have."""
        reporter, now = self._reporter(worker), self._clock()
        room = max(0, int(reporter.lines.left(now)))
        kept = first_lines(payload, room, max(0, int(reporter.line_bytes.left(now))))
        reporter.lines.spend(len(kept), now)
        reporter.line_bytes.spend(sum(map(_counted, kept)), now)
        lines = [line[:LINE_BYTES].decode("utf-8", "replace") for line in kept]
        left_out = payload.count(b"\n") + 1 - len(kept)
        if left_out:
            self._drop(worker, LINES, left_out)
            limit = f"more than {self._lines_per_s:g} a second"
            lines.append(f"... {left_out} lines dropped: {limit}")
        for begin in range(0, len(lines), LINES_AT_ONCE):
            self._put(message.job, message.rank, worker, lines[begin : begin + LINES_AT_ONCE])

    def _reporter(self, worker: str) -> _Reporter:
        known = self._reporters.pop(worker, None) or _Reporter(self._lines_per_s)
        self._reporters[worker] = known
        while len(self._reporters) > MAX_REPORTERS:
            name, _ = self._reporters.popitem(last=False)
            for kind in (LINES, NOTICES):
                self.dropped.pop((name, kind), None)
        return known

    # --- writing -------------------------------------------------------------------------------

    def _put(self, job: str, rank: int, worker: str, lines: list[str]) -> None:
        size_bytes = sum(map(len, lines)) + _OF_A_LINE * len(lines)
        if self._put_bytes - self._written_bytes + size_bytes > MAX_WAITING_BYTES:
            self._drop(worker, LINES, len(lines))
            return
        self._put_bytes += size_bytes
        self._waiting.append(_Batch(job, rank, worker, lines, size_bytes))
        self._thread.later(self._write, turn=Turn.PATIENT)

    def _write(self) -> None:
        """Write one batch; in the store's thread."""
        batch = self._waiting.popleft()
        self._written_bytes += batch.size_bytes
        self._store.add_lines(batch.job, batch.rank, batch.worker, batch.lines)

    # --- what was dropped ----------------------------------------------------------------------

    def _drop(self, worker: str, kind: str, count: int) -> None:
        self.dropped[worker, kind] += count
        self._reporter(worker).untold[kind] += count
        self._tell(worker)

    def _tell(self, worker: str) -> None:
        """Tell operators what was dropped, at most once in a while."""
        reporter, now = self._reporters.get(worker), self._clock()
        if reporter is None or not reporter.untold or now - reporter.told_s < TELL_EVERY_S:
            return
        counts, reporter.untold, reporter.told_s = reporter.untold, Counter(), now
        what = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        why = f"{worker} reports more than its quota; dropped: {what}"
        self._tell_operators("share_exceeded", why, worker=worker, **counts)


def first_lines(payload: bytes, most_lines: int, most_bytes: int) -> list[bytes]:
    """The first lines, up to a number; the last of them is the one that exceeds `most_bytes`.

    The rest is not split into lines, whatever its size.
    """
    if not most_lines or most_bytes <= 0:
        return []
    kept: list[bytes] = []
    for line in payload.split(b"\n", most_lines)[:most_lines]:
        kept.append(line)
        most_bytes -= _counted(line)
        if most_bytes <= 0:
            break
    return kept


def _counted(line: bytes) -> int:
    return min(len(line), LINE_BYTES)
