"""The doctor's report of parameter servers, and how fast their links are together."""

from __future__ import annotations

import itertools

import pytest

from dtd.doctor.strategies import check_servers, forecasts, star_of
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n'
MB = 10**6
WORKERS = ("w0", "w1", "w2", "w3")


def spec(*overrides):
    return parse_job(JOB, source="test", overrides=overrides)


def with_servers(*overrides):
    return spec("strategy.name='sharded'", "strategy.owners='servers'", *overrides)


def served(servers, *overrides):
    found = check_servers(with_servers(*overrides), servers)
    return [(one.state, one.message) for one in found]


def test_a_job_with_parameter_servers_needs_some():
    assert list(check_servers(spec(), 0)) == []
    assert list(check_servers(spec("strategy.name='sharded'"), 0)) == []
    ((state, message),) = served(0)
    assert state == "fail"
    assert "no parameter server is connected" in message
    ((state, message),) = served(1)
    assert (state, message.split(":")[0]) == ("warn", "one server")
    assert served(2) == []
    assert "mirrors = 0" in served(2, "strategy.mirrors=0")[0][1]


def links(rates, rtt_s=0.0):
    """Between all of these, as fast as the slower of the two."""
    return [
        {"from": a, "to": b, "rtt_s": rtt_s, "bytes_per_s": min(rates[a], rates[b])}
        for a, b in itertools.permutations(rates, 2)
    ]


def star(servers, rates, *, mirrors=0, **changed):
    return star_of(WORKERS, servers, links(rates, **changed), mirrors=mirrors)


def test_fast_servers_leave_each_worker_its_own_link():
    rates = dict.fromkeys(WORKERS, 10.0 * MB) | {"s0": 100.0 * MB, "s1": 100.0 * MB}
    found = star(("s0", "s1"), rates, rtt_s=0.02)
    assert (found.up_bytes_per_s, found.down_bytes_per_s) == (10 * MB, 10 * MB)
    assert (found.servers, found.latency_s, found.narrowest) == (2, 0.01, "w0")


def test_one_server_is_known_to_be_as_fast_as_a_worker_and_no_faster():
    """One way is measured at a time, and ends at a worker."""
    found = star(("s0",), dict.fromkeys(WORKERS, 10.0 * MB) | {"s0": 100.0 * MB})
    assert (found.up_bytes_per_s, found.narrowest) == (2.5 * MB, "s0")


def test_a_server_carries_workers_over_servers_of_a_bucket():
    """Four workers at 100 MB/s: a server at 100 MB/s leaves each a quarter, two a half."""
    rates = dict.fromkeys((*WORKERS, "s0", "s1"), 100.0 * MB)
    alone = star(("s0",), rates)
    assert (alone.up_bytes_per_s, alone.down_bytes_per_s) == (25 * MB, 25 * MB)
    assert alone.narrowest == "s0"
    two = star(("s0", "s1"), rates)
    assert two.up_bytes_per_s == 50 * MB
    assert two.down_bytes_per_s == 40 * MB, "the servers get what they do not hold"
    mirrored = star(("s0", "s1"), rates, mirrors=1)
    assert mirrored.up_bytes_per_s == 40 * MB, "each sum goes to its mirror, too"
    assert mirrored.down_bytes_per_s == 50 * MB


# --- forecasts -----------------------------------------------------------------------------------


def candidate(strategy, **more):
    usual = {"codec": "none", "every_steps": 1, "overlaps": False, "risk": "", "reason": ""}
    return {"strategy": strategy, **usual, **more}


def step():
    """0.1 s of backward, then 10 MB up and down: 1 s each at 10 MB a second."""
    world = {"data_s": 0.0, "compute_s": 0.1, "ready_s": [0.1, 0.1], "optimizer_s": 0.0}
    return {
        "buckets": [10 * MB, 0],
        "rows": 8,
        "worlds": {"1": world, "2": world},
        "candidates": [candidate("replicated"), candidate("sharded", stage=1, mirrors=0)],
    }


def two_workers():
    """Two workers at 10 MB/s and servers that are fast enough."""
    rates = {"w0": 10.0 * MB, "w1": 10.0 * MB, "s0": 100.0 * MB, "s1": 100.0 * MB}
    return {"w0": step(), "w1": step()}, links(rates)


def test_a_step_with_servers_takes_twice_the_whole_state_at_a_workers_link():
    steps, known = two_workers()
    made = forecasts(steps, known, most=2, spec=with_servers(), servers=("s0", "s1"))
    assert [one.world_size for one in made] == [1, 2]
    for one in made:
        assert one.step_s == pytest.approx(0.1 + 1 + 1 - 0.1 + 0.1)
        assert one.comm_s == pytest.approx(2.0)
    ring = forecasts(
        steps, known, most=2, spec=spec("strategy.name='sharded'"), servers=("s0", "s1")
    )
    assert ring[-1].comm_s == pytest.approx(1.0), "without owners = servers they do not count"
