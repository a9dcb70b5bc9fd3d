"""The course of a sweep: which trial begins, how one has ended, and when the sweep ends.

Which settings a trial gets, and whether it is pruned, is asked of Optuna (`Advisor`); functions
decide everything else.  Pure, but for the import of Optuna at the first use of an advisor.
"""

from __future__ import annotations

import enum
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.job.sweep import Scalar, Setting, SweepSpec, SweepTable
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
    """Return the sweep's next action; None: it waits for a trial."""
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
    why = "its sweep was cancelled" if cancelled else ""
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
    """The trial after its job has ended."""
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


# --- Optuna --------------------------------------------------------------------------------------
#
# The study is in memory; after a restart it is made again of the trials that are written down.
# Each trial is chosen by a sampler with a seed of its own (the sweep's and the trial's number), so
# that the same trials lead to the same choice.


STARTUP_TRIALS: Final = 5
"""The median pruner compares with at least so many trials; TPE begins with as many random ones."""


def optuna_module() -> Any:
    """Optuna.

    Raises:
        RequestRefused: it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise RequestRefused(
            f"the coordinator has no Optuna ({error})",
            remedy="install it where dtd-coordinator runs: pip install optuna",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Advisor:
    """The study of one sweep.

    Raises:
        RequestRefused: Optuna is not installed.
    """

    def __init__(self, spec: SweepSpec, trials: Sequence[Trial]) -> None:
        self._optuna = optuna_module()
        self._spec = spec
        self._space = {one.name: self._distribution(one) for one in spec.space}
        self._study = self._optuna.create_study(
            direction=spec.sweep.direction, pruner=self._pruner()
        )
        self._open: dict[int, Any] = {}
        for trial in trials:
            self._take(trial)

    def choose(self, number: int) -> dict[str, Scalar]:
        """The settings of the next trial."""
        if self._spec.sweep.method == "grid":
            self._study.enqueue_trial(self._spec.combination(number))
        samplers, seed = self._optuna.samplers, self._spec.sweep.seed * 10_007 + number
        if self._spec.sweep.method == "tpe":
            sampler = samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True
            )
        else:
            sampler = samplers.RandomSampler(seed=seed)
        self._study.sampler = sampler
        trial = self._study.ask(self._space)
        self._open[number] = trial
        return dict(trial.params)

    def reported(self, number: int, evaluation: int, value: float) -> bool:
        """Note an evaluation, counted from 1; returns whether the trial is to be pruned."""
        trial = self._open.get(number)
        if trial is None:
            return False
        trial.report(value, evaluation)
        return self._spec.sweep.pruner != "none" and bool(trial.should_prune())

    def ended(self, trial: Trial) -> None:
        """Note how a trial has ended."""
        states = self._optuna.trial.TrialState
        asked = self._open.pop(trial.number, None)
        if asked is None:
            return
        if trial.state is TrialState.DONE:
            self._study.tell(asked, trial.value)
        elif trial.state is TrialState.PRUNED:
            self._study.tell(asked, state=states.PRUNED)
        else:
            self._study.tell(asked, state=states.FAIL)

    def importance(self) -> dict[str, float]:
        """Return the importance of each setting for the metric, in sum 1; empty if not known."""
        done = [one for one in self._study.trials if one.state.name == "COMPLETE"]
        if len({one.value for one in done}) < 2:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
        try:
            found = self._optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        except (ValueError, RuntimeError, ZeroDivisionError):
            return {}
        return {name: float(value) for name, value in found.items()}

    def _take(self, trial: Trial) -> None:
        """Take over a trial that was chosen before this process began."""
        self._study.enqueue_trial(dict(trial.params))
        asked = self._study.ask(self._space)
        self._open[trial.number] = asked
        for evaluation, (_step, value) in enumerate(trial.points, start=1):
            asked.report(value, evaluation)
        if trial.state not in OPEN:
            self.ended(trial)

    def _distribution(self, one: Setting) -> Any:
        kinds = self._optuna.distributions
        if one.choices:
            return kinds.CategoricalDistribution(one.choices)
        if one.whole:
            step = 1 if one.log else int(one.step)
            return kinds.IntDistribution(int(one.low), int(one.high), log=one.log, step=step)
        return kinds.FloatDistribution(one.low, one.high, log=one.log, step=one.step or None)

    def _pruner(self) -> Any:
        pruners, warm = self._optuna.pruners, self._spec.sweep.warmup_evaluations
        if self._spec.sweep.pruner == "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=max(1, warm))
        if self._spec.sweep.pruner == "median":
            return pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=warm)
        return pruners.NopPruner()
