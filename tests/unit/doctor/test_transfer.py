"""Coded buckets on their way: by hand, and against a simulation that goes tick by tick."""

from __future__ import annotations

import random

import pytest

from dtd.doctor.transfer import Coded, Exchange, Ring, Star, estimate_transfer

SEEDS = range(40)
MIB = 1 << 20


def ring(**changed):
    return Ring(**{"latency_s": 0.0, "bytes_per_s": 1e6, "overhead_s": 0.0} | changed)


def one(**changed):
    """One bucket with one stage of 3 MB."""
    exchange = Exchange(**{"bucket": 0, "size_bytes": 3 * 10**6} | changed)
    return Coded(exchanges=(exchange,), decode_s=(0.0,))


def test_a_sum_goes_round_twice_and_a_gather_once():
    """Three ranks: segments of 1 MB, so hops of 1 s."""
    summed, gathered = (
        estimate_transfer([5.0], one(gathers=way), ring(), 3) for way in (False, True)
    )
    assert (summed.comm_s, summed.end_s, summed.sent_bytes) == pytest.approx((4, 9, 4 * 10**6))
    assert (gathered.comm_s, gathered.end_s, gathered.sent_bytes) == pytest.approx(
        (2, 7, 2 * 10**6)
    )


def test_every_hop_has_its_latency_and_every_exchange_its_overhead():
    slow = ring(latency_s=0.5, overhead_s=0.25)
    assert estimate_transfer([0.0], one(), slow, 3).comm_s == pytest.approx(4 * 1.5 + 0.25)
    assert estimate_transfer([0.0], one(gathers=True), slow, 3).comm_s == pytest.approx(
        2 * 1.5 + 0.25
    )


def test_an_addition_that_is_slower_than_the_wire_is_waited_for_in_the_first_round():
    """9 s for all of the buffer: 3 s instead of 1 s in each of two hops."""
    assert estimate_transfer([0.0], one(add_s=9.0), ring(), 3).comm_s == pytest.approx(
        2 * 3 + 2 * 1
    )
    assert estimate_transfer([0.0], one(add_s=2.0), ring(), 3).comm_s == pytest.approx(4)


def test_a_small_sum_goes_round_whole_and_a_small_gather_does_not():
    small = {"size_bytes": 3000, "add_s": 0.5}
    summed = estimate_transfer([0.0], one(**small), ring(), 3)
    assert summed.comm_s == pytest.approx(2 * (0.003 + 0.5))
    assert summed.sent_bytes == 6000
    assert (
        estimate_transfer([0.0], one(size_bytes=3000, gathers=True), ring(), 3).comm_s == 2 * 0.001
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
    assert estimate_transfer([1.0, 2.0], coded, ring(), 2).end_s == pytest.approx(11.5)
    assert estimate_transfer([1.0, 20.0], coded, ring(), 2).end_s == pytest.approx(21.0)


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
    made = estimate_transfer(ready_s, coded, ring(bytes_per_s=float(MIB)), 2)
    assert made.end_s == pytest.approx(ticked_end_s(ready_s, coded))


@pytest.mark.parametrize("copies", range(4))
def test_halves_of_a_sum_take_its_hops_together(copies):
    """Three ranks: four hops of 1 s; from two copies on, all of them are in the first half."""
    first = estimate_transfer([0.0], one(scatters=True, copies=copies), ring(), 3)
    second = estimate_transfer([0.0], one(gathers=True, copies=copies), ring(), 3)
    hops = min(2 + copies, 4)
    assert (first.comm_s, first.sent_bytes) == pytest.approx((hops, hops * 10**6))
    assert (second.comm_s, second.sent_bytes) == pytest.approx((4 - hops, (4 - hops) * 10**6))


def star(**changed):
    rates = {"up_bytes_per_s": 1e6, "down_bytes_per_s": 3e6}
    return Star(**{"servers": 2, "latency_s": 0.0, "narrowest": "w0"} | rates | changed)


def test_over_servers_all_of_a_half_goes_through_a_worker_whatever_the_world_size():
    for world_size in (1, 2, 5):
        up = estimate_transfer([5.0], one(scatters=True, copies=1), ring(star=star()), world_size)
        down = estimate_transfer([5.0], one(gathers=True, copies=1), ring(star=star()), world_size)
        assert (up.comm_s, up.end_s, up.sent_bytes) == pytest.approx((3, 8, 3 * 10**6))
        assert (down.comm_s, down.end_s, down.sent_bytes) == pytest.approx((1, 6, 0))


def test_whole_sums_go_round_the_ring_of_workers_and_servers():
    """A word of 3000 bytes among two workers and two servers: three hops."""
    small = one(size_bytes=3000)
    beside = estimate_transfer([0.0], small, ring(latency_s=0.5, star=star()), 2)
    alone = estimate_transfer([0.0], small, ring(latency_s=0.5), 4)
    assert beside == alone
    assert beside.comm_s == pytest.approx(3 * 0.503)
    large = estimate_transfer([0.0], one(), ring(star=star()), 2)
    assert large == estimate_transfer([0.0], one(), ring(), 4)
