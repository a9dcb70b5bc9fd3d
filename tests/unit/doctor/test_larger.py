"""Worlds larger than the connected one: what they repeat, and how many workers are enough."""

from __future__ import annotations

import itertools

import pytest

from dtd.doctor.larger import SIZES, Repeated, check_growth, enough_workers, growth_of
from dtd.doctor.strategies import forecasts
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n'
MB = 10**6


def spec(*overrides):
    return parse_job(JOB, source="test", overrides=overrides)


def world(rows, *, constant_s=0.1, row_s=0.01):
    compute_s = constant_s + rows * row_s
    return {
        "data_s": 0.001 * rows,
        "compute_s": compute_s,
        "ready_s": [compute_s / 2, compute_s],
        "optimizer_s": 0.02,
    }


def step(sizes=(1, 2), *, rows=1024, buckets=(10 * MB, 40), **times):
    """Measurements of a job whose batch has so many rows."""
    return {
        "buckets": list(buckets),
        "rows": rows,
        "worlds": {str(size): world(-(-rows // size), **times) for size in sizes},
    }


def among(names, *, bytes_per_s=1e9, rtt_s=0.0):
    return [
        {"from": a, "to": b, "rtt_s": rtt_s, "bytes_per_s": bytes_per_s}
        for a, b in itertools.permutations(names, 2)
    ]


def grown(steps, links, *overrides, **more):
    repeated = Repeated.fitted(steps, links, spec=spec(*overrides), **more)
    return growth_of(repeated) if repeated is not None else None


def by_size(growth):
    return {one.forecast.world_size: one.forecast for one in growth.worlds}


def test_a_larger_world_is_forecast_as_if_it_were_connected():
    links = {"bytes_per_s": 1e8, "rtt_s": 0.001}
    growth = grown(dict.fromkeys("ab", step()), among("ab", **links))
    names = [f"w{rank}" for rank in range(16)]
    connected = dict.fromkeys(names, step(range(1, 17)))
    made = forecasts(connected, among(names, **links), most=16, spec=spec())[-1]
    found = by_size(growth)[16]
    assert found.step_s == pytest.approx(made.step_s)
    assert found.sent_bytes == made.sent_bytes
    assert found.compute_s == pytest.approx(0.1 + 64 * 0.01)


def test_it_repeats_the_slowest_worker_and_the_slowest_link():
    steps = {"a": step(), "b": step(constant_s=0.3)}
    links = among("ab", bytes_per_s=1e9, rtt_s=0.2)
    links[1] |= {"bytes_per_s": 1e7, "rtt_s": 0.0}
    found = by_size(grown(steps, links))[16]
    assert found.compute_s == pytest.approx(0.3 + 64 * 0.01)
    assert found.limit in ("bandwidth of the link b -> a", "latency")
    sent_s = 2 * 15 / 16 * 10 * MB / 1e7
    assert found.comm_s == pytest.approx(sent_s + 30 * 0.1 + 4 * 0.1, rel=0.01)


@pytest.mark.parametrize(
    ("compute_s", "at_256_s"),
    [((1.0, 1.2), 1.1), ((1.0, 0.2), 0.9 / 256)],
    ids=["no gain", "more than half"],
)
def test_no_part_of_the_fitted_time_is_negative(compute_s, at_256_s):
    measured = step(rows=256)
    for size, one in zip("12", compute_s, strict=True):
        measured["worlds"][size]["compute_s"] = one
    found = by_size(grown(dict.fromkeys("ab", measured), among("ab")))[256]
    assert found.compute_s == pytest.approx(at_256_s, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "sizes", "most"), [(1024, [16, 64, 256], 256), (64, [16, 64], 64), (15, [], 15)]
)
def test_no_worker_is_without_a_row(rows, sizes, most):
    growth = grown(dict.fromkeys("ab", step(rows=rows)), among("ab"))
    assert (list(by_size(growth)), growth.most_workers) == (sizes, most)


def test_sizes_that_are_connected_are_not_larger():
    names = [f"w{rank}" for rank in range(16)]
    growth = grown(dict.fromkeys(names, step(range(1, 17))), among(names))
    assert list(by_size(growth)) == [64, 256]


@pytest.mark.parametrize(
    ("steps", "links"),
    [
        ({}, []),
        ({"a": step((1,))}, []),
        (dict.fromkeys("ab", step((2,))), among("ab")),
        (dict.fromkeys("ab", step(rows=1)), among("ab")),
        (dict.fromkeys("ab", step()), []),
        (dict.fromkeys("ab", step()), among("ab", bytes_per_s=None)),
        (dict.fromkeys("ab", step()), among("xy")),
    ],
    ids=["nobody", "alone", "one world", "one row", "no link", "no rate", "links of others"],
)
def test_nothing_is_said_without_two_worlds_and_a_link(steps, links):
    assert grown(steps, links) is None


def test_servers_stay_as_many_and_share_more_among_them():
    servers = ("s0", "s1")
    owned = ("strategy.name='sharded'", "strategy.owners='servers'", "strategy.mirrors=0")
    candidate = {"strategy": "sharded", "codec": "none", "every_steps": 1, "overlaps": False}
    candidate |= {"risk": "", "reason": "", "stage": 1, "mirrors": 0}
    steps = dict.fromkeys("ab", step() | {"candidates": [candidate]})
    links = among(("a", "b", *servers), bytes_per_s=1e7)
    growth = grown(steps, links, *owned, servers=servers)
    found = by_size(growth)
    # Half of 10 MB for each worker through a server's link, up and then down, also to the other.
    for size in (16, 64):
        assert found[size].comm_s == pytest.approx((size + size + 1) * 5 * MB / 1e7, rel=0.01)
    assert found[64].limit == "bandwidth of the link of s0"
    assert grown(steps, links, *owned) is None


# --- enough --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_s", "enough"),
    [
        ([1.0], None),
        ([1.0, 1.0, 1.0], 1),
        ([1.0, 0.5, 0.25], None),
        ([1.0, 0.5, 0.499], 2),
        ([1.0, 1.2, 0.8, 0.8], 3),
        ([1.0, 1.0, 1.0, 0.5, 0.5, 0.5], 4),
        ([1.0, 1.0, 1.0, 0.98], 1),
        ([1 / size for size in range(1, 257)], 100),
    ],
    ids=["one", "none", "all", "few", "dear start", "stairs", "low stairs", "perfect"],
)
def test_enough_workers(step_s, enough):
    assert enough_workers(dict(enumerate(step_s, start=1))) == enough


def test_where_the_network_is_the_limit_few_workers_are_enough_and_a_strategy_helps_on():
    none = {"strategy": "replicated", "codec": "none", "every_steps": 1, "overlaps": False}
    none |= {"risk": "", "reason": ""}
    rounds = none | {"strategy": "local_sgd", "every_steps": 16, "risk": "other steps"}
    steps = dict.fromkeys("ab", step() | {"candidates": [none, rounds]})
    growth = grown(steps, among("ab", bytes_per_s=1e7))
    assert 2 <= growth.enough_workers < 16
    assert growth.beyond.forecast.world_size == growth.enough_workers + 1
    assert {one.better.strategy for one in growth.worlds} == {"local_sgd"}
    [found] = check_growth(growth)
    assert found.message.startswith(f"beyond {growth.enough_workers} workers, each one more")
    assert "bandwidth of the link" in found.message
    assert found.message.endswith(": other steps")
    slow = grown(steps, among("ab", bytes_per_s=1e5))
    assert slow.enough_workers == 1
    [found] = check_growth(slow)
    assert found.message.startswith("beyond 1 worker, each one more")


def test_where_rows_are_the_limit_all_workers_are_worth_having():
    growth = grown(dict.fromkeys("ab", step(rows=32, constant_s=0.0, row_s=1.0)), among("ab"))
    assert growth.enough_workers is None
    [found] = check_growth(growth)
    assert found.message.startswith("up to 32 workers, each one more")
    assert SIZES[0] in by_size(growth)
