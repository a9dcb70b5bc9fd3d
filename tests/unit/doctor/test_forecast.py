"""Step times from measured parts: worked by hand, and what limits a step."""

from __future__ import annotations

import random

import pytest

from dtd.doctor.forecast import (
    Coded,
    Compute,
    Exchange,
    Exchanged,
    LinkSpeed,
    Ring,
    Star,
    estimate_transfer,
    forecast,
    sent_bytes,
)

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


SEEDS = range(40)


def limits(**changed):
    return Ring(**{"latency_s": 0.0, "bytes_per_s": 1e6, "overhead_s": 0.0} | changed)


def two_servers():
    return star(servers=2, up_bytes_per_s=1e6, down_bytes_per_s=3e6, narrowest="w0")


def one(**changed):
    """One bucket with one stage of 3 MB."""
    exchange = Exchange(**{"bucket": 0, "size_bytes": 3 * 10**6} | changed)
    return Coded(exchanges=(exchange,), decode_s=(0.0,))


def test_a_sum_goes_round_twice_and_a_gather_once():
    """Three ranks: segments of 1 MB, so hops of 1 s."""
    summed, gathered = (
        estimate_transfer([5.0], one(gathers=way), limits(), 3) for way in (False, True)
    )
    assert (summed.comm_s, summed.end_s, summed.sent_bytes) == pytest.approx((4, 9, 4 * 10**6))
    assert (gathered.comm_s, gathered.end_s, gathered.sent_bytes) == pytest.approx(
        (2, 7, 2 * 10**6)
    )


def test_an_addition_that_is_slower_than_the_wire_is_waited_for_in_the_first_round():
    """9 s for all of the buffer: 3 s instead of 1 s in each of two hops."""
    assert estimate_transfer([0.0], one(add_s=9.0), limits(), 3).comm_s == pytest.approx(
        2 * 3 + 2 * 1
    )
    assert estimate_transfer([0.0], one(add_s=2.0), limits(), 3).comm_s == pytest.approx(4)


def test_a_small_sum_goes_round_whole_and_a_small_gather_does_not():
    small = {"size_bytes": 3000, "add_s": 0.5}
    summed = estimate_transfer([0.0], one(**small), limits(), 3)
    assert summed.comm_s == pytest.approx(2 * (0.003 + 0.5))
    assert summed.sent_bytes == 6000
    assert (
        estimate_transfer([0.0], one(size_bytes=3000, gathers=True), limits(), 3).comm_s
        == 2 * 0.001
    )


def test_what_costs_nothing_does_not_wait_for_the_thread():
    """The second bucket's encoding is over at 11; the third one leaves at 2 as it is."""
    coded = Coded(
        exchanges=(
            Exchange(bucket=1, size_bytes=10**6, gathers=True),
            Exchange(bucket=0, size_bytes=10**6, gathers=True, encode_s=10.0),
        ),
        decode_s=(0.0, 0.0),
    )
    assert estimate_transfer([1.0, 2.0], coded, limits(), 2).end_s == pytest.approx(11.5)
    assert estimate_transfer([1.0, 20.0], coded, limits(), 2).end_s == pytest.approx(21.0)


def plan(seed):
    """Buckets of one to three stages in the order in which dtd lets them travel; whole seconds."""
    draw = random.Random(seed)
    stages = [draw.randint(1, 3) for _ in range(draw.randint(1, 5))]
    order = sorted(
        ((bucket, stage) for bucket, count in enumerate(stages) for stage in range(count)),
        key=lambda at: (at[0] + at[1], at[1]),
    )
    exchanges = [
        Exchange(
            bucket=bucket,
            size_bytes=2 * draw.randint(1, 6) * MIB,
            gathers=True,
            encode_s=float(draw.randint(1, 5)),
        )
        for bucket, _ in order
    ]
    ready_s = sorted(float(draw.randint(0, 20)) for _ in stages)
    decode_s = tuple(float(draw.randint(1, 4)) for _ in stages)
    return ready_s, Coded(exchanges=tuple(exchanges), decode_s=decode_s)


def ticked_end_s(ready_s, coded):
    """The same with two ranks and 1 MiB a second: what each second brings, one after another."""
    stages = {bucket: [] for bucket in range(len(ready_s))}
    for position, exchange in enumerate(coded.exchanges):
        stages[exchange.bucket].append(position)
    queue, encoded, decoded = [], set(), set()
    busy, wire, position, now = None, None, 0, 0
    while len(decoded) < len(ready_s):
        queue += [(now, bucket, 0) for bucket, full_s in enumerate(ready_s) if full_s == now]
        if busy is not None and busy[0] == now:
            _, bucket, stage = busy
            busy = None
            if stage == len(stages[bucket]):
                decoded.add(bucket)
            else:
                encoded.add(stages[bucket][stage])
        if wire is not None and wire == now:
            bucket = coded.exchanges[position].bucket
            queue.append((now, bucket, stages[bucket].index(position) + 1))
            position, wire = position + 1, None
        if wire is None and position in encoded:
            wire = now + coded.exchanges[position].size_bytes // (2 * MIB)
        if busy is None and queue:
            queue.sort()
            _, bucket, stage = queue.pop(0)
            last = stage == len(stages[bucket])
            cost = coded.decode_s[bucket]
            if not last:
                cost = coded.exchanges[stages[bucket][stage]].encode_s
            busy = (now + cost, bucket, stage)
        if len(decoded) < len(ready_s):
            now += 1
    return now


@pytest.mark.parametrize("seed", SEEDS)
def test_dependent_stages_take_what_a_simulation_by_the_tick_says(seed):
    ready_s, coded = plan(seed)
    made = estimate_transfer(ready_s, coded, limits(bytes_per_s=float(MIB)), 2)
    assert made.end_s == pytest.approx(ticked_end_s(ready_s, coded))


@pytest.mark.parametrize("copies", range(4))
def test_halves_of_a_sum_take_its_hops_together(copies):
    """Three ranks: four hops of 1 s; from two copies on, all of them are in the first half."""
    first = estimate_transfer([0.0], one(scatters=True, copies=copies), limits(), 3)
    second = estimate_transfer([0.0], one(gathers=True, copies=copies), limits(), 3)
    hops = min(2 + copies, 4)
    assert (first.comm_s, first.sent_bytes) == pytest.approx((hops, hops * 10**6))
    assert (second.comm_s, second.sent_bytes) == pytest.approx((4 - hops, (4 - hops) * 10**6))


def test_over_servers_all_of_a_half_goes_through_a_worker_whatever_the_world_size():
    for world_size in (1, 2, 5):
        up = estimate_transfer(
            [5.0], one(scatters=True, copies=1), limits(star=two_servers()), world_size
        )
        down = estimate_transfer(
            [5.0], one(gathers=True, copies=1), limits(star=two_servers()), world_size
        )
        assert (up.comm_s, up.end_s, up.sent_bytes) == pytest.approx((3, 8, 3 * 10**6))
        assert (down.comm_s, down.end_s, down.sent_bytes) == pytest.approx((1, 6, 0))


def test_whole_sums_go_round_the_ring_of_workers_and_servers():
    """A word of 3000 bytes among two workers and two servers: three hops."""
    small = one(size_bytes=3000)
    beside = estimate_transfer([0.0], small, limits(latency_s=0.5, star=two_servers()), 2)
    alone = estimate_transfer([0.0], small, limits(latency_s=0.5), 4)
    assert beside == alone
    assert beside.comm_s == pytest.approx(3 * 0.503)
    large = estimate_transfer([0.0], one(), limits(star=two_servers()), 2)
    assert large == estimate_transfer([0.0], one(), limits(), 4)
