"""What pages ask of a sweep again and again is computed once."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.coordinator.sweeps import controller
from dtd.coordinator.sweeps.controller import Sweeps
from dtd.job.sweep import read_sweep, stored_sweep
from dtd.sweeps.course import Trial, TrialState

BASE = {"job": {"name": "d", "task": "digits", "epochs": 1, "global_batch_size": 64}}
SPEC = read_sweep(
    {
        "sweep": {"metric": "accuracy"},
        "space": {"optimizer.lr": {"low": 0.1, "high": 1.0}},
        "base": BASE,
    },
    source="S",
).to_mapping()
ROW = {
    "number": 1,
    "spec": SPEC,
    "package": "",
    "state": "running",
    "reason": "",
    "begun": 1,
    "began_s": 1.0,
    "ended_s": None,
}


def trial(number: int, state: TrialState, value: float | None = None) -> Trial:
    return Trial(number=number, params={"optimizer.lr": 0.5}, state=state, value=value)


class Tables:
    """One sweep, and the trials that a test gives it."""

    def __init__(self) -> None:
        self.written: list[Trial] = []

    def sweep(self, number: int) -> dict[str, Any] | None:
        return ROW if number == 1 else None

    def listed(self) -> list[dict[str, Any]]:
        return [ROW]

    def trials(self, number: int) -> list[Trial]:
        return list(self.written)


class Host:
    def __init__(self) -> None:
        self.store: Any = self
        self.sweeps = Tables()

    async def in_store(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


async def test_importance_is_computed_when_a_trial_was_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def importance(_spec: object, trials: list[Trial]) -> dict[str, float]:
        asked.append(len(trials))
        return {"optimizer.lr": 1.0}

    monkeypatch.setattr(controller, "_importance", importance)
    host: Any = Host()
    sweeps, written = Sweeps(host, host), host.sweeps.written
    assert (await sweeps.show("sweep-1"))["importance"] == {}
    written += [trial(0, TrialState.DONE, 0.5), trial(1, TrialState.RUNNING)]
    for _ in range(2):
        shown = await sweeps.show("sweep-1")
    assert (asked, shown["importance"]) == ([2], {"optimizer.lr": 1.0})
    written.append(trial(2, TrialState.PRUNED, 0.1))
    assert (await sweeps.show("sweep-1"))["begun"] == 3
    assert asked == [2]
    written[1] = trial(1, TrialState.DONE, 0.6)
    await sweeps.show("sweep-1")
    assert asked == [2, 3]


async def test_a_sweep_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(mapping: dict[str, Any]) -> Any:
        read.append(mapping["sweep"]["metric"])
        return stored_sweep(mapping)

    monkeypatch.setattr(controller, "stored_sweep", counted)
    host: Any = Host()
    sweeps = Sweeps(host, host)
    for _ in range(3):
        (row,) = (await sweeps.listing())["sweeps"]
    assert (row["id"], row["planned"], read) == ("sweep-1", 20, ["accuracy"])
