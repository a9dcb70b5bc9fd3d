"""Hosts with three interfaces, of which one leads to the other host: workers find it by themselves.

Each host calls the coordinator through `eth0`, on which nothing passes between the workers, as
where switches separate customers.  `docker0` has the same address on both hosts, so whoever calls
the other one there calls itself.  What is left is `fabric`, with IPv6 addresses alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from scripts.cluster.namespaces import may_make
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Hosts

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not may_make("net"), reason="this process may not make namespaces"),
    pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6"),
]

WORKERS = ("w-0", "w-1")
FABRIC = {"w-0": "fd00:78::1", "w-1": "fd00:78::2"}
PATIENCE_S = 240.0
JOB = """
[job]
name = "far"
task = "digits"
steps = 6
global_batch_size = 64
[elastic]
settle_s = 0.0
min_workers = 2
"""


class ThreeInterfaces(Hosts):
    """Two hosts; the coordinator reaches both, and they reach each other over `fabric` only."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        spaces = self.ethernet.spaces
        one, other = (spaces[name] for name in WORKERS)
        for space in (one, other):
            space.run("ip", "link", "add", "name", "docker0", "type", "bridge")
        peer = ("peer", "name", "fabric", "netns", other.path)
        one.run("ip", "link", "add", "name", "fabric", "type", "veth", *peer)
        for name, address in FABRIC.items():
            for device, own in (("docker0", "172.17.0.1/16"), ("fabric", f"{address}/64")):
                flags = ("nodad",) if ":" in own else ()
                spaces[name].run("ip", "address", "add", own, "dev", device, *flags)
                spaces[name].run("ip", "link", "set", "dev", device, "up")
        self.cut(*WORKERS)
        self.cut(*reversed(WORKERS))

    def arguments(self, name: str) -> list[str]:
        return ["--coordinator", str(self.address), "--listen", "[::]:7200"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkedCluster]:
    network = ThreeInterfaces()
    made = NetworkedCluster(tmp_path_factory.mktemp("far"), workers=WORKERS, network=network)
    try:
        made.start_all()
        yield made
    finally:
        made.stop()
        network.close()


@pytest.mark.parametrize(("receiver", "sender"), [WORKERS, WORKERS[::-1]])
def test_doctor_is_told_the_address_that_answers(
    cluster: NetworkedCluster, receiver: str, sender: str
) -> None:
    figures = cluster.request(m.Examine(what="latency", worker=receiver, peer=sender, spec={}))
    assert figures["host"] == FABRIC[sender]


def test_doctor_measures_all_addresses_that_answer(cluster: NetworkedCluster) -> None:
    network, (receiver, sender) = cluster.network, WORKERS
    assert isinstance(network, ThreeInterfaces)
    for one in (WORKERS, WORKERS[::-1]):
        network.restore(*one)
    figures = cluster.request(m.Examine(what="bandwidth", worker=receiver, peer=sender, spec={}))
    for one in (WORKERS, WORKERS[::-1]):
        network.cut(*one)
    rates = {figures["host"]: figures["bytes_per_s"], **figures["others"]}
    assert set(rates) == {FABRIC[sender], network.ethernet.ip(sender)}
    assert all(rates.values())


@pytest.mark.parametrize("transport", ["ring", "gloo"])
def test_a_job_trains_to_its_end(cluster: NetworkedCluster, transport: str) -> None:
    text = JOB + f'[sync]\ntransport = "{transport}"\n'
    job = cluster.request(m.SubmitJob(spec=to_mapping(parse_job(text, source="test"))))["job"]

    def wait() -> dict[str, Any]:
        with cluster.client(timeout_s=PATIENCE_S) as client:
            return client.request(m.WaitJob(job=job))

    ended = cluster.network.inside(wait)
    assert ended["state"] == "done", ended
    digests = ended["result"]["replica_digests"]
    assert set(digests) == set(WORKERS)
    assert len(set(digests.values())) == 1


def test_the_job_goes_on_over_another_network_when_one_fails(cluster: NetworkedCluster) -> None:
    network = cluster.network
    assert isinstance(network, ThreeInterfaces)
    endless = JOB.replace("steps = 6", "steps = 1_000_000")
    job = cluster.request(m.SubmitJob(spec=to_mapping(parse_job(endless, source="test"))))["job"]

    def trains(generation: int, step: int) -> bool:
        seen = (cluster.try_ask(m.GetStatus()) or {}).get("job") or {}
        known = seen.get("generation", 0), seen.get("step", 0)
        found.append(known)
        return seen.get("state") == "running" and known[0] > generation and known[1] > step

    found: list[tuple[int, int]] = []
    cluster.until(lambda: trains(0, 2), "has not trained", timeout_s=PATIENCE_S)
    generation, step = found[-1]
    network.restore(*WORKERS)
    network.restore(*reversed(WORKERS))
    network.ethernet.spaces["w-0"].run("ip", "link", "set", "dev", "fabric", "down")
    cluster.until(
        lambda: trains(generation, step + 2), "does not train over eth0", timeout_s=PATIENCE_S
    )
    cluster.request(m.CancelJob(job=job))
