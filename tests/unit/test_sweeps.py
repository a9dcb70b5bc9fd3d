"""The course of a sweep: what comes next, how a trial has ended, and what Optuna is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.cluster.transitions import JobState
from dtd.job.sweep import SweepSpec, SweepTable, read_sweep
from dtd.sweeps import (
    MAX_POINTS,
    OPEN,
    Advisor,
    Begin,
    End,
    Submit,
    Trial,
    TrialState,
    best,
    ended,
    evaluated,
    next_action,
    to_cancel,
)

TABLE = SweepTable(metric="accuracy", direction="maximize", parallel=2, max_failures=2)


def trial(number: int, state: TrialState = TrialState.RUNNING, **more: Any) -> Trial:
    values = {"job": f"j-{number}", "params": {}, **more}
    return Trial(number=number, state=state, **values)


def action(*trials: Trial, count: int = 4, cancelled: bool = False) -> object:
    return next_action(trials, TABLE, count=count, cancelled=cancelled)


def test_trials_begin_as_long_as_there_is_room() -> None:
    assert action() == Begin(0)
    assert action(trial(0)) == Begin(1)
    assert action(trial(0), trial(1)) is None
    assert action(trial(0), trial(1, TrialState.DONE, value=0.5)) == Begin(2)
    assert action(trial(0), trial(1, TrialState.DONE, value=0.5), count=2) is None


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


def test_evaluations_are_kept_once_each() -> None:
    first = evaluated(trial(0), 10, {"accuracy": 0.5}, "accuracy")
    assert first is not None
    assert first.points == ((10, 0.5),)
    assert evaluated(first, 10, {"accuracy": 0.6}, "accuracy") is None
    assert evaluated(first, 20, {"loss": 0.6}, "accuracy") is None
    assert evaluated(first, 20, {"accuracy": math.nan}, "accuracy") is None
    assert evaluated(trial(0, TrialState.PRUNING), 20, {"accuracy": 1}, "accuracy") is None
    full = trial(0, points=tuple((step, 0.0) for step in range(MAX_POINTS)))
    assert evaluated(full, MAX_POINTS, {"accuracy": 1}, "accuracy") is None


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


def test_the_best_one_is_the_first_of_equals() -> None:
    done = [trial(n, TrialState.DONE, value=value) for n, value in enumerate((0.1, 0.3, 0.3))]
    assert best(done, "maximize") is done[1]
    assert best(done, "minimize") is done[0]
    assert best([trial(0)], "minimize") is None


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


@pytest.mark.parametrize("pruner", ["median", "asha", "none"])
def test_what_does_worse_is_pruned(pruner: str) -> None:
    advisor = Advisor(spec(pruner=pruner), [])
    good = [advisor.choose(number) for number in range(6)]
    for number in range(6):
        assert not any(advisor.reported(number, at, 0.9 + 0.01 * number) for at in (1, 2, 4))
        advisor.ended(Trial(number=number, params=good[number], state=TrialState.DONE, value=0.9))
    advisor.choose(6)
    assert any(advisor.reported(6, at, 0.1) for at in (1, 2, 3, 4)) == (pruner != "none")
    advisor.ended(Trial(number=6, params={}, state=TrialState.PRUNED))
    assert not advisor.reported(6, 5, 0.1)
    advisor.ended(Trial(number=6, params={}, state=TrialState.PRUNED))


def test_ranges_of_integers_stay_integers() -> None:
    space = {
        "job.epochs": {"low": 1, "high": 9, "step": 2},
        "job.global_batch_size": {"low": 8, "high": 64, "log": True},
    }
    chosen = [Advisor(spec(space), []).choose(number) for number in range(9)]
    assert {one["job.epochs"] for one in chosen} <= {1, 3, 5, 7, 9}
    assert all(isinstance(one["job.global_batch_size"], int) for one in chosen)
