"""Where buckets turn from trees to the ring: by latency and rate, with hysteresis."""

from __future__ import annotations

import pytest

from dtd.exchange.schedule.crossover import (
    EXCHANGE_BYTES,
    MOST_EXCHANGE_BYTES,
    ONE_HOST_EXCHANGE_BYTES,
    HopMeter,
    settled,
    whole_bytes,
)
from dtd.exchange.schedule.tree import most_hops

GIGABIT = 125e6
WORLDS = [*range(2, 18), 31, 32, 64, 130]


def of(world_size: int, hop_bytes: int = 0, *, one_host: bool = False) -> int:
    hops = most_hops(world_size)
    return whole_bytes(world_size, hops, hop_bytes=hop_bytes, one_host=one_host)


@pytest.mark.parametrize("world_size", WORLDS)
def test_constants_count_until_links_have_shown_something_and_on_one_host(world_size: int) -> None:
    assert of(world_size) == EXCHANGE_BYTES // (world_size - 1)
    one_host = ONE_HOST_EXCHANGE_BYTES // (world_size - 1)
    assert of(world_size, one_host=True) == of(world_size, 10**6, one_host=True) == one_host


def test_a_single_rank_exchanges_nothing() -> None:
    assert of(1) == of(1, 10**6) == 0


@pytest.mark.parametrize("world_size", WORLDS[1:])
def test_at_the_crossover_both_ways_take_the_same_time(world_size: int) -> None:
    hop_s = 0.1e-3
    size = of(world_size, int(hop_s * GIGABIT))
    ring_s = 2 * (world_size - 1) * (hop_s + size / world_size / GIGABIT)
    tree_s = most_hops(world_size) * hop_s + (world_size - 1) * size / GIGABIT
    assert size < MOST_EXCHANGE_BYTES // (world_size - 1)
    assert tree_s == pytest.approx(ring_s, rel=0.01)


def test_two_ranks_send_the_same_in_either_way_and_a_long_hop_lets_more_travel_whole() -> None:
    assert of(2, 1) == EXCHANGE_BYTES
    assert of(2, EXCHANGE_BYTES) == 2 * EXCHANGE_BYTES


def test_memory_for_contributions_is_bounded() -> None:
    assert of(8, MOST_EXCHANGE_BYTES) == MOST_EXCHANGE_BYTES // 7


def test_a_crossover_that_is_nearly_the_same_is_kept() -> None:
    assert settled(0, 0) == 0
    assert settled(0, 7) == 7
    assert settled(1000, 0) == 1000
    assert [settled(1000, shown) for shown in (500, 999, 2000)] == [1000] * 3
    assert [settled(1000, shown) for shown in (499, 2001)] == [499, 2001]


def after(*, frame_bytes: int, frames: int, rate: float, round_trip_s: float) -> int:
    """What a link shows that has sent frames one by one, each answered before the next."""
    meter = HopMeter()
    meter.hop_bytes(0, 0.0, 0, round_trip_s)
    busy_s = frames * (frame_bytes / rate + round_trip_s)
    return meter.hop_bytes(frames * frame_bytes, busy_s, frames, round_trip_s)


def test_a_link_with_long_frames_shows_its_rate() -> None:
    slow = after(frame_bytes=10**6, frames=100, rate=1e6, round_trip_s=0.01)
    assert slow == pytest.approx((0.005 + 0.1e-3) * 1e6, rel=0.05)
    fast = after(frame_bytes=10**7, frames=100, rate=GIGABIT, round_trip_s=0.01)
    assert fast > 50 * slow


def test_a_link_with_short_frames_has_the_rate_of_most_networks() -> None:
    """Acknowledgements take most of the time in which it is busy."""
    vote = after(frame_bytes=100, frames=1000, rate=1e6, round_trip_s=0.01)
    assert vote == after(frame_bytes=0, frames=0, rate=1e6, round_trip_s=0.01)
    assert vote == pytest.approx((0.005 + 0.1e-3) * 100e6, rel=0.05)


def test_a_rate_that_was_shown_stays_while_the_link_is_quiet_and_follows_changes() -> None:
    meter = HopMeter()
    shown = meter.hop_bytes(10**7, 1.0, 10, 0.001)
    assert meter.hop_bytes(10**7 + 500, 1.001, 15, 0.001) == shown
    slower = [meter.hop_bytes(10**7 + 10**6 * n, 1.0 + n, 10 + n, 0.001) for n in range(1, 20)]
    assert slower == sorted(slower, reverse=True)
    assert slower[-1] == pytest.approx(shown / 10, rel=0.1)


def test_without_a_round_trip_nothing_is_known() -> None:
    assert HopMeter().hop_bytes(10**9, 10.0, 10, 0.0) == 0
