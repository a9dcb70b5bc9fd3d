"""The judgement of a chaos run: faults, their outcomes, and the checks of all records.  Pure."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scripts.cluster.log_timeline import Commit, Line
from scripts.cluster.networked import Death

# --- faults and their outcomes --------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Injection:
    """A fault.

    Attributes:
        kind: its name among `KINDS`.
        victims: daemons that it may affect.
        at_s: when it began (seconds since the epoch).
        over_s: when its cause was removed; infinite while it lasts.
        back_s: when its victims had all recovered; infinite until then.
        generation: newest generation with one of the victims in it at that time; 0 is none.
        phase: the victim's phase, as far as its log tells.
        note: anything else worth telling.
        pids: processes that end because of it.
    """

    kind: str
    victims: tuple[str, ...]
    at_s: float
    over_s: float = math.inf
    back_s: float = math.inf
    generation: int = 0
    phase: str = ""
    note: str = ""
    pids: set[int] = field(default_factory=set)


LATE_S: Final = 60.0
"""Later events have another cause."""
P99: Final = 0.99
_EVICTIONS: Final = ("worker_lost", "worker_barred")
_EVIDENCE: Final = (*_EVICTIONS, "ring_broken", "link_bad", "worker_away")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one fault; None is never, or does not apply.

    Attributes:
        injection: the fault.
        detected_s: until the coordinator knew, or ended the generation.
        evicted_s: until a victim was lost, unreachable, or known to have a dead link.
        reason: the coordinator's words for that.
        recovered_s: until the others' next committed step, less one median step.
        steps_lost: committed steps that no worker held any more afterwards.
    """

    injection: Injection
    detected_s: float | None
    evicted_s: float | None
    reason: str
    recovered_s: float | None
    steps_lost: int


def outcomes(
    injections: Sequence[Injection],
    commits: Sequence[Commit],
    decisions: Sequence[Line],
    *,
    quiet: Collection[str],
) -> list[Outcome]:
    """Return the outcome of each fault; kinds that are `quiet` need not end a generation."""
    commits = sorted(commits, key=lambda commit: commit.at_s)
    median_s = statistics.median([commit.step_s for commit in commits]) if commits else 0.0
    found: list[Outcome] = []
    for index, one in enumerate(injections):
        later = [other.at_s for other in injections[index + 1 :]]
        until_s = min([one.at_s + LATE_S, *later[:1]])
        last_s = min(one.at_s + LATE_S, one.back_s)
        after = [line for line in decisions if one.at_s <= line.at_s <= last_s]
        evicted = next((line for line in after if _evicts(line, one)), None)
        ending_s = -math.inf if one.kind in quiet else until_s
        detected = next((line for line in after if _detects(line, one, ending_s)), None)
        again_s = _commits_again(one, commits, quiet=one.kind in quiet)
        found.append(
            Outcome(
                injection=one,
                detected_s=None if detected is None else detected.at_s - one.at_s,
                evicted_s=None if evicted is None else evicted.at_s - one.at_s,
                reason="" if evicted is None else str(evicted.fields.get("message", "")),
                recovered_s=None if again_s is None else max(0.0, again_s - one.at_s - median_s),
                steps_lost=_lost(decisions, one.at_s, until_s),
            )
        )
    return found


def _evicts(line: Line, injection: Injection) -> bool:
    if line.event == "link_bad":
        message = str(line.fields.get("message", ""))
        return any(victim in message for victim in injection.victims)
    return line.event in _EVICTIONS and line.fields.get("worker") in injection.victims


def _detects(line: Line, injection: Injection, ending_until_s: float) -> bool:
    if line.event == "generation_ending" and line.at_s <= ending_until_s:
        return " joins" not in str(line.fields.get("message", ""))
    named = {line.fields.get("worker"), line.fields.get("suspect")}
    return _evicts(line, injection) or (
        line.event in _EVIDENCE and bool(named & {*injection.victims})
    )


def _commits_again(injection: Injection, commits: Sequence[Commit], *, quiet: bool) -> float | None:
    """The others' first commit in a newer generation, or at all if there need not be one."""
    start = bisect.bisect_right(commits, injection.at_s, key=lambda commit: commit.at_s)
    first: float | None = None
    everything = injection.kind == "all"
    for commit in commits[start:]:
        if commit.at_s > injection.at_s + LATE_S:
            break
        if commit.worker in injection.victims and not everything and len(injection.victims) == 1:
            continue
        if quiet or commit.generation > injection.generation:
            return commit.at_s
        first = commit.at_s if first is None else first
    return first


def _lost(decisions: Iterable[Line], from_s: float, until_s: float) -> int:
    lost = (x for x in decisions if x.event == "steps_lost" and from_s <= x.at_s <= until_s)
    return sum(int(line.fields.get("steps_lost", 0)) for line in lost)


def spread(values: Iterable[float | None]) -> tuple[float, float, float] | None:
    """Median, 99th percentile and maximum of those that are there."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    at = min(len(known) - 1, math.ceil(P99 * len(known)) - 1)
    return statistics.median(known), known[at], known[-1]


# --- checks ---------------------------------------------------------------------------------------

LONGEST_STALL_S: Final = 10.0
PLANNED_OUTAGES: Final = ("all", "orphan")
"""Faults during which no worker can train, for lack of workers or of a coordinator."""
EXCUSE_S: Final = 20.0
"""So long after a fault is over, what happens to its victims is still because of it."""
BEFORE_S: Final = 0.2
"""Clocks are the same, but lines are written a moment after their events."""
GROWN_SHARE: Final = 1.15
GROWN_BYTES: Final = 32 * 1024 * 1024
GROWN_COUNT: Final = 8
_SHOWN: Final = 4
_USUAL_ENDS: Final = ("is done", "is cancelled", "is left", "is unknown", "served another")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition in words, and what speaks against it."""

    name: str
    failures: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        if self.holds:
            return f"ok    {self.name}"
        more = len(self.failures) - _SHOWN
        shown = "; ".join(self.failures[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        return f"FAIL  {self.name}: {shown}"


def check(name: str, failures: Iterable[str]) -> Check:
    """Make a check of its failures."""
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
    for _job, own in itertools.groupby(
        sorted(commits, key=lambda one: (one.job, one.at_s)), key=lambda one: one.job
    ):
        for before, after in itertools.pairwise(own):
            if not any(before.at_s - 1 <= at_s <= after.at_s for at_s in outages):
                yield before, after.at_s - before.at_s


def only_victims_suffer(
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
            if line.event in (*_EVICTIONS, "worker_refused") and not excused(
                injections, worker, line.at_s
            ):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at one daemon's process, `age_s` after it had begun its work."""

    name: str
    age_s: float
    resident_bytes: int
    descriptors: int
    threads: int


FIGURES: Final = ("resident_bytes", "descriptors", "threads")
SETTLED_S: Final = 45.0
"""A process that works for less long is still growing into its job."""

Growth = dict[str, dict[str, tuple[float, float]]]
"""By daemon and figure: the medians of the first and of the last third of a run."""


def growth(samples: Sequence[Sample]) -> Growth:
    """First against last third of each daemon's samples, young processes left out."""
    found: Growth = {}
    for name in sorted({sample.name for sample in samples}):
        own = [one for one in samples if one.name == name and one.age_s >= SETTLED_S]
        third = len(own) // 3
        if third:
            found[name] = {
                figure: (_middle(own[:third], figure), _middle(own[-third:], figure))
                for figure in FIGURES
            }
    return found


def _middle(samples: Sequence[Sample], figure: str) -> float:
    return float(statistics.median(getattr(sample, figure) for sample in samples))


def nothing_grows(growths: Growth) -> Check:
    """Memory and descriptors in the last third of the run against the first."""

    def failures() -> Iterator[str]:
        for name, figures in growths.items():
            before, after = figures["resident_bytes"]
            if after > before * GROWN_SHARE and after > before + GROWN_BYTES:
                yield f"{name}: {before / 1e6:.0f} MB became {after / 1e6:.0f} MB"
            for figure in ("descriptors", "threads"):
                first, last = figures[figure]
                if last > first + GROWN_COUNT:
                    yield f"{name}: {first:g} {figure} became {last:g}"

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
