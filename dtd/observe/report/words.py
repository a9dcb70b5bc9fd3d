"""Sentences that follow from a report's figures.  Pure.

Each function looks at one thing and says nothing where nothing is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from dtd.job.tables import lower_is_better
from dtd.observe.report.facts import Curve, Facts, Point, World
from dtd.text import figures
from dtd.text.shown import counted

HIDDEN_BELOW: Final = 0.05
LIMITING_FROM: Final = 0.2
"""Shares of a step in which training waits for communication."""

WAITS_FOR_ROWS_FROM: Final = 0.1
GOOD_EFFICIENCY: Final = 0.85
SLOWER_BY: Final = 1.15
FLAT_BELOW: Final = 0.01
_PART: Final = 0.05
"""Share of the steps at each end over which a loss is averaged."""


def interpretation(facts: Facts, against: Facts | None = None) -> list[str]:
    """Return sentences about the figures, the most important first."""
    if not facts.has_trained:
        return [never_trained(facts)]
    found = [outcome(facts), *convergence(facts), *throughput(facts), *communication(facts)]
    found += [*workers(facts), *recoveries(facts)]
    if against is not None:
        found += list(comparison(facts, against))
    return found


def never_trained(facts: Facts) -> str:
    """Return the reason why there is nothing to report."""
    why = f": {facts.job['reason']}" if facts.job["reason"] else ""
    if facts.job["step"]:
        return (
            f"{facts.id} has trained {counted(facts.job['step'], 'step')}, and their"
            " figures are not known: it is older than the store of figures, or was displaced"
            " from it."
        )
    return f"{facts.id} never trained a step; it {_state(facts)}{why}."


def outcome(facts: Facts) -> str:
    """Return how far the job came, and how it ended."""
    job = facts.job
    took = ""
    if job["started_s"] and job["ended_s"]:
        took = f" in {figures.duration(job['ended_s'] - job['started_s'])}"
    total = job["total_steps"]
    of = f" of {total}" if total and total != job["step"] else ""
    why = f" ({job['reason']})" if job["reason"] and job["state"] != "done" else ""
    return f"The job {_state(facts)}{why} after {job['step']}{of} steps{took}."


def _state(facts: Facts) -> str:
    state = str(facts.job["state"])
    ends = {"done": "finished", "failed": "failed", "cancelled": "was cancelled"}
    return ends.get(state, f"is {state}")


def convergence(facts: Facts) -> Iterator[str]:
    """Yield the course of the loss, and the best evaluation."""
    loss = [point for point in facts.curves["loss"] if math.isfinite(point.mean)]
    if len(loss) < len(facts.curves["loss"]):
        yield "The loss was not a finite number in some steps: the job diverged at times."
    if len(loss) > 1:
        first, last = ends(loss)
        verb = "fell" if last < first else "rose"
        yield (
            f"The training loss {verb} from {figures.number(first)} to {figures.number(last)}"
            " (means of the first and the last twentieth of the steps)."
            + (_flatness(loss) if last < first else " It did not learn with these settings.")
        )
    for name in sorted(facts.without_numbers):
        yield f"{name} was not a finite number in any evaluation."
    for name, curve in sorted(facts.evaluations.items()):
        best, newest = best_of(facts, name), curve[-1]
        at = "" if best.begin == newest.begin else f"; the last was {figures.number(newest.mean)}"
        yield f"Best {name}: {figures.number(best.mean)}, at step {best.begin}{at}."


def ends(curve: Curve) -> tuple[float, float]:
    """Means of a curve over its first and its last part."""
    part = max(1, round(len(curve) * _PART))
    return _mean(curve[:part]), _mean(curve[-part:])


def best_of(facts: Facts, name: str) -> Point:
    """The best point of an evaluation's metric, by the job's own mode if it names this metric."""
    kept = facts.job["spec"].get("checkpoint", {})
    mode = kept.get("best_mode", "") if kept.get("best_metric") == name else ""
    pick = min if lower_is_better(name, mode) else max
    return pick(facts.evaluations[name], key=lambda point: point.mean)


def _flatness(loss: Curve) -> str:
    fifth = max(2, len(loss) // 5)
    before, after = _mean(loss[-fifth : -fifth // 2]), _mean(loss[-fifth // 2 :])
    if before <= 0 or abs(before - after) / before >= FLAT_BELOW:
        return ""
    return " Over the last fifth it changed by less than 1 %: more of the same gains little."


def throughput(facts: Facts) -> Iterator[str]:
    """Yield the rates, and the gain of more workers."""
    if not facts.worlds:
        return
    rates = [
        f"{figures.rate(one.rows_per_s)} with {counted(one.workers, 'worker')}"
        for one in facts.worlds
    ]
    yield f"It trained {', '.join(rates)} (rows, while training)."
    if len(facts.worlds) > 1:
        yield scaling(facts.worlds[0], facts.worlds[-1])


def scaling(few: World, many: World) -> str:
    """Return the gain of a larger number of workers, and its cost."""
    factor = many.rows_per_s / few.rows_per_s
    share = factor * few.workers / many.workers
    head = (
        f"{many.workers} workers are {factor:.2f} times as fast as {few.workers}"
        f" (efficiency {_percent(share)})"
    )
    if share >= GOOD_EFFICIENCY:
        return f"{head}: more workers pay off."
    exposed = (many.exposed_s or 0.0) - (few.exposed_s or 0.0)
    lost = many.step_s - few.step_s * few.workers / many.workers
    if lost > 0 and exposed >= lost / 2:
        return f"{head}: most of the loss is time in which training waits for communication."
    return (
        f"{head}: waiting for communication explains less than half of the loss; the batch is small"
        " for so many workers, or they share processors, memory or a disk."
    )


def communication(facts: Facts) -> Iterator[str]:
    """Yield the hidden share of communication, and whether it limits the job."""
    step_s, exposed_s, comm_s = (facts.mean(name) for name in ("step_s", "exposed_s", "comm_s"))
    if not step_s or exposed_s is None:
        return
    if all(one.workers == 1 for one in facts.worlds) and facts.worlds:
        yield "One worker exchanges nothing: there is no communication to hide."
        return
    share = exposed_s / step_s
    hidden = ""
    if comm_s:
        hidden = f"; {_percent(hidden_share(exposed_s, comm_s))} of the exchange is hidden"
    if share < HIDDEN_BELOW:
        verdict = "it does not limit this job"
    elif share < LIMITING_FROM:
        verdict = "it costs something, but does not limit this job"
    else:
        verdict = "it limits this job: see `dtdctl doctor JOB.toml` for codecs that send less"
    if comm_s and exposed_s > comm_s:
        verdict += ", and much of it is waiting for workers that still compute"
    yield f"Training waits for communication in {_percent(share)} of a step{hidden}: {verdict}."


def hidden_share(exposed_s: float, comm_s: float) -> float:
    """Return the share of the exchange that goes on behind computing.

    Training may wait for longer than anything is exchanged: for workers that are still computing.
    """
    return max(0.0, 1 - exposed_s / comm_s)


def workers(facts: Facts) -> Iterator[str]:
    """Stragglers, and waiting for rows."""
    own = {
        one.name: sum(one.parts.get(part, 0.0) for part in ("data_s", "compute_s", "optimizer_s"))
        for one in facts.workers
        if one.step_s
    }
    if len(own) > 1:
        typical = median(own.values())
        slowest = max(own, key=lambda name: own[name])
        if own[slowest] > SLOWER_BY * typical > 0:
            yield (
                f"{slowest} needs {_percent(own[slowest] / typical - 1)} more time of its own for a"
                " step than the median worker: the others wait for it."
            )
    step_s, data_s = facts.mean("step_s"), facts.mean("data_s")
    if step_s and data_s and data_s / step_s >= WAITS_FOR_ROWS_FROM:
        yield (
            f"Rank 0 waits for its rows in {_percent(data_s / step_s)} of a step: more"
            " `train.loader_workers`, or a faster disk, would help."
        )


def recoveries(facts: Facts) -> Iterator[str]:
    """Yield the failures, and their cost."""
    events = [one for one in facts.incidents if one["kind"] == "recovered"]
    lost = Counter(one["worker"] for one in facts.incidents if one["kind"] == "worker_lost")
    if not events:
        if lost:
            yield f"Lost workers: {', '.join(sorted(lost))}."
        elif facts.job["state"] != "failed":
            yield "No failures."
        return
    times = [one["details"].get("recovered_after_s") for one in events]
    known = [one for one in times if one is not None]
    redone = sum(one["details"].get("steps_redone") or 0 for one in events)
    longest = f", the longest in {figures.span(max(known))}" if known else ""
    yield (
        f"It recovered {_times(len(events))}{longest}; {counted(redone, 'step')} redone,"
        f" {counted(facts.job['steps_lost'], 'committed step')} lost."
    )


def comparison(facts: Facts, other: Facts) -> Iterator[str]:
    """Yield a comparison with another job."""
    if not other.has_trained:
        yield f"Nothing to compare with: {never_trained(other)}"
        return
    if facts.worlds and other.worlds:
        mine, theirs = facts.worlds[-1], other.worlds[-1]
        factor = mine.rows_per_s / theirs.rows_per_s
        share = factor * theirs.workers / mine.workers
        yield (
            f"Against {other.id} ({counted(theirs.workers, 'worker')}):"
            f" {factor:.2f} times its rate with {counted(mine.workers, 'worker')},"
            f" efficiency {_percent(share)}."
        )
    yield from _same_loss(facts, other)
    for name in sorted(facts.evaluations.keys() & other.evaluations.keys()):
        here, there = (best_of(one, name).mean for one in (facts, other))
        yield (
            f"Best {name}: {figures.number(here)}, {other.id} {figures.number(there)}"
            f" (difference {here - there:+.4g})."
        )


def _same_loss(facts: Facts, other: Facts) -> Iterator[str]:
    target = max(ends(one.curves["loss"])[1] for one in (facts, other))
    if not math.isfinite(target):
        return
    mine, theirs = (reached(one, target) for one in (facts, other))
    if mine is None or theirs is None:
        return
    yield (
        f"A loss of {figures.number(target)} was reached at step {mine[0]} after"
        f" {figures.duration(mine[1])}; by {other.id} at step {theirs[0]} after"
        f" {figures.duration(theirs[1])}."
    )


def reached(facts: Facts, target: float) -> tuple[int, float] | None:
    """The step at which the loss was first so low, and the seconds since the first step."""
    times = {point.begin: point.mean for point in facts.curves.get("unix_s", ())}
    if not times:
        return None
    begun = min(times.values())
    for point in facts.curves["loss"]:
        if point.mean <= target and point.begin in times:
            return point.end, times[point.begin] - begun
    return None


def _mean(curve: Sequence[Point]) -> float:
    count = sum(point.values for point in curve)
    return sum(point.values * point.mean for point in curve) / count


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if abs(share) >= 0.095 else f"{100 * share:.1f} %"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
