"""The doctor and the watcher as processes, with real daemons on loopback."""

from __future__ import annotations

import json
import os
import sys

import pytest

from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

PATIENCE_S = 100.0
LOOK_AGAIN_S = 0.5
NAMES = ["worker-0", "worker-1"]
# Time in which the processor is free, so that workers on one host do not compete for it.
JOB = """
[job]
name = "forecast"
task = "own_task:Own"
steps = 3
global_batch_size = 24
[task]
parameters = 20000
compute_ms = 120
rows = 240
[elastic]
min_workers = 2
settle_s = 0
"""
OWN_TASK = "from dtd.tasks.synthetic import Synthetic as Own\n"


@pytest.fixture(scope="module")
def daemons(start_daemons):
    """Two idle workers and their coordinator."""
    return start_daemons(2)


@pytest.fixture(scope="module")
def cluster(daemons):
    return daemons.cluster


@pytest.fixture(autouse=True)
def idle(cluster):
    """All workers wait for a job, also after one has ended."""
    while True:
        with ControlClient(cluster.address, timeout_s=PATIENCE_S) as client:
            seen = client.request(m.ReadEvents())["next"]
            workers = client.request(m.GetStatus())["workers"]
            if [worker["state"] for worker in workers] == ["idle"] * len(NAMES):
                return
            client.ask(m.ReadEvents(after=seen, follow=True))
            client.answer(timeout_s=LOOK_AGAIN_S)  # not every change is an event


def command(cluster, *arguments):
    environment = {**os.environ, "DTD_COORDINATOR": str(cluster.address), "NO_COLOR": "1"}
    return [sys.executable, "-m", "dtd.ctl.main", *arguments], environment


def by_check(report):
    found = {}
    for finding in report["checks"]:
        found.setdefault(finding["check"], []).append(finding["state"])
    return found


def test_healthy_workers(dtdctl):
    exit_code, out, err = dtdctl("doctor", "-o", "json")
    report = json.loads(out)
    assert (exit_code, err) == (0, "")
    assert (report["schema"], report["memory"], report["forecast"]) == (1, [], [])
    ways = {(a, b) for a in NAMES for b in NAMES if a != b}
    assert {(link["from"], link["to"]) for link in report["links"]} == ways
    assert {link["host"] for link in report["links"]} == {"127.0.0.1"}
    assert all(link["rtt_s"] > 0 and link["bytes_per_s"] > 0 for link in report["links"])
    assert sorted(report["hosts"]) == NAMES
    found = by_check(report)
    for check in ("coordinator", "versions", "clocks", "ports"):
        assert found[check] == ["ok"]
    for finding in report["checks"]:
        assert set(finding) == {"check", "state", "message", "remedy"}


def test_a_forecast_is_about_the_steps_that_follow(dtdctl, tmp_path):
    """The forecast for a shipped task: workers lack its code when they measure it, too."""
    (tmp_path / "own_task.py").write_text(OWN_TASK)
    (tmp_path / "job.toml").write_text(JOB)
    exit_code, out, err = dtdctl("doctor", "job.toml", "-o", "json", cwd=tmp_path)
    assert exit_code == 0, out
    assert "own_task.py" in err
    report = json.loads(out)
    assert [one["world_size"] for one in report["forecast"]] == [1, 2]
    assert [one["forecast"]["world_size"] for one in report["larger"]["worlds"]] == [16]
    assert {need["worker"] for need in report["memory"]} == set(NAMES)
    known = {(one["strategy"], one["codec"]): one for one in report["strategies"]}
    own = known["replicated", "none"]
    assert own["own"]
    assert own["step_s"] == report["forecast"][1]["step_s"]
    assert known["replicated", "bfloat16"]["bytes_per_step"] < 0.6 * own["bytes_per_step"]
    _, out, _ = dtdctl("submit", "job.toml", "-o", "json", cwd=tmp_path)
    _, out, _ = dtdctl("wait", json.loads(out)["job"], "-o", "json")
    # No claim about speed: only that both are about the same thing, of which this is the least.
    least_s = 0.120
    assert json.loads(out)["result"]["mean_step_s"] > least_s
    assert report["forecast"][1]["step_s"] > least_s
