"""Hosts behind links of a known rate: daemons join over them, and the floor is measured."""

from __future__ import annotations

import contextlib

import pytest

from dtd.wire import messages as m
from scripts.benchrun.daemons import ShapedHosts
from scripts.benchrun.sides import built
from scripts.benchrun.train import TrainCase, _floor
from scripts.benchrun.workloads import QUICK
from scripts.cluster.namespaces import may_make
from scripts.cluster.networked import NetworkedCluster

NAMES = ["worker-0", "worker-1"]

pytestmark = pytest.mark.skipif(not may_make("net"), reason="needs the right to make namespaces")


def test_daemons_of_several_hosts_know_each_other_by_credentials(tmp_path):
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(contextlib.closing(ShapedHosts(NAMES, "100mbit")))
        cluster = NetworkedCluster(tmp_path, workers=NAMES, network=network)
        stack.callback(cluster.stop)
        assert not network.address.is_loopback
        cluster.start_all()
        status = cluster.try_ask(m.GetStatus())
        assert sorted(worker["name"] for worker in status["workers"]) == NAMES
    for name in NAMES:
        path = cluster.credential_path(name)
        assert path.stat().st_mode & 0o777 == 0o600
    assert cluster.left_over() == []


def test_no_step_ends_before_its_last_bucket_is_ready():
    case = TrainCase(
        name="quick",
        workload=QUICK["mlp-quick"],
        link="100mbit",
        world=2,
        rounds=1,
        buckets_mib=(25,),
    )
    with (
        contextlib.closing(ShapedHosts(NAMES, case.link)) as hosts,
        built(hosts, case.world, case.spec, keeps_memory=True) as apart,
    ):
        floor = _floor(hosts, apart, 2)
    assert floor["floor_s"] > max(floor["ready_s"])
    assert len(floor["wire_s"]) == len(floor["bytes"])
