"""Injected faults and their outcomes, from the daemons' logs alone.  Pure."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scripts.cluster.log_timeline import Commit, Line


@dataclass(slots=True, kw_only=True)
class Injection:
    """A fault.

    Attributes:
        kind: its name among `scripts.chaosrun.faults.KINDS`.
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
_EVICTIONS: Final = frozenset({"worker_lost", "worker_barred"})
_EVIDENCE: Final = frozenset({*_EVICTIONS, "ring_broken", "link_bad", "worker_away"})
_ENDING: Final = "generation_ending"
_JOINS: Final = " joins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one fault; None is never, or does not apply.

    Attributes:
        injection: the fault.
        detected_s: until the coordinator knew, or ended the generation.
        evicted_s: until a victim was lost, unreachable, or known to have a dead link.
        reason: the coordinator's words for that.
        recovered_s: until the others' next committed step, less one median step.
        steps_lost: committed steps that nobody held any more afterwards.
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
    """Return the outcome of each fault.

    Args:
        injections: oldest first.
        commits: of all workers.
        decisions: the coordinator's lines.
        quiet: kinds that need not end a generation.
    """
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
    if line.event == _ENDING and line.at_s <= ending_until_s:
        return _JOINS not in str(line.fields.get("message", ""))
    named = {line.fields.get("worker"), line.fields.get("suspect")}
    return _evicts(line, injection) or (
        line.event in _EVIDENCE and bool(named & {*injection.victims})
    )


def _commits_again(injection: Injection, commits: Sequence[Commit], *, quiet: bool) -> float | None:
    """When the others committed in a newer generation; when at all if there need not be one."""
    start = bisect.bisect_right(commits, injection.at_s, key=lambda commit: commit.at_s)
    first: float | None = None
    everybody = injection.kind == "all"
    for commit in commits[start:]:
        if commit.at_s > injection.at_s + LATE_S:
            break
        if commit.worker in injection.victims and not everybody and len(injection.victims) == 1:
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


# --- returns of workers ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """One worker's way back.

    Attributes:
        worker: its name.
        imported_s: from process start to the end of its imports.
        joined_s: from the end of its imports to its first committed step.
        paused_s: the others' longest time between commits meanwhile, less a median step.
        received_bytes: the state that it got from them.
    """

    worker: str
    imported_s: float
    joined_s: float
    paused_s: float
    received_bytes: int


def rejoins(
    starts: Sequence[tuple[str, int, float]],
    imports: Sequence[tuple[int, float]],
    commits: Sequence[Commit],
    received: Sequence[Line],
) -> list[Rejoin]:
    """Every start of a worker that led to a committed step while others trained.

    Args:
        starts: (worker, pid, time).
        imports: when each process had imported everything, as (pid, time).
        commits: of all workers.
        received: `state_received` lines.
    """
    commits = sorted(commits, key=lambda commit: commit.at_s)
    median_s = statistics.median([one.step_s for one in commits]) if commits else 0.0
    found: list[Rejoin] = []
    for name, pid, at_s in starts:
        ended_s = min((s for other, _, s in starts if other == name and s > at_s), default=math.inf)
        first = next(
            (one for one in commits if one.worker == name and at_s < one.at_s < ended_s), None
        )
        if first is None:
            continue
        done = [done_s for one, done_s in imports if one == pid and at_s < done_s <= first.at_s]
        if not done:
            continue
        imported_at_s = done[-1]
        state = [x for x in received if x.daemon == name and at_s < x.at_s <= first.at_s]
        others = [one.at_s for one in commits if one.worker != name and one.job == first.job]
        if not state or not others or others[0] > at_s:
            continue
        found.append(
            Rejoin(
                worker=name,
                imported_s=imported_at_s - at_s,
                joined_s=first.at_s - imported_at_s,
                paused_s=max(0.0, _gap_before(others, first.at_s) - median_s),
                received_bytes=int(state[-1].fields.get("bytes", 0)),
            )
        )
    return found


def _gap_before(times_s: Sequence[float], at_s: float) -> float:
    """The time between the last commit before a joiner's first step and the one before it.

    The first step of the new generation is committed by all within a moment: what lies before the
    moment is the pause.
    """
    distinct = [
        at for index, at in enumerate(times_s) if not index or at - times_s[index - 1] > 1e-3
    ]
    end = bisect.bisect_right(distinct, at_s)
    return max((distinct[i] - distinct[i - 1] for i in range(max(1, end - 8), end)), default=0.0)
