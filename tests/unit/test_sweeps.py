"""The course of a sweep: what comes next, how a trial has ended, and what Optuna is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.cluster.transitions import JobState
from dtd.job.sweep import SweepSpec, SweepTable, read_sweep
from dtd.sweeps import (
    OPEN,
    Advisor,
    Begin,
    End,
    Submit,
    Trial,
    TrialState,
    ended,
    next_action,
    to_cancel,
)

TABLE = SweepTable(metric="accuracy", direction="maximize", parallel=2, max_failures=2)


def trial(number: int, state: TrialState = TrialState.RUNNING, **more: Any) -> Trial:
    values = {"job": f"j-{number}", "params": {}, **more}
    return Trial(number=number, state=state, **values)


def action(*trials: Trial, count: int = 4, cancelled: bool = False) -> object:
    return next_action(trials, TABLE, count=count, cancelled=cancelled)


def test_failures_in_a_row_end_it_and_the_others_are_cancelled() -> None:
    failed = [trial(n, TrialState.FAILED, reason=f"why {n}") for n in (0, 1)]
    why = "2 trials in a row have failed, the last one: why 1"
    assert action(*failed) == End("failed", why)
    assert action(*failed, trial(2)) is None
    assert to_cancel([*failed, trial(2)], TABLE, cancelled=False) == [
        ("j-2", "its sweep has failed")
    ]
    stopped = trial(1, TrialState.CANCELLED)
    later = replace(failed[1], number=2)
    assert action(failed[0], stopped, later) == End("failed", why)  # and does not go on after that
    between = trial(1, TrialState.DONE, value=0.1)
    others = [failed[0], between, replace(failed[1], number=2)]
    assert action(*others) == Begin(3)
    assert to_cancel([*others, trial(3)], TABLE, cancelled=False) == []


@pytest.mark.parametrize(
    ("before", "state", "metrics", "after", "value"),
    [
        (TrialState.RUNNING, JobState.DONE, {"accuracy": 0.9}, TrialState.DONE, 0.9),
        (TrialState.PRUNING, JobState.DONE, {"accuracy": 0.9}, TrialState.DONE, 0.9),
        (TrialState.RUNNING, JobState.DONE, {"accurate": 0.9}, TrialState.FAILED, None),
        (TrialState.PRUNING, JobState.CANCELLED, {}, TrialState.PRUNED, 0.5),
        (TrialState.RUNNING, JobState.CANCELLED, {}, TrialState.CANCELLED, 0.5),
        (TrialState.RUNNING, JobState.FAILED, {}, TrialState.FAILED, None),
    ],
)
def test_how_a_trial_ends(
    before: TrialState,
    state: JobState,
    metrics: dict[str, float],
    after: TrialState,
    value: float | None,
) -> None:
    made = ended(trial(0, before, points=((3, 0.5),)), state, "why", metrics, "accuracy")
    assert (made.state, made.value) == (after, value)


@given(
    ends=st.lists(st.sampled_from(sorted(set(TrialState) - OPEN)), min_size=1, max_size=30),
    count=st.integers(1, 20),
    parallel=st.integers(1, 5),
)
def test_every_sweep_ends_and_stays_within_its_bounds(
    ends: list[TrialState], count: int, parallel: int
) -> None:
    table = SweepTable(metric="x", parallel=parallel)
    trials: list[Trial] = []
    outcomes = iter(ends * count)
    for _ in range(10 * count):
        made = next_action(trials, table, count=count, cancelled=False)
        running = [one for one in trials if one.state in OPEN]
        assert len(trials) <= count
        assert len(running) <= parallel
        if isinstance(made, End):
            assert not running
            return
        if isinstance(made, Begin):
            trials.append(Trial(number=made.number, params={}))
        elif isinstance(made, Submit):
            number = made.trial.number
            trials[number] = replace(made.trial, job=f"j-{number}", state=TrialState.RUNNING)
        else:
            first = running[0]
            state = next(outcomes)
            value = 1.0 if state is TrialState.DONE else None
            trials[first.number] = replace(first, state=state, value=value)
    raise AssertionError("it does not end")


# --- Optuna --------------------------------------------------------------------------------------


BASE = {"job": {"name": "d", "task": "digits", "epochs": 1, "global_batch_size": 64}}
SPACE = {
    "optimizer.lr": {"low": 0.001, "high": 1.0, "log": True},
    "job.epochs": {"choices": [1, 2]},
}


def spec(space: Any = None, **table: Any) -> SweepSpec:
    sweep = {"metric": "accuracy", "direction": "maximize", "seed": 7, **table}
    return read_sweep({"sweep": sweep, "space": space or SPACE, "base": BASE}, source="S")


def run_trials(advisor: Advisor, count: int, first: int = 0) -> list[Trial]:
    """Trials one after another, each as good as its number."""
    trials = []
    for number in range(first, first + count):
        params = advisor.choose(number)
        points = ((10, 0.1 * number), (20, 0.1 * number))
        for evaluation, (_step, value) in enumerate(points, start=1):
            advisor.reported(number, evaluation, value)
        ended = Trial(
            number=number, params=params, state=TrialState.DONE, value=0.1 * number, points=points
        )
        advisor.ended(ended)
        trials.append(ended)
    return trials


@pytest.mark.parametrize("method", ["random", "tpe", "grid"])
def test_it_goes_on_after_a_restart_as_it_would_have(method: str) -> None:
    space = (
        {"optimizer.lr": {"choices": [n / 10 for n in range(1, 9)]}} if method == "grid" else None
    )
    one = Advisor(spec(space, method=method), [])
    before = run_trials(one, 6)
    other = Advisor(spec(space, method=method), before)
    assert run_trials(one, 2, first=6) == run_trials(other, 2, first=6)
    found = one.importance()
    assert set(found) == set(space or SPACE)
    assert sum(found.values()) == pytest.approx(1.0)
