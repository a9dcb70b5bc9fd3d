"""Real daemons, scraped while they train: figures agree with status, logs are JSON on stdout."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtd.address import Address
from dtd.ctl.main import run
from dtd.event_names import EVENTS, INCIDENTS
from dtd.observe.metrics.catalogue import BY_NAME
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

STEPS = 32
STOP_AT = 19
NEWEST_CHECKPOINT = 10
PATIENCE_S = 60.0
MAY_BE_ABSENT = {
    *("dtd_worker_gpu_use_ratio", "dtd_worker_gpu_memory_bytes"),
    *("dtd_certificate_expiry_timestamp_seconds", "dtd_job_evaluation"),
    "dtd_reports_dropped_total",
}


def scrape(address):
    """All samples of an endpoint by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, tuple(sample.labels[label] for label in BY_NAME[sample.name].labels)): (
                sample.value
            )
            for family in families
            for sample in family.samples
            if sample.name.startswith("dtd_")
        }


def log_of(daemons, name):
    """Lines of a daemon's log; torch says something, too, where it was not imported by a thread."""
    lines = daemons.child(name).log_path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def endpoint(daemons, name):
    said = [line for line in log_of(daemons, name) if line["event"] == "metrics_listening"]
    return Address(said[-1]["host"], said[-1]["port"])


@pytest.fixture(scope="module")
def daemons(start_daemons):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTD_METRICS", "127.0.0.1:0")
        patch.setenv("DTD_LOG_LEVEL", "debug")
        # On a busy machine too: a step that a second generation repeats is not where the gate is.
        patch.setenv("DTD_HEARTBEAT_TIMEOUT_S", str(PATIENCE_S))
        return start_daemons(2)


class Standing:
    """A job that stands at a gate, and what was seen of it there."""

    def __init__(self, daemons):
        # A checkpoint is told of with the first step after it is written, whenever that may be.
        self.gates = daemons.hold(STOP_AT - 2, STOP_AT + 1)
        self.job = daemons.submit("elastic.min_workers=2", gates=self.gates)
        newest = f"worker-*/checkpoints/{self.job}*/g*-s{NEWEST_CHECKPOINT:09d}/manifest.json"
        daemons.until(self.job, lambda: any(daemons.directory.glob(newest)))
        self.gates.open(0)
        daemons.until(self.job, lambda: self._stands(daemons))
        self.coordinator = scrape(endpoint(daemons, "coordinator"))
        self.workers = {name: scrape(endpoint(daemons, name)) for name in ("worker-0", "worker-1")}
        self.status = daemons.ask(m.GetStatus())

    def _stands(self, daemons):
        status = daemons.ask(m.GetStatus())
        here = scrape(endpoint(daemons, "coordinator"))
        steps = {worker["step"] for worker in status["workers"]}
        shown = {here.get(("dtd_worker_step", (f"worker-{rank}",))) for rank in range(2)}
        saved = here.get(("dtd_checkpoint_step", (self.job,)))
        return steps == shown == {STOP_AT} and saved == NEWEST_CHECKPOINT


@pytest.fixture(scope="module")
def standing(daemons):
    made = Standing(daemons)
    yield made
    made.gates.open(1)


@pytest.fixture
def ended(daemons, standing):
    """The job's id, when it has ended."""
    standing.gates.open(1)
    assert daemons.wait(standing.job)["state"] == "done"
    return standing.job


def test_the_coordinators_figures_are_those_of_status(standing):
    job, seen, name = standing.status["job"], standing.coordinator, (standing.job,)
    assert seen["dtd_job_step", name] == job["step"] == STOP_AT
    assert seen["dtd_job_planned_steps", name] == job["total_steps"] == STEPS
    assert seen["dtd_job_generation", name] == job["generation"]
    assert seen["dtd_job_world_size", name] == job["world_size"] == 2
    assert seen["dtd_job_epoch", name] == job["epoch"]
    assert seen["dtd_job_loss", name] == job["loss"]
    assert seen["dtd_job_samples_per_second", name] == pytest.approx(job["samples_per_s"])
    assert seen["dtd_job_learning_rate", name] > 0
    assert seen["dtd_job_gradient_norm", name] > 0
    assert seen["dtd_workers", ("running",)] == 2
    assert seen["dtd_checkpoints_total", name] >= 1
    assert seen["dtd_checkpoint_size_bytes", name] > 0
    assert seen["dtd_coordinator_uptime_seconds", ()] > 0
    assert seen["dtd_coordinator_uptime_seconds", ()] <= standing.status["coordinator"]["uptime_s"]
    assert seen["dtd_store_errors_total", ()] == 0
    assert seen["dtd_incidents_total", ("generation_running",)] == 1


def test_a_scrape_of_the_coordinator_has_each_workers_figures(standing):
    for worker in standing.status["workers"]:
        seen, name = standing.coordinator, (worker["name"],)
        assert seen["dtd_worker_step", name] == worker["step"]
        assert seen["dtd_worker_step_seconds", name] == worker["step_s"]
        assert seen["dtd_worker_compute_seconds", name] == worker["compute_s"]
        assert seen["dtd_worker_communication_seconds", name] == worker["comm_s"]
        assert seen["dtd_worker_exposed_communication_seconds", name] == worker["exposed_s"]
        assert seen["dtd_worker_resident_memory_bytes", name] > 1e6
        assert seen["dtd_worker_cpu_seconds_total", name] > 0
        for part, found in worker["memory"].items():
            labels = (worker["name"], part)
            assert seen["dtd_worker_part_memory_bytes", labels] == found["measured_bytes"]
        assert worker["memory"]["parameters"]["measured_bytes"] > 0
        assert worker["memory"]["activations"]["measured_bytes"] > 0
        assert seen["dtd_worker_learning_rate", name] > 0
        assert seen["dtd_worker_gradient_norm", name] > 0
        assert seen["dtd_worker_sent_bytes_total", name] > 0
        assert seen["dtd_worker_received_bytes_total", name] > 0
        assert seen["dtd_worker_restarts_total", name] == 0
        assert seen["dtd_worker_evictions_total", name] == 0


def test_each_link_has_its_figures(standing):
    seen = standing.coordinator
    for link in (("worker-0", "worker-1"), ("worker-1", "worker-0")):
        assert 0 < seen["dtd_link_round_trip_seconds", link] < PATIENCE_S
        assert seen["dtd_link_bytes_per_second", link] > 0


def test_a_workers_own_endpoint_says_the_same(standing):
    moving = ("cpu", "memory", "stalled", "age", "round_trip", "received", "gpu")  # beats go on
    for name, seen in standing.workers.items():
        for (metric, labels), value in seen.items():
            assert labels[0] == name
            if not any(word in metric for word in moving):
                assert standing.coordinator[metric, labels] == value


def test_nothing_in_the_catalogue_is_left_out(standing):
    shown = {name for name, _ in standing.coordinator}
    assert set(BY_NAME) - shown <= MAY_BE_ABSENT


def test_no_secret_and_only_known_events_are_logged(daemons, ended):
    for name in ("coordinator", "worker-0", "worker-1"):
        events = {line["event"] for line in log_of(daemons, name)}
        assert events <= set(EVENTS) | set(INCIDENTS)
    assert "step_committed" in {line["event"] for line in log_of(daemons, "worker-0")}


def test_curves_are_written(daemons, ended):
    directory = daemons.directory / "tensorboard" / ended
    (file,) = directory.iterdir()
    assert b"train/loss" in file.read_bytes()
    assert b"eval/accuracy" in file.read_bytes()


# --- where logs go ---------------------------------------------------------------------------


def test_logs_go_to_stdout_and_errors_that_end_the_start_to_stderr(tmp_path):
    module = [sys.executable, "-m", "dtd.coordinator.main"]
    words = [*module, "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = process.stdout.readline()
            again = subprocess.run(words, capture_output=True, check=False, timeout=PATIENCE_S)
        finally:
            process.terminate()
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert json.loads(first)["event"] == "coordinator_listening"
    assert json.loads(rest.splitlines()[-1])["event"] == "coordinator_stopped"
    assert errors == b""
    assert again.returncode == 78
    assert again.stdout == b""
    assert b"another coordinator uses" in again.stderr


def test_a_port_that_is_taken_ends_the_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "dtd.worker", "--state-dir", str(tmp_path)),
                *("--metrics", address),
            ],
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 78
    assert f"metrics: cannot listen on {address}" in done.stderr.decode()


def test_what_others_print_is_not_in_a_workers_log(tmp_path):
    """Libraries and child processes know descriptor 1 only; after a job it is stdout again."""
    script = (
        "import os, subprocess, sys\n"
        "import structlog\n"
        "from dtd.logs import configure_logging\n"
        "from dtd.host.streams import hand_over_streams, own_streams\n"
        "streams = own_streams()\n"
        "configure_logging('json', streams[0])\n"
        "subprocess.run(['echo', 'a library'], check=True)\n"
        "structlog.get_logger().info('hello')\n"
        "hand_over_streams(*streams)\n"
        "os.execv('/bin/echo', ['echo', 'next'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=PATIENCE_S
    )
    first, second = done.stdout.splitlines()
    assert (json.loads(first)["event"], second) == ("hello", b"next")
    assert done.stderr == b"a library\n"


def test_dtdctl_metrics_shows_every_step_as_it_was_logged(daemons, ended, capsys):
    logged = [
        line
        for name in ("worker-0", "worker-1")
        for line in log_of(daemons, name)
        if line["event"] == "step_committed" and line["job"] == ended and line["rank"] == 0
    ]
    arguments = ["--coordinator", str(daemons.cluster.address), "metrics", ended, "-o", "json"]
    assert run([*arguments, "--workers"]) == 0
    answer = json.loads(capsys.readouterr().out)
    shown = {one["name"]: one["points"] for one in answer["series"]}
    assert [line["step"] for line in logged] == list(range(1, STEPS + 1))
    for name, key in (("loss", "loss"), ("step_s", "step_s"), ("gradient_norm", "grad_norm")):
        assert shown[name] == [
            [line["step"], line["step"], 1, *[line[key]] * 3] for line in logged
        ], name
    assert answer["steps"] == STEPS
    assert {one["source"] for one in answer["series"]} >= {"worker-0", "worker-1"}
    assert max(point[5] for point in shown["memory_bytes"]) > 0
