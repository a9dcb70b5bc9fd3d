"""The course of a sweep: what comes next, how a trial has ended, and which one is best."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.cluster.transitions import JobState
from dtd.job.sweep import SweepTable
from dtd.sweeps.course import (
    MAX_POINTS,
    OPEN,
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


def test_what_was_chosen_is_submitted_before_anything_else() -> None:
    chosen = trial(1, TrialState.CHOSEN, job="")
    assert action(trial(0), chosen) == Submit(chosen)


def test_a_sweep_ends_with_its_last_trial() -> None:
    done = trial(0, TrialState.DONE, value=0.5)
    assert action(done, count=1) == End("done")
    pruned = trial(0, TrialState.PRUNED, value=0.5)
    assert action(pruned, count=1) == End("failed", "no trial was completed")


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


def test_the_operator_cancels_it() -> None:
    chosen = trial(1, TrialState.CHOSEN, job="")
    assert action(trial(0), chosen, cancelled=True) is None
    assert to_cancel([trial(0), chosen], TABLE, cancelled=True) == [
        ("j-0", "its sweep is cancelled")
    ]
    assert action(chosen, cancelled=True) == End("cancelled", "by the operator")


def test_a_trial_that_is_pruned_is_cancelled_for_that_reason() -> None:
    pruning = trial(0, TrialState.PRUNING, reason="worse")
    assert to_cancel([pruning], TABLE, cancelled=True) == [("j-0", "worse")]


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


def test_a_metric_that_is_not_there_is_told_with_the_nearest() -> None:
    made = ended(trial(0), JobState.DONE, "", {"acuracy": 0.9}, "accuracy")
    assert made.reason == "its evaluation has no finite 'accuracy'; did you mean \"acuracy\"?"
    assert ended(trial(0), JobState.CANCELLED, "why", {}, "accuracy").value is None


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
