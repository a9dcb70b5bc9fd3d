"""Rate limits on what each worker may report: lines, notices, figures and checkpoints.

A worker with a runaway job, or a malicious one, must neither fill the store nor keep operators and
other workers waiting.  Reports beyond its share are dropped and counted; the counts are metrics,
and each worker's are reported periodically (protocol.md, "Limits").  Pure: clock values in, kept
reports out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dtd.limits.rates import Allowance

LINES: Final = "lines"
NOTICES: Final = "notices"
FIGURES: Final = "figures"
CHECKPOINTS: Final = "checkpoints"

BURST_S: Final = 4.0
"""Burst of lines, in seconds' worth: a worker that was away sends them at once."""

LINE_BYTES: Final = 4 * 4096
"""Longest line; the rest is cut off, as by workers."""

MEAN_LINE_BYTES: Final = 1024
NOTICES_PER_S: Final = 1.0
NOTICES_BURST: Final = 32.0
FIGURES_PER_S: Final = 50.0
FIGURES_BURST: Final = 250.0
CHECKPOINTS_PER_S: Final = 10.0
"""Each is stored durably, which waits for the disk."""

CHECKPOINTS_BURST: Final = 100.0
MAX_REPORTERS: Final = 512
TELL_EVERY_S: Final = 60.0
"""Seconds between events about a worker that continues to exceed its share."""

MARK_EVERY_S: Final = 1.0
"""Seconds between marks of dropped lines in the output."""


@dataclass(slots=True)
class _Reporter:
    """One worker's allowances, and its dropped reports since the last notice."""

    lines: Allowance
    line_bytes: Allowance
    notices: Allowance
    figures: Allowance
    checkpoints: Allowance
    unmarked: int = 0
    marked_s: float = float("-inf")
    untold: Counter[str] = field(default_factory=Counter)
    told_s: float = float("-inf")


class Quotas:
    """The rate limits of all workers of one coordinator.

    Args:
        lines_per_s: output lines per second of one worker.

    Attributes:
        dropped: number of dropped reports, by (worker, kind).
    """

    def __init__(self, lines_per_s: float) -> None:
        self._lines_per_s = lines_per_s
        self._reporters: OrderedDict[str, _Reporter] = OrderedDict()
        self.dropped: Counter[tuple[str, str]] = Counter()

    def lines(self, worker: str, payload: bytes, now: float) -> list[str]:
        """The lines of a JOB_OUTPUT that are kept; all later ones are counted as dropped."""
        reporter = self._reporter(worker)
        room = max(0, int(reporter.lines.left(now)))
        kept = first_lines(payload, room, max(0, int(reporter.line_bytes.left(now))))
        reporter.lines.spend(len(kept), now)
        reporter.line_bytes.spend(sum(map(_counted, kept)), now)
        left_out = payload.count(b"\n") + 1 - len(kept)
        if left_out:
            self.drop(worker, LINES, left_out)
        return [line[:LINE_BYTES].decode("utf-8", "replace") for line in kept]

    def allows(self, worker: str, kind: str, now: float) -> bool:
        """Whether one more report of a kind other than `LINES` is accepted; else it is counted."""
        reporter = self._reporter(worker)
        allowances = {
            NOTICES: reporter.notices,
            FIGURES: reporter.figures,
            CHECKPOINTS: reporter.checkpoints,
        }
        if allowances[kind].takes(1, now):
            return True
        self.drop(worker, kind, 1)
        return False

    def drop(self, worker: str, kind: str, count: int) -> None:
        """Count dropped reports."""
        reporter = self._reporter(worker)
        self.dropped[worker, kind] += count
        reporter.untold[kind] += count
        reporter.unmarked += count if kind == LINES else 0

    def is_marked(self, worker: str) -> bool:
        """Whether lines were dropped that the output does not mark yet."""
        return bool(self._reporter(worker).unmarked)

    def mark(self, worker: str, now: float) -> str:
        """The line that marks dropped ones; empty when there is none to write now."""
        reporter = self._reporter(worker)
        count = reporter.unmarked
        if not count or now - reporter.marked_s < MARK_EVERY_S:
            return ""
        reporter.unmarked, reporter.marked_s = 0, now
        return f"... {count} lines dropped: more than {self._lines_per_s:g} a second"

    def to_tell(self, now: float) -> Iterator[tuple[str, Counter[str]]]:
        """(worker, counts by kind) of the workers to report to the operator now."""
        for worker, reporter in self._reporters.items():
            if reporter.untold and now - reporter.told_s >= TELL_EVERY_S:
                told, reporter.untold = reporter.untold, Counter()
                reporter.told_s = now
                yield worker, told

    def look_again_at(self, now: float) -> float | None:
        """The earliest time at which something is to be marked or reported; None if nothing is."""
        moments = [
            max(now, since_s + every_s)
            for one in self._reporters.values()
            for waits, since_s, every_s in (
                (bool(one.unmarked), one.marked_s, MARK_EVERY_S),
                (bool(one.untold), one.told_s, TELL_EVERY_S),
            )
            if waits
        ]
        return min(moments, default=None)

    def _reporter(self, worker: str) -> _Reporter:
        known = self._reporters.get(worker)
        if known is None:
            rate = self._lines_per_s
            known = _Reporter(
                lines=Allowance(rate, rate * BURST_S),
                line_bytes=Allowance(rate * MEAN_LINE_BYTES, rate * MEAN_LINE_BYTES * BURST_S),
                notices=Allowance(NOTICES_PER_S, NOTICES_BURST),
                figures=Allowance(FIGURES_PER_S, FIGURES_BURST),
                checkpoints=Allowance(CHECKPOINTS_PER_S, CHECKPOINTS_BURST),
            )
            self._reporters[worker] = known
        self._reporters.move_to_end(worker)
        while len(self._reporters) > MAX_REPORTERS:
            name, _ = self._reporters.popitem(last=False)
            for kind in (LINES, NOTICES, FIGURES, CHECKPOINTS):
                self.dropped.pop((name, kind), None)
        return known


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
