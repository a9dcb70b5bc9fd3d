"""Figures and environments that workers report."""

from __future__ import annotations

import json
from typing import Any

from dtd.cluster import figures
from dtd.cluster.figures import heard, told
from dtd.wire import messages as m

# --- workers' reports of a job's result become values that JSON can hold -------------------------


NAN, INF = float("nan"), float("inf")


def test_what_is_not_finite_is_null_wherever_it_is() -> None:
    said = {"a": NAN, "b": [INF, 1, (2.5, -INF)], "c": {"d": NAN, "e": "nan"}, "f": None}
    kept = figures.finite(said)
    assert kept == {"a": None, "b": [None, 1, [2.5, None]], "c": {"d": None, "e": "nan"}, "f": None}
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept


def test_a_finished_job_holds_figures_that_json_can_represent(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    driver.say("a", m.Evaluated(job="j-1", step=9, metrics={"loss": NAN, "accuracy": 0.5}))
    said = {"steps": 10, "train_loss": NAN, "ended_early": "it is enough"}
    driver.finished("a", generation=number, result=said)
    assert (job.result["train_loss"], job.result["ended_early"]) == (None, "it is enough")
    assert job.result["metrics"] == {"loss": None, "accuracy": 0.5}
    json.dumps(job.result, allow_nan=False)


def test_what_is_told_is_heard() -> None:
    said = {"torch": "2.14.0+cpu", "processor": "A = B", "libc": ""}
    assert heard(told(said)) == said
