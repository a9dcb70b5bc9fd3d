"""Checks of a chaos run's records.  Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.chaosrun.harness import Growth
from scripts.chaosrun.outcomes import Injection
from scripts.cluster.log_timeline import Commit, Line
from scripts.cluster.networked import Death

LONGEST_STALL_S: Final = 10.0
PLANNED_OUTAGES: Final = ("all", "orphan")
"""Faults during which nobody can train, for lack of workers or of a coordinator."""
EXCUSE_S: Final = 20.0
"""So long after a fault is over, what happens to its victims is still because of it."""
BEFORE_S: Final = 0.2
"""Clocks are the same, but lines are written a moment after what they tell of."""
GROWN_SHARE: Final = 1.15
GROWN_BYTES: Final = 32 * 1024 * 1024
GROWN_COUNT: Final = 8
_SHOWN: Final = 4
_EVICTIONS: Final = ("worker_lost", "worker_barred", "worker_refused")
_USUAL_ENDS: Final = ("is done", "is cancelled", "is left", "is unknown", "served another")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold.

    Attributes:
        name: in words.
        failures: each in words; empty when it holds.
    """

    name: str
    failures: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether there is nothing against it."""
        return not self.failures

    def in_words(self) -> str:
        """One line."""
        if self.holds:
            return f"ok    {self.name}"
        more = len(self.failures) - _SHOWN
        shown = "; ".join(self.failures[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        return f"FAIL  {self.name}: {shown}"


def check(name: str, failures: Iterable[str]) -> Check:
    """A check from what speaks against it."""
    return Check(name=name, failures=tuple(failures))


def jobs_ended_well(jobs: Sequence[Mapping[str, Any]], last: str) -> Check:
    """All are done; the last one may have been cancelled by the run."""
    return check(
        "every job is done",
        (
            f"{job['id']} is {job['state']}: {job['reason']}"
            for job in jobs
            if job["state"] != "done" and not (job["id"] == last and job["state"] == "cancelled")
        ),
    )


def replicas_equal(
    jobs: Sequence[Mapping[str, Any]], commits: Sequence[Commit], injections: Sequence[Injection]
) -> Check:
    """The digests at the end, and the loss and gradient norm of every step, on every worker.

    After a total outage steps may be done again, and by fewer workers: in another order of sums.
    """
    outages = [one.at_s for one in injections if one.kind == "all"]

    def failures() -> Iterator[str]:
        for job in jobs:
            digests = (job["result"] or {}).get("replica_digests", {})
            if len(set(digests.values())) != 1:
                yield f"{job['id']} ended with the digests {digests}"
        seen: dict[tuple[str, int, int], Commit] = {}
        for one in commits:
            era = sum(one.at_s > at_s for at_s in outages)
            first = seen.setdefault((one.job, era, one.step), one)
            if (first.loss, first.grad_norm) != (one.loss, one.grad_norm):
                which = f"step {one.step} of {one.job}"
                yield f"{which} is not the same on {first.worker} and {one.worker}"

    return check("replicas are equal, at every step and at the end", failures())


def rows_exact(jobs: Sequence[Mapping[str, Any]]) -> Check:
    """The jobs' own ledgers."""
    return check(
        "every row of every epoch exactly once",
        (
            f"{job['id']}: {key} = {(job['result'] or {}).get(key)}"
            for job in jobs
            for key in ("rows_missing", "rows_repeated")
            if (job["result"] or {}).get(key) != 0
        ),
    )


def steps_kept(
    commits: Sequence[Commit], decisions: Sequence[Line], injections: Sequence[Injection]
) -> Check:
    """No step is committed and then lost or done again, unless everything was killed at once."""
    outages = [one for one in injections if one.kind == "all"]

    def excused(from_s: float, to_s: float) -> bool:
        return any(from_s - BEFORE_S <= one.at_s <= to_s for one in outages)

    def failures() -> Iterator[str]:
        by_worker: dict[tuple[str, str], Commit] = {}
        for one in sorted(commits, key=lambda commit: commit.at_s):
            before = by_worker.get((one.job, one.worker))
            if (
                before is not None
                and before.step >= one.step
                and not excused(before.at_s, one.at_s)
            ):
                yield f"{one.worker} committed step {one.step} of {one.job} after {before.step}"
            by_worker[one.job, one.worker] = one
        for line in decisions:
            if line.event == "steps_lost" and not any(
                one.at_s - BEFORE_S <= line.at_s <= one.back_s for one in outages
            ):
                yield str(line.fields.get("message", "steps lost"))

    return check("no committed step is lost", failures())


def no_long_stall(
    commits: Sequence[Commit], injections: Sequence[Injection], *, until_s: float
) -> Check:
    """Time between committed steps of one job, planned total outages left out."""

    def failures() -> Iterator[str]:
        for before, gap_s in _gaps(commits, injections):
            if gap_s > LONGEST_STALL_S:
                yield f"{gap_s:.1f} s after step {before.step} of {before.job}"
        last_s = max((one.at_s for one in commits), default=-math.inf)
        if until_s - last_s > LONGEST_STALL_S:
            yield f"nothing was committed in the last {until_s - last_s:.1f} s"

    return check(f"no stall of more than {LONGEST_STALL_S:g} s", failures())


def longest_stall_s(commits: Sequence[Commit], injections: Sequence[Injection]) -> float:
    """The longest time between two commits of one job without a planned total outage."""
    return max((gap_s for _before, gap_s in _gaps(commits, injections)), default=0.0)


def _gaps(
    commits: Sequence[Commit], injections: Sequence[Injection]
) -> Iterator[tuple[Commit, float]]:
    """Times after commits until the next one of the same job, but for planned outages."""
    outages = [one.at_s for one in injections if one.kind in PLANNED_OUTAGES]
    for _job, own in itertools.groupby(sorted(commits, key=_by_job), key=lambda one: one.job):
        for before, after in itertools.pairwise(own):
            if not any(before.at_s - 1 <= at_s <= after.at_s for at_s in outages):
                yield before, after.at_s - before.at_s


def nobody_innocent(
    injections: Sequence[Injection],
    deaths: Sequence[Death],
    decisions: Sequence[Line],
    lives: Sequence[Line],
) -> Check:
    """Only victims of faults are evicted, die or start afresh."""
    guilty = {pid for one in injections for pid in one.pids}

    def failures() -> Iterator[str]:
        for death in deaths:
            if death.pid not in guilty:
                yield f"{death.name} (pid {death.pid}) ended by itself with {death.exit_code}"
        for line in decisions:
            worker = str(line.fields.get("worker", ""))
            if line.event in _EVICTIONS and not excused(injections, worker, line.at_s):
                yield f"{line.event}: {line.fields.get('message')}"
        for line in lives:
            reason = str(line.fields.get("reason", ""))
            usual = any(word in reason for word in _USUAL_ENDS)
            if line.event != "worker_ends" or line.fields.get("how") != "restart" or usual:
                continue
            if not excused(injections, line.daemon, line.at_s):
                yield f"{line.daemon} started afresh: {reason}"

    return check("only faulted workers are evicted or restarted", failures())


def excused(injections: Sequence[Injection], worker: str, at_s: float) -> bool:
    """Whether what happened to a worker is the consequence of a fault."""
    return any(
        worker in one.victims
        and one.at_s - BEFORE_S <= at_s <= min(one.back_s, one.over_s + LONGEST_STALL_S) + EXCUSE_S
        for one in injections
    )


def nothing_grows(growths: Sequence[Growth]) -> Check:
    """Memory and descriptors in the last third of the run against the first."""

    def failures() -> Iterator[str]:
        for one in growths:
            before, after = one.resident_bytes
            if after > before * GROWN_SHARE and after > before + GROWN_BYTES:
                yield f"{one.name}: {before / 1e6:.0f} MB became {after / 1e6:.0f} MB"
            for what in ("descriptors", "threads"):
                first, last = getattr(one, what)
                if last > first + GROWN_COUNT:
                    yield f"{one.name}: {first:g} {what} became {last:g}"

    return check("memory and descriptors are flat", failures())


def nothing_left(pids: Sequence[int]) -> Check:
    """No process of the run outlives it."""
    return check("no process is left over", (f"process {pid}" for pid in pids))


def no_errors(errors: Sequence[Line], unread: Sequence[tuple[str, str]]) -> Check:
    """Check the errors that daemons log, and tracebacks that they print beside their log."""

    def failures() -> Iterator[str]:
        for line in errors:
            what = str(line.fields.get("exception") or line.fields.get("error") or "")
            last = what.strip().splitlines()[-1:] or [""]
            yield f"{line.daemon}: {line.event} {last[0]}"
        for name, text in unread:
            if "Traceback" in text:
                yield f"{name}: {text}"

    return check("no daemon logged an error", failures())


def _by_job(commit: Commit) -> tuple[str, float]:
    return commit.job, commit.at_s
