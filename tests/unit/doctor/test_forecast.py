"""Step times from measured parts: worked by hand, and what limits a step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dtd.doctor.forecast import Compute, Exchanged, LinkSpeed, forecast
from dtd.doctor.transfer import Coded, Coder, Exchange, Ring, Star, estimate_transfer

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


def ring(count, *, latency_s=0.0, bytes_per_s=1e9, lossless="off"):
    return [
        LinkSpeed(
            sender=f"w{rank}",
            receiver=f"w{(rank + 1) % count}",
            latency_s=latency_s,
            bytes_per_s=bytes_per_s,
            lossless=lossless,
        )
        for rank in range(count)
    ]


def test_a_codec_is_waited_for_before_the_wire_and_after_it():
    what = coded(encode_s=0.5, decode_s=0.25)
    made = forecast([compute((0.2,))] * 2, ring(2, bytes_per_s=1e7), what=what, rows=10)
    assert made.step_s == pytest.approx(0.2 + 0.5 + 0.1 + 0.25 + 0.01)
    assert made.limit == "codec"


@pytest.mark.parametrize(
    ("lossless", "link_rate", "coder_rate", "exposed_s", "sent_bytes"),
    [
        ("off", 1e7, 1e9, 1.0, 10**7),
        ("auto", 1e7, 1e9, 0.5, 5 * 10**6),
        ("auto", 1e7, 1.25e7, 0.8, 5 * 10**6),
        ("auto", 1e7, 1.02e7, 1.0, 10**7),
        ("on", 1e7, 5e6, 2.0, 5 * 10**6),
        ("auto", 1.25e9, 1e12, 0.008, 10**7),
    ],
)
def test_a_link_codes_where_that_is_faster(lossless, link_rate, coder_rate, exposed_s, sent_bytes):
    """Two workers send 10 MB, of which a coder leaves half."""
    what = Exchanged(coded=Coded.plain([10**7], Coder(share=0.5, bytes_per_s=coder_rate)))
    links = ring(2, bytes_per_s=link_rate, lossless=lossless)
    made = forecast([compute((0.2,))] * 2, links, what=what, rows=10)
    assert (made.exposed_s, made.sent_bytes) == pytest.approx((exposed_s, sent_bytes))
    assert made.coded == (sent_bytes < 10**7)


@pytest.mark.parametrize(("every_steps", "exposed_s"), [(10, 0.0), (2, 1.0 - 0.21)])
def test_what_travels_during_the_next_steps_is_exposed_if_it_takes_longer(every_steps, exposed_s):
    """2 s in all: 0.2 s for each of ten steps of 0.21 s, or 1 s for each of two."""
    what = plain([10**9, 10**9], every_steps=every_steps, overlaps=True)
    made = forecast([compute()] * 2, ring(2), what=what, rows=10)
    assert made.exposed_s == pytest.approx(exposed_s)
    assert made.step_s == pytest.approx(0.21 + exposed_s)


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


def test_the_vote_grows_with_the_logarithm_of_the_world():
    def vote_s(world_size):
        links = ring(world_size, latency_s=1.0)
        return forecast([compute(())] * world_size, links, what=plain([]), rows=1).exposed_s

    assert [vote_s(2**bits) for bits in range(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_a_small_bucket_is_sent_whole_to_every_rank_in_few_hops():
    gone = estimate_transfer([0.0], Coded.plain([1000]), limits(latency_s=1.0), 8)
    assert gone.comm_s == pytest.approx(7 * 1000 / 1e6 + 3 * 1.0)


def star(**changed):
    rates = {"up_bytes_per_s": 1e9, "down_bytes_per_s": 1e9}
    return Star(**{"servers": 1, "latency_s": 0.0, "narrowest": "server-0"} | rates | changed)


SEEDS = range(40)


def limits(*, latency_s=0.0, **changed):
    latencies = {"latency_s": latency_s, "mean_latency_s": latency_s}
    return Ring(**latencies | {"bytes_per_s": 1e6} | changed)


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


def test_a_bucket_is_sent_while_another_one_is_late():
    """Three ranks: each is on the links for 4 s, and through four latencies 4 s later."""
    made = estimate_transfer([0.0, 0.0], Coded.plain([3 * 10**6] * 2), limits(latency_s=1.0), 3)
    assert (made.comm_s, made.end_s) == pytest.approx((12, 12))


def passed_on_s(latencies_s, hops):
    """When the last segment is through, if each is passed on the moment that it arrives."""
    count = len(latencies_s)
    return max(
        sum(latencies_s[(first + hop) % count] for hop in range(hops)) for first in range(count)
    )


@pytest.mark.parametrize("latencies_s", [[0.1] * 4, [0.1, 2.0, 0.3, 0.1], [0.0] * 7 + [1.0]])
def test_a_segment_crosses_a_slow_link_no_more_often_than_the_others(latencies_s):
    """One large bucket over infinitely fast links, and the vote, in the worst case for both."""
    count = len(latencies_s)
    links = [
        replace(link, latency_s=latency_s)
        for link, latency_s in zip(ring(count, bytes_per_s=1e15), latencies_s, strict=True)
    ]
    what = Exchanged(coded=Coded.plain([10**12]))
    made = forecast([compute((0.2,))] * count, links, what=what, rows=count)
    votes_s = (count.bit_length() - 1) * max(latencies_s)
    through_s = passed_on_s(latencies_s, 2 * (count - 1))
    assert made.exposed_s == pytest.approx(through_s + votes_s, rel=0.2)


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
