"""The MLflow sink against MLflow itself, on files instead of a server."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dtd.observe.sinks.entries import Began, Ended, Figures
from dtd.observe.sinks.mlflow import MlflowSink, make

pytestmark = pytest.mark.skipif(
    find_spec("mlflow") is None, reason="needs the package mlflow-skinny"
)


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.delenv(name, raising=False)  # and put back what the sink sets


@pytest.fixture
def sink(tmp_path: Path) -> MlflowSink:
    return make({"address": (tmp_path / "runs").as_uri(), "experiment": "trials"})


def began(**settings: str) -> Began:
    return Began(
        job="j-1", identity="abc", unix_s=100.5, settings=settings, tags={"dtd.task": "digits"}
    )


def figures(step: int, **scalars: float) -> Figures:
    return Figures(job="j-1", step=step, unix_s=100.0 + step, scalars=scalars)


def ended(state: str = "done") -> Ended:
    return Ended(
        job="j-1", identity="abc", unix_s=200.0, state=state, result={"steps": 3.0, "loss": 0.25}
    )


def runs(sink: MlflowSink) -> list[Any]:
    found = sink._client.get_experiment_by_name("trials")
    return list(sink._client.search_runs([found.experiment_id]))


def test_a_job_is_a_run(sink) -> None:
    sink.begin(began(**{"optimizer.lr": "0.1"}))
    sink.figures("j-1", [figures(1, loss=0.5), figures(2, loss=math.nan), figures(3, loss=0.25)])
    sink.figures("j-1", [figures(3, **{"eval/a*b\u202e": 1.0})])
    sink.end(ended())
    (run,) = runs(sink)
    assert (run.info.run_name, run.info.status) == ("j-1", "FINISHED")
    assert (run.info.start_time, run.info.end_time) == (100_500, 200_000)
    assert run.data.params == {"optimizer.lr": "0.1"}
    assert run.data.tags["dtd.job"] == "j-1"
    history = sink._client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.timestamp) for one in history] == [(1, 101000), (2, 102000), (3, 103000)]
    assert math.isnan(history[1].value)
    assert run.data.metrics["eval/a_b_"] == 1.0
    assert run.data.metrics["final/loss"] == 0.25
