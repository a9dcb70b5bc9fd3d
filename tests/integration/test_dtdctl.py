"""dtdctl as a process against a real coordinator with real, idle workers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LOOK_AGAIN_S = 0.05
# It asks for more workers than there are, so it waits and never trains.
WAITING_JOB = """
[job]
name = "waits"
task = "synthetic"
steps = 2
global_batch_size = 64
[elastic]
min_workers = 9
"""


@pytest.fixture(scope="module")
def daemons(start_daemons):
    """Two idle workers and their coordinator; whoever is killed was started again."""
    return start_daemons(2)


@pytest.fixture(scope="module")
def cluster(daemons):
    return daemons.cluster


@pytest.fixture(scope="module")
def state(cluster):
    """Where the coordinator keeps what must survive."""
    return cluster.directory


def pids(cluster):
    """Those of the workers that the coordinator knows."""
    with ControlClient(cluster.address) as client:
        workers = client.request(m.GetStatus())["workers"]
    return {worker["name"]: worker["pid"] for worker in workers}


def job_file(directory: Path) -> str:
    path = directory / "job.toml"
    path.write_text(WAITING_JOB)
    return str(path)


def test_a_job_that_waits_from_submission_to_its_end(dtdctl, tmp_path):
    exit_code, out, err = dtdctl("status", "-o", "json")
    status = json.loads(out)
    assert (exit_code, err) == (0, "")
    assert (status["schema"], status["job"]) == (1, None)
    assert [worker["name"] for worker in status["workers"]] == ["worker-0", "worker-1"]

    assert dtdctl("submit", job_file(tmp_path)) == (0, "waits-1\n", "")
    exit_code, out, _err = dtdctl("status")
    assert exit_code in (0, 4)  # it warms up before it knows that it has to wait
    assert "waits-1" in out
    exit_code, _out, err = dtdctl("wait", "waits-1", "--timeout", "0.1")
    assert exit_code == 1
    assert "has not ended within" in err
    exit_code, out, _err = dtdctl("jobs")
    assert exit_code == 0
    assert "waits-1" in out

    assert dtdctl("cancel", "waits-1")[0] == 0
    exit_code, _out, err = dtdctl("wait", "waits-1")
    assert exit_code == 4
    assert "job waits-1 was cancelled" in err
    kinds = [json.loads(line)["kind"] for line in dtdctl("events", "-o", "json")[1].splitlines()]
    assert {"job_started", "job_cancelled"} <= set(kinds)
    assert dtdctl("logs", "waits-1") == (0, "", "")


def test_all_that_is_printed_as_json_fits_the_schema(dtdctl, check_output, tmp_path):
    """The outputs about a job that never trains; test_examples looks at those that do."""
    digits = str(ROOT / "docs/examples/digits.toml")
    _code, submitted, _err = dtdctl("submit", job_file(tmp_path), "-o", "json")
    job = json.loads(submitted)["job"]
    check_output(("submit",), submitted)
    elsewhere = ("--dry-run", "--prefix", str(tmp_path / "root"))
    for words in (
        ("validate", digits),
        *(("status",), ("jobs",), ("show", job), ("doctor",), ("checkpoints",)),
        *(("cancel", job), ("wait", job), ("logs", job), ("events",)),
        *(("install", *elsewhere), ("uninstall", *elsewhere)),
    ):
        exit_code, printed, err = dtdctl(*words, "-o", "json")
        assert printed or words[0] == "logs", (words, exit_code, err)
        check_output(words, printed)
    exit_code, printed, err = dtdctl("wait", "nobody", "-o", "json")
    assert (exit_code, printed) == (1, "")
    check_output(("error",), err)


def test_what_does_not_exist_is_refused_with_a_remedy(dtdctl, tmp_path):
    for line in ("cancel x", "resume x", "wait x", "logs x", "fetch x", "kill-worker x", "drain x"):
        exit_code, out, err = dtdctl(*line.split())
        assert (exit_code, out) == (1, "")
        assert err.startswith("error: ")
        assert "\ntry: " in err
    assert dtdctl("submit", job_file(tmp_path), "--resume-from", "x")[0] == 1
    assert dtdctl("checkpoints", "-o", "json")[1] == '{"checkpoints": []}\n'


def test_a_second_coordinator_on_the_same_state_is_refused(cluster, state):
    """It must not come up, or two would number generations; the first one goes on."""
    second = [sys.executable, "-m", "dtd.coordinator.main"]
    done = subprocess.run(
        [*second, "--state-dir", str(state)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (78, "")
    assert f"dtd-coordinator: another coordinator uses {state}" in done.stderr
    assert "--state-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert (state / "address").read_text() == str(cluster.address)
    assert len(pids(cluster)) == 2


def test_a_killed_worker_is_started_again(dtdctl, cluster):
    restarts = cluster.restarts["worker-1"]
    before = pids(cluster)
    exit_code, _out, err = dtdctl("kill-worker", "worker-1")
    assert exit_code == 0
    assert f"SIGKILL was sent to worker-1 (pid {before['worker-1']})" in err
    newcomer = cluster.children["worker-1"]
    assert newcomer.wait(60) == -signal.SIGKILL
    cluster.tend()
    assert cluster.restarts["worker-1"] == restarts + 1
    # Asked until the newcomer has registered; the test's time-out bounds it.
    while (after := pids(cluster)) == before or len(after) < 2:
        assert newcomer.wait(LOOK_AGAIN_S) is None
    assert after["worker-0"] == before["worker-0"]


def test_a_coordinator_that_is_killed_comes_back_at_the_same_address(dtdctl, cluster):
    coordinator = cluster.children["coordinator"]
    restarts, before = cluster.restarts["coordinator"], pids(cluster)
    coordinator.signal_group(signal.SIGKILL)
    coordinator.wait(30)
    exit_code, _out, err = dtdctl("status")
    assert exit_code == 3
    assert f"nothing listens at the coordinator's address {cluster.address}" in err
    cluster.tend()
    assert cluster.restarts["coordinator"] == restarts + 1
    while dtdctl("status")[0] == 3:
        assert coordinator.exit_code() is None
    while pids(cluster) != before:
        assert coordinator.wait(LOOK_AGAIN_S) is None
