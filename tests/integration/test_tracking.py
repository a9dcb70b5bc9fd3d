"""Jobs in a real MLflow server, which is dead at first: training does not notice.

The server is a large package with requirements of its own, so it is not in the environment of the
tests: DTD_TEST_MLFLOW names the command `mlflow` of another one (`python3 -m venv V; V/bin/pip
install mlflow; DTD_TEST_MLFLOW=V/bin/mlflow`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.wire import messages as m

pytestmark = pytest.mark.integration
tracking = pytest.importorskip("mlflow.tracking", reason="needs the package mlflow-skinny")

MLFLOW = os.environ.get("DTD_TEST_MLFLOW", "")
USER, PASSWORD = "marker-user", "marker-password"
PATIENCE_S = 120.0
STEPS = 32


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def daemons(start_daemons, port):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTD_MLFLOW", f"http://127.0.0.1:{port}")
        patch.setenv("DTD_MLFLOW_EXPERIMENT", "tests of tracking")
        patch.setenv("MLFLOW_TRACKING_USERNAME", USER)
        patch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        patch.setenv("DTD_WANDB", "offline")
        return start_daemons(1)


def log_of(daemons: Any) -> str:
    return str(daemons.child("coordinator").log_path.read_text())


@pytest.fixture(scope="module")
def trained_without(daemons) -> str:
    """A job that was trained while no server was there."""
    job = daemons.submit("job.epochs=4")
    assert daemons.wait(job)["state"] == "done"
    return str(job)


def test_training_does_not_notice_a_dead_server(daemons, trained_without, port) -> None:
    event = daemons.await_event("tracking_failed")
    assert "do not reach mlflow, training continues" in event["message"]
    assert "Connection refused" in event["message"]
    told = log_of(daemons)
    assert "tracking_failed" in told
    for secret in (USER, PASSWORD, str(port)):
        assert secret not in told.replace(f'"pid": {port}', "")


def test_the_same_job_is_in_a_file_for_wandb(daemons, trained_without) -> None:
    pytest.importorskip("wandb", reason="needs the package wandb")
    until = time.monotonic() + PATIENCE_S
    content = b""
    while b"final/steps" not in content and time.monotonic() < until:
        files = daemons.directory.rglob(f"wandb/offline-run-*/run-{trained_without}.*.wandb")
        content = b"".join(file.read_bytes() for file in files)
    for word in (b"train/loss", b"eval/accuracy", b"optimizer.lr", b"final/eval_accuracy"):
        assert word in content


@pytest.fixture(scope="module")
def server(daemons, trained_without, port, tmp_path_factory) -> Iterator[Any]:
    """An MLflow server, and a client of it."""
    if not MLFLOW:
        pytest.skip("set DTD_TEST_MLFLOW to the command of an MLflow server")
    place: Path = tmp_path_factory.mktemp("mlflow")
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    what = ["--backend-store-uri", f"sqlite:///{place}/db"]
    what += ["--artifacts-destination", str(place / "artifacts")]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [MLFLOW, "server", *where, *what],
            stdout=log,
            stderr=log,
            cwd=place,
            start_new_session=True,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
    try:
        daemons.await_event("tracking_resumed")  # the coordinator tries until it is there
        yield tracking.MlflowClient(f"http://127.0.0.1:{port}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


def run_of(client: Any, job: str, ready: Callable[[Any], bool]) -> Any:
    """The run of a job once it is as it shall be; the server is asked until then."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        experiment = client.get_experiment_by_name("tests of tracking")
        runs = client.search_runs([experiment.experiment_id], f"tags.`dtd.job` = '{job}'")
        if runs and ready(runs[0]):
            (run,) = runs
            return run
    raise AssertionError(f"no such run of {job}")


def is_finished(run: Any) -> bool:
    return bool(run.info.status == "FINISHED")


def test_what_waited_for_the_server_arrives(daemons, server, trained_without) -> None:
    run = run_of(server, trained_without, is_finished)
    shown = daemons.ask(m.ShowJob(job=trained_without))
    assert run.info.run_name == trained_without
    assert run.data.params["optimizer.name"] == shown["spec"]["optimizer"]["name"]
    assert run.data.params["job.epochs"] == "4"
    assert run.data.tags["dtd.task"] == shown["task"]
    assert run.data.tags["dtd.identity"]
    losses = server.get_metric_history(run.info.run_id, "train/loss")
    assert max(one.step for one in losses) == shown["step"]
    assert run.data.metrics["final/eval_accuracy"] == shown["result"]["eval_accuracy"]
    evaluated = server.get_metric_history(run.info.run_id, "eval/accuracy")
    assert max(one.step for one in evaluated) == shown["step"]


def test_a_job_is_one_run_although_the_coordinator_starts_again(daemons, server) -> None:
    gates = daemons.hold(STEPS // 2)
    job = daemons.submit("job.epochs=4", gates=gates)
    run_of(server, job, lambda run: "train/loss" in run.data.metrics)
    daemons.child("coordinator").signal_group(signal.SIGKILL)
    daemons.child("coordinator").wait(PATIENCE_S)
    daemons.start_again()
    gates.open(0)
    assert daemons.wait(job)["state"] == "done"
    run = run_of(server, job, is_finished)
    steps = {one.step for one in server.get_metric_history(run.info.run_id, "train/loss")}
    assert min(steps) < STEPS // 2 < max(steps) == daemons.ask(m.ShowJob(job=job))["step"]


def test_a_cancelled_job_is_a_killed_run(daemons, server) -> None:
    gates = daemons.hold(8)
    job = daemons.submit("job.epochs=4", gates=gates)
    run_of(server, job, lambda run: "train/loss" in run.data.metrics)
    daemons.ask(m.CancelJob(job=job))
    gates.open(0)
    assert daemons.wait(job)["state"] == "cancelled"
    assert run_of(server, job, lambda run: run.info.status == "KILLED")
