"""Step times from measured parts: worked by hand, and what limits a step."""

from __future__ import annotations

import pytest

from dtd.doctor.forecast import Compute, Exchanged, LinkSpeed, forecast, sent_bytes
from dtd.doctor.transfer import Coded, Exchange, Star

MIB = 1 << 20


def compute(ready_s=(0.1, 0.2), *, data_s=0.0, compute_s=0.2, optimizer_s=0.01):
    return Compute(
        data_s=data_s, compute_s=compute_s, ready_s=tuple(ready_s), optimizer_s=optimizer_s
    )


def plain(sizes, **more):
    return Exchanged(coded=Coded.plain(sizes), **more)


def coded(*, encode_s, decode_s):
    """One bucket of 1e6 bytes that a codec takes its time for."""
    exchange = Exchange(bucket=0, size_bytes=10**6, encode_s=encode_s)
    return Exchanged(coded=Coded(exchanges=(exchange,), decode_s=(decode_s,)))


def ring(count, *, latency_s=0.0, bytes_per_s=1e9):
    return [
        LinkSpeed(
            sender=f"w{rank}",
            receiver=f"w{(rank + 1) % count}",
            latency_s=latency_s,
            bytes_per_s=bytes_per_s,
        )
        for rank in range(count)
    ]


def test_one_worker_has_no_wire():
    made = forecast([compute(data_s=0.05)], [], what=plain([MIB, MIB]), rows=26, overhead_s=9.0)
    assert made.step_s == pytest.approx(0.26)
    assert made.samples_per_s == pytest.approx(100)
    assert (made.exposed_s, made.comm_s, made.limit) == (0.0, 0.0, "compute")


def test_buckets_follow_one_another():
    """wire = 2*1/2 * 1e8 / 1e9 = 0.1 s each: ends at 0.2, then at 0.3."""
    made = forecast([compute()] * 2, ring(2), what=plain([10**8, 10**8]), rows=10)
    assert made.comm_s == pytest.approx(0.2)
    assert made.exposed_s == pytest.approx(0.1)
    assert made.step_s == pytest.approx(0.31)


def test_latency_counts_for_every_hop_and_for_the_word():
    """Three workers: 4 hops of 10 ms and 5 ms a bucket, 2 hops for the word."""
    made = forecast(
        [compute()] * 3,
        ring(3, latency_s=0.01, bytes_per_s=1e18),
        what=plain([MIB, MIB]),
        rows=10,
        overhead_s=0.005,
    )
    assert made.comm_s == pytest.approx(2 * 0.045 + 0.02)
    assert made.step_s == pytest.approx(0.2 + 0.045 + 0.02 + 0.01)


def test_a_small_bucket_goes_round_whole_in_half_the_hops():
    """Three workers, 100,000 bytes at 1e7 a second: 2 hops of 10 ms and 10 ms each."""
    links = ring(3, latency_s=0.01, bytes_per_s=1e7)
    made = forecast([compute((0.2,))] * 3, links, what=plain([100_000]), rows=10)
    assert made.comm_s == pytest.approx(2 * (0.01 + 0.01) + 0.02)


def test_a_codec_is_waited_for_before_the_wire_and_after_it():
    what = coded(encode_s=0.5, decode_s=0.25)
    made = forecast([compute((0.2,))] * 2, ring(2, bytes_per_s=1e7), what=what, rows=10)
    assert made.step_s == pytest.approx(0.2 + 0.5 + 0.1 + 0.25 + 0.01)
    assert made.limit == "codec"


def test_local_steps_share_the_exchange_that_follows_them():
    """0.1 s each, after backward: 0.2 s, a tenth of it for each of ten steps."""
    what = plain([10**8, 10**8], every_steps=10)
    made = forecast([compute()] * 2, ring(2), what=what, rows=10)
    assert made.exposed_s == pytest.approx(0.02)
    assert made.comm_s == pytest.approx(0.02)
    assert made.step_s == pytest.approx(0.23)


@pytest.mark.parametrize(("every_steps", "exposed_s"), [(10, 0.0), (2, 1.0 - 0.21)])
def test_what_travels_during_the_next_steps_is_exposed_if_it_takes_longer(every_steps, exposed_s):
    """2 s in all: 0.2 s for each of ten steps of 0.21 s, or 1 s for each of two."""
    what = plain([10**9, 10**9], every_steps=every_steps, overlaps=True)
    made = forecast([compute()] * 2, ring(2), what=what, rows=10)
    assert made.exposed_s == pytest.approx(exposed_s)
    assert made.step_s == pytest.approx(0.21 + exposed_s)


@pytest.mark.parametrize(("buckets", "exposed_s"), [(1, 0.1), (2, 0.1), (3, 0.2)])
def test_forward_waits_for_the_first_parameters_and_hides_others(buckets, exposed_s):
    """0.1 s each; the first gradients are there 0.1 s after the step has begun."""
    gathered = Coded.plain([10**8] * buckets)
    made = forecast([compute()] * 2, ring(2), what=plain([0, 0], parameters=gathered), rows=10)
    assert made.exposed_s == pytest.approx(exposed_s)
    assert made.comm_s == pytest.approx(0.1 * buckets)


def test_what_a_rank_sends_for_each_step():
    """Two thirds of the bytes twice, of which a tenth falls to each step."""
    assert sent_bytes(plain([3 * 10**6]), 3) == 4 * 10**6
    assert sent_bytes(plain([3 * 10**6], every_steps=10), 3) == 4 * 10**5


def test_everybody_waits_for_the_slowest_in_each_part():
    workers = [compute((0.1, 0.2)), compute((0.3, 0.4), compute_s=0.4, data_s=0.1)]
    made = forecast(workers, ring(2, bytes_per_s=1e18), what=plain([MIB, MIB]), rows=10)
    assert made.step_s == pytest.approx(0.1 + 0.4 + 0.01)


def test_the_narrowest_link_is_named():
    links = ring(3)
    links[1] = LinkSpeed(sender="w1", receiver="w2", latency_s=0.0, bytes_per_s=1e6)
    made = forecast([compute()] * 3, links, what=plain([MIB, MIB]), rows=10)
    assert made.limit == "bandwidth of the link w1 -> w2"


@pytest.mark.parametrize(
    ("changed", "latency_s", "limit"),
    [
        ({"data_s": 3.0}, 0.0, "data loading"),
        ({}, 1.0, "latency"),
        ({"compute_s": 5.0, "ready_s": (4.0, 5.0)}, 0.0, "compute"),
    ],
)
def test_what_limits_a_step(changed, latency_s, limit):
    links = ring(2, latency_s=latency_s)
    made = forecast([compute(**changed)] * 2, links, what=plain([MIB, MIB]), rows=10)
    assert made.limit == limit


# --- parameter servers ---------------------------------------------------------------------------


def star(**changed):
    rates = {"up_bytes_per_s": 1e9, "down_bytes_per_s": 1e9}
    return Star(**{"servers": 1, "latency_s": 0.0, "narrowest": "server-0"} | rates | changed)


def halves(size):
    up = Coded(exchanges=(Exchange(bucket=0, size_bytes=size, scatters=True),), decode_s=(0.0,))
    down = Coded(exchanges=(Exchange(bucket=0, size_bytes=size, gathers=True),), decode_s=(0.0,))
    return Exchanged(coded=up, parameters=down)


def by_star(workers, **changed):
    links = ring(len(workers) + 1, bytes_per_s=1e9, latency_s=0.01)
    return forecast(workers, links, what=halves(10**8), rows=10, star=star(**changed))


def test_the_link_that_limits_workers_and_servers_is_named():
    assert by_star([compute((0.2,))], up_bytes_per_s=1e8).limit == (
        "bandwidth of the link of server-0"
    )
    assert by_star([compute((0.2,))], latency_s=5.0).limit == "latency"
