"""Optuna's part in a sweep: trials' settings, pruning, and the importance of settings.

Optuna is imported with this file's first use, in the sweep's own thread, where all of this runs.
The study is in memory; after a restart it is made again of the trials that are written down.  Each
trial is chosen by a sampler with a seed of its own (the sweep's and the trial's number), so that
the same trials lead to the same choice.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from dtd.errors import RequestRefused
from dtd.job.sweep import Scalar, Setting, SweepSpec
from dtd.sweeps.course import OPEN, Trial, TrialState

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

    Args:
        spec: the sweep.
        trials: those that are written down, by number.

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
