"""Weeks go by for a cluster that trains: credentials are renewed, and nothing else happens.

The daemons are real, and so is the time that OpenSSL compares certificates with: their clocks are
moved from outside (`tests.integration.moved_clock`).  This test itself stays where it is, so it
asks at the coordinator's socket.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.address import SocketPath
from dtd.errors import RequestRefused
from dtd.host.places import SOCKET_NAME
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.control_client import ControlClient
from dtd.net.clients.tls import tls_connect
from dtd.security.credential import Credential
from dtd.wire import messages as m
from scripts.cluster.cluster import Cluster
from tests.integration.moved_clock import MovedClock

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
LOOK_AGAIN_S = 0.1
JOB = """
[job]
name = "long"
task = "synthetic"
steps = 1000000
global_batch_size = 32
[task]
parameters = 20000
compute_ms = 100
[elastic]
min_workers = 2
settle_s = 0.0
[sync]
encryption = "tls"
"""


class Weeks(Cluster):
    """A coordinator and two workers with credentials, whose clocks are moved together."""

    def __init__(self, directory: Path) -> None:
        self.clock = MovedClock(directory)
        super().__init__(directory, environment={"HOME": str(directory), **self.clock.environment})
        self.credentials: dict[str, Credential] = {}
        self.coordinator("0.0.0.0:0")

    def coordinator(self, listen: str) -> None:
        options = ("--listen", listen, "--advertise", "127.0.0.1", "--log-format", "json")
        self.start_coordinator(*options)

    def until(self, condition: Callable[[], object], otherwise: str = "", **more: Any) -> None:
        """Look again and again; a daemon that ends ends the test."""
        super().until(condition, otherwise or "does not get that far", **more)

    def client(self, *_arguments: Any) -> ControlClient:
        """At the socket, where no clock counts."""
        return ControlClient(SocketPath(str(self.state_dir("coordinator") / SOCKET_NAME)))

    def tails(self) -> str:
        return "\n".join(str(child.log_tail()) for child in self.children.values())

    def join(self, name: str, role: str = "worker", **more: Any) -> Credential:
        self.credentials[name] = super().join(name, role, **more)
        return self.credentials[name]

    def worker(self, name: str) -> None:
        options = ("--listen", "127.0.0.1:0", "--log-format", "json")
        self.start_worker(f"{name}-cpu", *options, credential=self.join(name).path)

    def dtdctl(self, credential: Credential, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dtd.ctl.main", "--credential", str(credential.path)]
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def job(self) -> dict[str, Any]:
        return dict(self.ask(m.GetStatus())["job"])

    def ends(self, name: str) -> dt.datetime:
        """When the credential in a host's file ends."""
        return Credential.load(self.credentials[name].path).expires

    def trains_on(self) -> None:
        """Steps are made, by the same processes, in the same generation."""
        step = self.job()["step"]
        self.until(lambda: self.job()["step"] > step + 3)
        assert self.job()["generation"] == 1, self.tails()

    def registered(self) -> int:
        found = self.ask(m.ReadEvents())["events"]
        return sum(event["kind"] == "worker_registered" for event in found)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weeks]:
    made = Weeks(tmp_path_factory.mktemp("weeks"))
    try:
        made.worker("host0")
        made.worker("host1")
        made.ask(m.SubmitJob(spec=to_mapping(parse_job(JOB, source="test"))))
        made.until(lambda: (made.ask(m.GetStatus())["job"] or {}).get("step", 0) > 3)
        yield made
    finally:
        made.stop()


def test_weeks_go_by_and_a_running_job_does_not_notice(cluster: Weeks) -> None:
    for name, role in (("ann", "operator"), ("bob", "viewer"), ("idle", "worker")):
        cluster.join(name, role)
    connect = tls_connect(cluster.credentials["idle"].client_context(), "coordinator")
    idle = BlockingLink(
        cluster.address, role=m.Role.WORKER, name="t", timeout_s=PATIENCE_S, connect=connect
    )
    first = {name: cluster.ends(name) for name in cluster.credentials}
    pids = {name: child.pid for name, child in cluster.children.items()}

    cluster.clock.passes(19)
    assert cluster.dtdctl(cluster.credentials["ann"], "jobs").returncode == 0
    assert {name: cluster.ends(name) for name in first} == first
    cluster.clock.passes(2)  # day 21
    cluster.until(lambda: all(cluster.ends(name) > first[name] for name in ("host0", "host1")))
    assert cluster.dtdctl(cluster.credentials["ann"], "jobs").returncode == 0
    assert cluster.ends("ann") > first["ann"]
    assert cluster.credentials["host0"].path.stat().st_mode & 0o777 == 0o600
    cluster.trains_on()

    cluster.clock.passes(10)  # day 31: all that was issued at first has ended
    with pytest.raises(RequestRefused, match="the credential of worker/idle has expired"):
        idle.receive(timeout_s=PATIENCE_S)
    idle.close()
    cluster.trains_on()
    late = cluster.dtdctl(cluster.credentials["bob"], "jobs")
    assert late.returncode != 0
    assert f"{cluster.credentials['bob'].path} has expired on" in late.stderr
    assert "dtdctl join TOKEN" in late.stderr
    assert cluster.dtdctl(cluster.credentials["ann"], "jobs").returncode == 0

    # New connections are made with what was renewed, by both sides.
    cluster.children["coordinator"].signal_group(signal.SIGTERM)
    cluster.children["coordinator"].wait(PATIENCE_S)
    cluster.coordinator(f"0.0.0.0:{cluster.address.port}")
    cluster.until(lambda: cluster.ask(m.GetStatus())["job"]["state"] == "running")
    cluster.trains_on()
    del pids["coordinator"]
    assert pids == {name: cluster.children[name].pid for name in pids}
    assert all(cluster.children[name].exit_code() is None for name in pids)


def test_a_clock_that_jumps_ends_nothing_and_brings_nothing_back(cluster: Weeks) -> None:
    before = {name: cluster.ends(name) for name in ("host0", "host1")}
    registered = cluster.registered()
    cluster.clock.jumps(366)
    cluster.trains_on()
    cluster.clock.jumps(-366)
    cluster.trains_on()
    assert {name: cluster.ends(name) for name in before} == before
    assert cluster.registered() == registered
    assert cluster.dtdctl(cluster.credentials["ann"], "jobs").returncode == 0

    cluster.clock.jumps(-8)  # what has ended counts again, by the clock of the host
    late = cluster.dtdctl(cluster.credentials["bob"], "jobs")
    assert late.returncode != 0
    assert "the credential of viewer/bob has expired" in late.stderr
    cluster.clock.jumps(8)
