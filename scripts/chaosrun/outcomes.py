"""What came of each fault, told by the daemons' logs and the moment of injection alone.  Pure."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from scripts.chaosrun.injection import Injection
from scripts.chaosrun.log_tail import Line
from scripts.chaosrun.scene import Commit

LATE_S: Final = 60.0
"""What happens later than this has another cause."""
P99: Final = 0.99
_EVICTIONS: Final = frozenset({"worker_lost", "worker_barred"})
_EVIDENCE: Final = frozenset({*_EVICTIONS, "ring_broken", "link_bad", "worker_away"})
_ENDING: Final = "generation_ending"
_JOINS: Final = " joins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one fault; None is never, or does not apply.

    Attributes:
        injection: the fault.
        detected_s: until the coordinator knew, or ended the generation.
        evicted_s: until a victim was lost, barred, or known to have a dead link.
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
    """What came of each fault.

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
