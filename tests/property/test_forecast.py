"""Any forecast: coding costs no step any time, and larger worlds are as if they were connected."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.doctor.forecast import Compute, Exchanged, LinkSpeed, forecast
from dtd.doctor.larger import Repeated
from dtd.doctor.strategies import forecast_of, forecasts
from dtd.doctor.transfer import Coded, Coder
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n'

seconds = st.floats(0.0, 2.0)
latencies = st.floats(0.0, 0.1)
rates = st.floats(1e5, 1e10)
sizes = st.lists(st.integers(0, 10**7), min_size=1, max_size=6)


@given(
    sizes=sizes,
    world_size=st.integers(2, 40),
    latency_s=latencies,
    rate=rates,
    share=st.floats(0.3, 1.0),
    coder_rate=rates,
    compute_s=seconds,
)
def test_links_that_may_code_are_as_fast_as_others(
    sizes, world_size, latency_s, rate, share, coder_rate, compute_s
):
    coder = Coder(share=share, bytes_per_s=coder_rate)
    what = Exchanged(coded=Coded.plain(sizes, coder))
    compute = Compute(
        data_s=0.0, compute_s=compute_s, ready_s=(compute_s,) * len(sizes), optimizer_s=0.0
    )
    made = {}
    for lossless in ("off", "auto"):
        link = LinkSpeed(
            sender="a", receiver="b", latency_s=latency_s, bytes_per_s=rate, lossless=lossless
        )
        made[lossless] = forecast(
            [compute] * world_size, [link] * world_size, what=what, rows=world_size
        )
    off, auto = made["off"], made["auto"]
    assert auto.step_s <= off.step_s * (1 + 1e-9)
    assert not off.coded
    sent = off.sent_bytes * (share if auto.coded else 1.0)
    assert auto.sent_bytes == pytest.approx(sent, abs=2)


@settings(max_examples=30)
@given(
    sizes=sizes,
    latency_s=latencies,
    rate=rates,
    constants_s=st.tuples(seconds, seconds, seconds),
    rows_s=st.tuples(seconds, seconds, seconds),
    rows=st.integers(16, 40),
)
def test_a_larger_world_of_equals_is_forecast_as_if_it_were_connected(
    sizes, latency_s, rate, constants_s, rows_s, rows
):
    def step(worlds):
        measured = {}
        for world in worlds:
            most_rows = -(-rows // world)
            data_s, compute_s, optimizer_s = (
                at_s + most_rows * row_s for at_s, row_s in zip(constants_s, rows_s, strict=True)
            )
            measured[str(world)] = {
                "data_s": data_s,
                "compute_s": compute_s,
                "optimizer_s": optimizer_s,
                "ready_s": [compute_s] * len(sizes),
            }
        return {"buckets": sizes, "rows": rows, "worlds": measured}

    def connected(count, worlds):
        names = [f"w{rank}" for rank in range(count)]
        links = [
            {"from": a, "to": b, "rtt_s": 2 * latency_s, "bytes_per_s": rate}
            for a, b in itertools.permutations(names, 2)
        ]
        return dict.fromkeys(names, step(worlds)), links

    spec = parse_job(JOB, source="test")
    repeated = Repeated.fitted(*connected(2, (1, 2)), spec=spec)
    made = forecasts(*connected(16, (16,)), most=16, spec=spec)[-1]
    found = forecast_of(repeated.world(16))
    assert found.world_size == made.world_size
    assert found.step_s == pytest.approx(made.step_s, abs=1e-9)
    assert found.sent_bytes == made.sent_bytes
