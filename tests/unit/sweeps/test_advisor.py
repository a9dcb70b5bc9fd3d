"""What Optuna is asked: the same trials lead to the same choice, and bad ones are pruned."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from dtd.errors import RequestRefused
from dtd.job.sweep import SweepSpec, read_sweep
from dtd.sweeps.advisor import Advisor
from dtd.sweeps.course import Trial, TrialState

pytest.importorskip("optuna")

BASE = {"job": {"name": "d", "task": "digits", "epochs": 1, "global_batch_size": 64}}
SPACE = {
    "optimizer.lr": {"low": 0.001, "high": 1.0, "log": True},
    "job.epochs": {"choices": [1, 2]},
}


def spec(space: Any = None, **table: Any) -> SweepSpec:
    sweep = {"metric": "accuracy", "direction": "maximize", "seed": 7, **table}
    return read_sweep({"sweep": sweep, "space": space or SPACE, "base": BASE}, source="S")


def course(advisor: Advisor, count: int, first: int = 0) -> list[Trial]:
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
    before = course(one, 6)
    other = Advisor(spec(space, method=method), before)
    assert course(one, 2, first=6) == course(other, 2, first=6)
    found = one.importance()
    assert set(found) == set(space or SPACE)
    assert sum(found.values()) == pytest.approx(1.0)


def test_another_seed_chooses_otherwise() -> None:
    assert Advisor(spec(), []).choose(0) != Advisor(spec(seed=8), []).choose(0)


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


def test_what_has_failed_teaches_nothing() -> None:
    advisor = Advisor(spec({"optimizer.lr": {"low": 0.5, "high": 0.9}}), [])
    params = advisor.choose(0)
    advisor.ended(Trial(number=0, params=params, state=TrialState.FAILED))
    assert advisor.importance() == {}


def test_ranges_of_integers_stay_integers() -> None:
    space = {
        "job.epochs": {"low": 1, "high": 9, "step": 2},
        "job.global_batch_size": {"low": 8, "high": 64, "log": True},
    }
    chosen = [Advisor(spec(space), []).choose(number) for number in range(9)]
    assert {one["job.epochs"] for one in chosen} <= {1, 3, 5, 7, 9}
    assert all(isinstance(one["job.global_batch_size"], int) for one in chosen)


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(RequestRefused, match="no Optuna") as refused:
        Advisor(spec(), [])
    assert "pip install optuna" in str(refused.value.remedy)
