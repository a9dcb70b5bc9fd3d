"""Ranks as processes: they are asked, they fail loudly, and they end."""

from __future__ import annotations

import pytest

from dtd.errors import DtdError
from scripts.benchrun.allreduce import join, measure_once
from scripts.benchrun.daemons import OneHost
from scripts.benchrun.ranks import World


@pytest.mark.parametrize("tag", ["none", "xxh3", "gcm"])
def test_a_ring_of_raw_sockets(tag):
    with World("probe", 3, OneHost(), {"tag": tag}) as world:
        join(world)
        for size_bytes in (4096, 4 << 20):  # sent at once, and by the thread that sends
            world.ask("prepare", size_bytes=size_bytes, dtype="float32")
            wall_s, cpu_s = measure_once(world, 2)
            assert wall_s > 0
            assert cpu_s >= 0
        assert min(world.peak_bytes()) > 1 << 20
        processes = [rank.process for rank in world._ranks]
    assert [process.returncode for process in processes] == [0, 0, 0]


def test_a_rank_that_fails_says_why():
    with (
        World("probe", 1, OneHost(), {"tag": "none"}) as world,
        pytest.raises(DtdError, match="probe 0 failed: KeyError"),
    ):
        world.ask("prepare", size_bytes=4096, dtype="complex")


def test_a_rank_that_dies_is_noticed():
    with World("probe", 1, OneHost(), {"tag": "none"}) as world:
        world._ranks[0].process.kill()
        world._ranks[0].process.wait()
        with pytest.raises(DtdError, match="has ended"):
            world.ask("listen")
