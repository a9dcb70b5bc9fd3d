"""A worker's trust: files that a job can write decide nothing, and neither do other clocks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtd.job import parse_job, to_mapping
from dtd.security.credential import Credential
from dtd.wire import messages as m
from scripts.cluster.cluster import Cluster
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Proxied
from tests.integration.moved_clock import MovedClock

pytestmark = pytest.mark.integration

THREE = ["worker-0", "worker-1", "worker-2"]
BEYOND = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--log-format", "json")
JOB = """
[job]
name = "short"
task = "synthetic"
steps = 2
global_batch_size = 8
[task]
parameters = 20000
compute_ms = 30.0
[elastic]
settle_s = 0.0
"""


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Callable[[str], Cluster]]:
    """Makes clusters whose coordinator listens over TLS."""
    made: list[Cluster] = []

    def make(name: str) -> Cluster:
        directory = tmp_path / name
        directory.mkdir()
        made.append(Cluster(directory, environment={"HOME": str(directory)}))
        made[-1].start_coordinator(*BEYOND)
        return made[-1]

    yield make
    for one in made:
        one.stop()


def workers(cluster: Cluster) -> list[str]:
    return [one["name"] for one in cluster.ask(m.GetStatus())["workers"]]


def start(
    cluster: Cluster, name: str, *options: str, program: str = 'exec "$0" -m dtd.worker "$@"'
) -> None:
    """Start a worker that is told nothing but where its credential is."""
    credential = ("--credential", str(cluster.credential_path(name)), "--log-format", "json")
    place = ("--name", f"{name}-cpu", "--state-dir", str(cluster.state_dir(name)))
    cluster.add(name, ("/bin/sh", "-c", program, sys.executable, *credential, *place, *options))
    cluster.start(name)


def planted(own: Credential, other: Credential) -> str:
    """The other cluster's credential, posing as the newest one of this host."""
    text = other.path.read_text()
    for key, value in (("credential", own.id), ("issued", "2999-01-01T00:00:00+00:00")):
        text = re.sub(rf"^# {key}: .*$", f"# {key}: {value}", text, flags=re.MULTILINE)
    return text


def test_a_renewed_credential_that_a_job_has_planted_is_ignored(
    clusters: Callable[[str], Cluster],
) -> None:
    """It named another coordinator and another authority, and its job ran on the worker."""
    own, other = clusters("own"), clusters("other")
    text = planted(own.join("host7"), other.join("host7"))
    for place in (own.state_dir("host7"), own.state_dir("workers")):
        place.mkdir(mode=0o700)
        file = place / "renewed.credential"
        file.touch(mode=0o600)
        file.write_text(text)
    start(own, "host7")
    own.await_registered(["host7-cpu"])
    assert workers(other) == []
    log = own.log_path("host7").read_text()
    assert log.count("renewed_credential_ignored") == 2
    assert f"{file} is not signed by the authority of" in log


# --- clocks --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkedCluster]:
    """Three workers with a proxy on each way; the clock of the first is two hours ahead."""
    network = Proxied(THREE)
    directory = tmp_path_factory.mktemp("proxied")
    cluster = NetworkedCluster(directory, workers=THREE, network=network)
    clock = MovedClock(directory)
    clock.jumps(2 / 24)
    cluster.add(THREE[0], cluster.children[THREE[0]].command, clock.environment)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop()
        network.close()


@pytest.mark.parametrize("what", ["latency", "bandwidth"])
def test_links_to_and_from_a_worker_whose_clock_is_ahead_are_measured(
    proxied: NetworkedCluster, what: str
) -> None:
    for worker, peer in (THREE[:2], THREE[1::-1]):
        figures = proxied.ask(m.Examine(what=what, worker=worker, peer=peer, spec={}))
        assert figures["rtt_s"] > 0


def test_a_worker_whose_clock_is_ahead_comes_back_after_a_link_fault(
    proxied: NetworkedCluster,
) -> None:
    """Its ends are probed with tickets, which it took for expired: it was never used again."""
    overrides = ("job.steps=1000000", "elastic.min_workers=2")
    proxied.ask(m.SubmitJob(spec=to_mapping(parse_job(JOB, source="test", overrides=overrides))))

    def running() -> int:
        return [one["state"] for one in proxied.ask(m.GetStatus())["workers"]].count("running")

    proxied.until(lambda: running() == 3, "does not train")
    network = proxied.network
    assert isinstance(network, Proxied)
    ways = [(THREE[0], THREE[1]), (THREE[1], THREE[0])]
    for way in ways:
        network.cut(*way)
    proxied.until(lambda: running() == 2, "is not left out")
    for way in ways:
        network.restore(*way)
    proxied.until(lambda: running() == 3, "does not train again")
