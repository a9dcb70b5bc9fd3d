"""Decides the course of a sweep: which trial begins, how one has ended, when the sweep ends.

Which settings a trial gets, and whether it is pruned, is asked of Optuna
(`dtd.sweeps.advisor`); this file decides everything else.  Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dtd.cluster.transitions import JobState
from dtd.job.sweep import Scalar, SweepTable
from dtd.rules import did_you_mean

MAX_POINTS: Final = 1000
"""Evaluations that are remembered of one trial."""


class TrialState(enum.StrEnum):
    """State of a trial."""

    CHOSEN = "chosen"
    RUNNING = "running"
    PRUNING = "pruning"
    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN: Final = frozenset({TrialState.CHOSEN, TrialState.RUNNING, TrialState.PRUNING})
"""States of a trial that has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial, as it is written down.

    Attributes:
        number: counted from 0.
        params: its settings.
        state: its state.
        job: id of its job; empty until it is submitted.
        value: the metric at its end, or when it was pruned; None if there is none.
        reason: why it failed or was pruned.
        points: (step, metric) of its evaluations.
    """

    number: int
    params: Mapping[str, Scalar]
    state: TrialState = TrialState.CHOSEN
    job: str = ""
    value: float | None = None
    reason: str = ""
    points: tuple[tuple[int, float], ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Begin:
    """A trial of this number begins."""

    number: int


@dataclass(frozen=True, slots=True)
class Submit:
    """A trial that was chosen is submitted."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class End:
    """The sweep ends: "done", "failed" or "cancelled"."""

    state: str
    reason: str = ""


def next_action(
    trials: Sequence[Trial], table: SweepTable, *, count: int, cancelled: bool
) -> Begin | Submit | End | None:
    """Return the sweep's next action; None: it waits for a trial.

    Args:
        trials: all so far, by number.
        table: how the sweep is done.
        count: how many trials there are at most.
        cancelled: whether the operator has cancelled the sweep.
    """
    still = [one for one in trials if one.state in OPEN]
    why = "" if cancelled else _why_hopeless(trials, table)
    if cancelled or why:
        if any(one.job for one in still):
            return None
        return End("cancelled", "by the operator") if cancelled else End("failed", why)
    chosen = next((one for one in still if not one.job), None)
    if chosen is not None:
        return Submit(chosen)
    if len(trials) < count and len(still) < table.parallel:
        return Begin(len(trials))
    if still:
        return None
    if best(trials, table.direction) is None:
        return End("failed", "no trial was completed")
    return End("done")


def _why_hopeless(trials: Sequence[Trial], table: SweepTable) -> str:
    """Why to stop: the last trials have all failed; empty if that is not so.

    Cancelled ones say nothing; among them are those that are cancelled because it stops.
    """
    ended = [one for one in trials if one.state not in OPEN | {TrialState.CANCELLED}]
    last = ended[-table.max_failures :]
    if len(last) < table.max_failures or any(one.state is not TrialState.FAILED for one in last):
        return ""
    return f"{len(last)} trials in a row have failed, the last one: {last[-1].reason}"


def to_cancel(
    trials: Sequence[Trial], table: SweepTable, *, cancelled: bool
) -> list[tuple[str, str]]:
    """(job, reason) of each trial that must not go on."""
    why = "its sweep is cancelled" if cancelled else ""
    if not cancelled and _why_hopeless(trials, table):
        why = "its sweep has failed"
    found = []
    for one in trials:
        if one.job and one.state is TrialState.PRUNING:
            found.append((one.job, one.reason))
        elif one.job and one.state is TrialState.RUNNING and why:
            found.append((one.job, why))
    return found


def evaluated(trial: Trial, step: int, metrics: Mapping[str, Any], metric: str) -> Trial | None:
    """The trial after an evaluation; None if that says nothing new about the metric."""
    value = _finite(metrics.get(metric))
    known = trial.state is not TrialState.RUNNING or (trial.points and step <= trial.points[-1][0])
    if value is None or known or len(trial.points) >= MAX_POINTS:
        return None
    return replace(trial, points=(*trial.points, (step, value)))


def ended(
    trial: Trial, state: JobState, reason: str, metrics: Mapping[str, Any], metric: str
) -> Trial:
    """The trial after its job has ended.

    Args:
        trial: as it was.
        state: the job's last state.
        reason: why the job failed.
        metrics: the job's last evaluation.
        metric: the name of the one that counts.
    """
    last = trial.points[-1][1] if trial.points else None
    if state is JobState.DONE:
        value = _finite(metrics.get(metric))
        if value is None:
            near = did_you_mean(metric, metrics)
            why = f"its evaluation has no finite {metric!r}{near}"
            return replace(trial, state=TrialState.FAILED, reason=why)
        return replace(trial, state=TrialState.DONE, value=value, reason="")
    if trial.state is TrialState.PRUNING:
        return replace(trial, state=TrialState.PRUNED, value=last)
    if state is JobState.CANCELLED:
        return replace(trial, state=TrialState.CANCELLED, value=last, reason=reason)
    return replace(trial, state=TrialState.FAILED, reason=reason)


def _finite(value: object) -> float | None:
    number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if number and isinstance(value, int | float) else None


def best(trials: Sequence[Trial], direction: str) -> Trial | None:
    """The completed trial with the best value, the first one of equals; None if there is none."""
    sign = 1.0 if direction == "minimize" else -1.0
    done = [one for one in trials if one.state is TrialState.DONE and one.value is not None]
    return min(done, key=lambda one: (sign * (one.value or 0.0), one.number), default=None)
