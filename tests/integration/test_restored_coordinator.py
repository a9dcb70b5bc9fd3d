"""The coordinator's host is lost in the middle of a job; its backup takes over elsewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.address import SocketPath
from dtd.errors import CoordinatorUnreachable
from dtd.job import parse_job, to_mapping
from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m
from scripts.cluster.processes import Child, stop_all
from tests.integration.conftest import GATED_JOB, Gates

pytestmark = pytest.mark.integration

PATIENCE_S = 100.0
LOOK_AGAIN_S = 0.05


class Cluster:
    """Workers that know two addresses of their coordinator: A's, and one where nobody is yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: dict[str, Child] = {}
        self.addresses = {name: SocketPath(str(directory / f"{name}.sock")) for name in "AB"}

    def coordinator(self, name: str) -> None:
        """Start A or B and wait until it listens."""
        state = self.directory / name
        arguments = ("--socket", self.addresses[name].path, "--state-dir", str(state))
        child = self.daemon(name, "dtd.coordinator.main", *arguments)
        while True:
            assert child.wait(LOOK_AGAIN_S) is None, child.log_tail()
            try:
                self.ask(name, m.GetStatus())
            except CoordinatorUnreachable:
                continue
            return

    def daemon(self, name: str, module: str, *arguments: str) -> Child:
        command = (sys.executable, "-m", module, *arguments)
        log = self.directory / f"{name}.log"
        environment = {
            "PYTHONPATH": str(Path(__file__).parent),
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "torch"),
        }
        child = self.children[name] = Child(name, command, log, environment)
        child.start()
        return child

    def workers(self) -> None:
        both = f"{self.addresses['A']},{self.addresses['B']}"
        for name in ("worker-0", "worker-1"):
            place = ("--state-dir", str(self.directory / name))
            self.daemon(name, "dtd.worker", "--coordinator", both, "--name", name, *place)

    def kill(self, name: str) -> None:
        self.children[name].signal_group(signal.SIGKILL)
        self.children[name].wait(PATIENCE_S)

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dtd.coordinator.main", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def ask(self, name: str, message: m.Message) -> dict[str, Any]:
        with ControlClient(self.addresses[name], timeout_s=PATIENCE_S) as client:
            return client.request(message)

    def trains_under(self, name: str) -> dict[str, int]:
        """Wait until both workers train under this coordinator; their process ids."""
        while True:
            seen = self.ask(name, m.ReadEvents())["next"]
            workers = self.ask(name, m.GetStatus())["workers"]
            if [worker["state"] for worker in workers] == ["running", "running"]:
                return {worker["name"]: worker["pid"] for worker in workers}
            self.ask(name, m.ReadEvents(after=seen, follow=True))

    def await_logged(self, name: str, text: str) -> None:
        log = self.directory / f"{name}.log"
        while text not in log.read_text():
            assert self.children[name].wait(LOOK_AGAIN_S) is None

    def stop(self) -> None:
        stop_all(self.children.values())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_a_backup_takes_over(cluster: Cluster, tmp_path: Path) -> None:
    gates = Gates(tmp_path / "gates", [3, 6, 9])
    cluster.coordinator("A")
    cluster.workers()
    spec = to_mapping(parse_job(GATED_JOB, source="test", overrides=["elastic.min_workers=2"]))
    spec["task"] |= gates.task
    job = cluster.ask("A", m.SubmitJob(spec=spec))["job"]
    pids = cluster.trains_under("A")
    backup, place = str(tmp_path / "backup.tar"), str(tmp_path / "B")
    cluster.command("backup", backup, "--state-dir", str(tmp_path / "A"))
    cluster.kill("A")
    gates.open(0)  # training goes on without any coordinator

    assert "restored" in cluster.command("restore", backup, "--state-dir", place)
    cluster.coordinator("B")
    assert cluster.trains_under("B") == pids

    gates.open(1)
    cluster.kill("B")
    cluster.coordinator("B")
    assert cluster.trains_under("B") == pids
    gates.open(2)
    ended = cluster.ask("B", m.WaitJob(job=job))
    assert (ended["state"], ended["result"]["steps_lost"]) == ("done", 0)
    assert ended["result"]["rows_missing"] == ended["result"]["rows_repeated"] == 0
    assert sorted(ended["result"]["replica_digests"]) == sorted(pids)


def test_a_stop_that_the_backup_does_not_know_is_a_stop(cluster: Cluster, tmp_path: Path) -> None:
    gates = Gates(tmp_path / "gates", [3])
    cluster.coordinator("A")
    cluster.workers()
    spec = to_mapping(parse_job(GATED_JOB, source="test", overrides=["elastic.min_workers=2"]))
    spec["task"] |= gates.task
    job = cluster.ask("A", m.SubmitJob(spec=spec))["job"]
    cluster.trains_under("A")
    backup, place = str(tmp_path / "backup.tar"), str(tmp_path / "B")
    cluster.command("backup", backup, "--state-dir", str(tmp_path / "A"))
    cluster.ask("A", m.CancelJob(job=job))
    assert cluster.ask("A", m.GetStatus())["job"]["state"] == "stopping"
    cluster.kill("A")
    gates.open(0)

    cluster.command("restore", backup, "--state-dir", place)
    cluster.coordinator("B")
    ended = cluster.ask("B", m.WaitJob(job=job))
    assert ended["state"] == "cancelled"
    assert "lost with the coordinator's store" in ended["reason"]
