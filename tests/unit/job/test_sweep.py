"""Sweep files: what is valid, what is not, and how that is said."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.errors import JobSpecError
from dtd.job.sweep import SweepSpec, read_sweep, stored_sweep

BASE = {"job": {"name": "d", "task": "digits", "epochs": 1, "global_batch_size": 64}}
RANGE = {"low": 0.001, "high": 1.0, "log": True}


def read(space: Any = None, base: Any = None, **table: Any) -> SweepSpec:
    given = {"optimizer.lr": RANGE} if space is None else space
    sweep = {"metric": "accuracy", **table}
    return read_sweep({"sweep": sweep, "space": given, "base": base or BASE}, source="S.toml")


def problems(*arguments: Any, **more: Any) -> str:
    with pytest.raises(JobSpecError) as caught:
        read(*arguments, **more)
    return "\n".join(caught.value.problems)


def test_a_grid_has_every_combination_once() -> None:
    space = {
        "optimizer.lr": {"choices": [0.1, 0.2]},
        "job": {"epochs": {"low": 1, "high": 3}},
        "train": {"clip_norm": {"low": 0.5, "high": 1.5, "step": 0.5}},
    }
    spec = read(space, method="grid", trials=1000)
    assert spec.trials == 18
    found = [tuple(spec.combination(number).values()) for number in range(18)]
    assert len(set(found)) == 18
    assert found[0] == (0.1, 1, 0.5)
    assert found[-1] == (0.2, 3, 1.5)
    assert read(space, method="grid", trials=5).trials == 5
    assert read(trials=7).trials == 7


def test_what_was_valid_once_is_read_although_it_is_not_any_more() -> None:
    spec = read({"optimizer.lr": {"choices": [0.1, 0.2]}}, method="grid")
    assert stored_sweep(spec.to_mapping()) == spec
    written = spec.to_mapping()
    written["base"]["optimizer"]["gone"] = 1
    written["sweep"]["gone"] = 1
    written["space"]["optimizer.gone"] = {"low": 1, "high": 3, "log": False, "step": 1}
    with pytest.raises(JobSpecError):
        read_sweep(written, source="store")
    assert stored_sweep(written).trials == 6


def test_values_are_checked_with_the_fields_they_conflict_with() -> None:
    momentum = {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}}
    space = {"optimizer.momentum": {"choices": [0.5, 0.0]}}
    said = problems(space, base={**BASE, **momentum})
    assert "0.0 makes no valid job: [optimizer] nesterov: needs momentum above 0" in said
    steps = {"job.steps": {"choices": [2]}}
    local = {"strategy": {"name": "local_sgd", "inner_steps": 4}}
    assert "2 makes no valid job: [strategy] inner_steps" in problems(steps, base={**BASE, **local})
    inside = {"task.a.b": {"choices": [1]}}
    said = problems(inside, base={**BASE, "task": {"a": 5}})
    assert "is within a setting of the job that is no table" in said
    assert "must be a name" in problems({"task.0": {"choices": [1]}})
    assert read({"task.a.b": {"choices": [1]}}, base={**BASE, "task": {"a": {"c": 1}}})


def test_settings_that_are_nested_too_deeply_are_none() -> None:
    deep: dict[str, Any] = {"choices": [1]}
    for _ in range(2000):
        deep = {"a": deep}
    assert "[space]" in problems({"task": deep})


@pytest.mark.parametrize("step", [5e-324, 1e-12])
def test_a_step_that_gives_too_many_values_is_refused(step: float) -> None:
    space = {"optimizer.lr": {"low": 0.0, "high": 1.0, "step": step}}
    assert "step gives more than 1000000000 values" in problems(space, method="grid")


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(JobSpecError) as caught:
        read_sweep({"sweep": {"metrik": "x", "trials": 0}, "spac": {}, "base": {}}, source="S")
    said = "\n".join(caught.value.problems)
    for one in ('did you mean "space"?', 'did you mean "metric"?', "trials: must", "[base]"):
        assert one in said
    with pytest.raises(JobSpecError, match="must be a map"):
        read_sweep(3, source="S")
    with pytest.raises(JobSpecError, match="must be a table"):
        read_sweep({"sweep": 3}, source="S")


def test_trials_may_take_a_range_of_workers() -> None:
    base = {**BASE, "elastic": {"min_workers": 2}}
    elastic = read(base=base, workers_per_trial="1-4").job_of("t", {}).elastic
    assert (elastic.workers, elastic.min_workers) == ("1-4", 1)
    assert 'or a range such as "2-6", not "4"' in problems(workers_per_trial="4")
    assert "must begin with the least" in problems(workers_per_trial="4-1")
