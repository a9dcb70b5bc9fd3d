"""Ranks of a benchmark as processes, hosts behind shaped links, and the floor of a step."""

from __future__ import annotations

import contextlib

import pytest

from dtd.errors import DtdError
from scripts.benchrun.allreduce import join, measure_once
from scripts.benchrun.daemons import OneHost, ShapedHosts
from scripts.benchrun.ranks import World
from scripts.benchrun.steps import Case, Side, _built, _floor
from scripts.benchrun.tasks import QUICK
from scripts.cluster.namespaces import may_make


def test_a_ring_of_raw_sockets():
    with World("probe", 3, OneHost(), {"tag": True}) as world:
        join(world)
        for size_bytes in (4096, 4 << 20):  # sent at once, and by the thread that sends
            world.ask("prepare", size_bytes=size_bytes, dtype="float32")
            wall_s, cpu_s = measure_once(world, 2)
            assert wall_s > 0
            assert cpu_s >= 0
        processes = [rank.process for rank in world._ranks]
    assert [process.returncode for process in processes] == [0, 0, 0]


def test_a_rank_that_fails_or_dies_is_noticed():
    with World("probe", 1, OneHost(), {"tag": False}) as world:
        with pytest.raises(DtdError, match="probe 0 failed: KeyError"):
            world.ask("prepare", size_bytes=4096, dtype="complex")
        world._ranks[0].process.kill()
        world._ranks[0].process.wait()
        with pytest.raises(DtdError, match="has ended"):
            world.ask("listen")


@pytest.mark.skipif(not may_make("net"), reason="needs the right to make namespaces")
def test_no_step_ends_before_its_last_bucket_is_ready():
    case = Case(
        name="quick",
        workload=QUICK["mlp-quick"],
        link="100mbit",
        world=2,
        rounds=1,
        sides={},
        buckets_mib=(25,),
    )
    with (
        contextlib.closing(ShapedHosts(case.workers, case.link)) as hosts,
        _built(case, hosts, Side()) as apart,
    ):
        floor = _floor(case, hosts, apart)
    assert floor["floor_s"] > max(floor["ready_s"])
    assert len(floor["wire_s"]) == len(floor["ready_s"])
