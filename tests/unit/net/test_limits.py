"""Limits: rates, and unauthenticated connections."""

from __future__ import annotations

import pytest

from dtd.net import limits as bounds
from dtd.net.limits import (
    Allowance,
    ConnectionLimiter,
    Connections,
    Pacing,
    Verdict,
    connections_for,
    origin_of,
)


def test_a_burst_is_there_at_once_and_the_rest_is_earned() -> None:
    allowance = Allowance(rate_per_s=2.0, burst=3.0)
    assert [allowance.takes(1, 100.0) for _ in range(4)] == [True, True, True, False]
    assert not allowance.takes(1, 100.4)
    assert allowance.takes(1, 100.5)
    assert allowance.left(200.0) == 3.0


def test_each_caller_waits_for_its_own_rate() -> None:
    pacing = Pacing(rate_per_s=10.0, burst=1.0)
    assert pacing.wait_s("a", 0.0) == 0.0
    assert pacing.wait_s("a", 0.0) == 0.0  # into debt, once
    assert pacing.wait_s("a", 0.0) == pytest.approx(0.1)
    assert pacing.wait_s("b", 0.0) == 0.0
    assert pacing.wait_s("a", 0.1) == pytest.approx(0.0)


WELCOME = Verdict()


def test_a_peer_that_opens_too_many_at_once_loses_its_own_oldest() -> None:
    door = ConnectionLimiter()
    for key in range(bounds.PER_ADDRESS):
        assert door.arrived(key, "10.0.0.1", 0.0) == WELCOME
    assert door.arrived(98, "10.0.0.2", 0.0) == WELCOME
    assert door.arrived(99, "10.0.0.1", 0.0) == Verdict(dropped=(0,))
    assert len(door) == bounds.PER_ADDRESS + 1


def test_when_there_is_no_room_all_that_has_most_makes_way() -> None:
    door = ConnectionLimiter()
    assert door.arrived(1000, "10.9.9.9", 0.0) == WELCOME
    key = 0
    for address in range(20):
        for _ in range(bounds.PER_ADDRESS // 2):
            if len(door) < bounds.IN_ALL:
                door.arrived(key, f"10.0.0.{address}", 0.0)
                key += 1
    assert len(door) == bounds.IN_ALL
    assert door.arrived(2000, "10.8.8.8", 0.0) == Verdict(dropped=(0,))
    assert len(door) == bounds.IN_ALL
    assert 1000 in door.overdue(10.0)


def test_the_rate_of_an_address_is_bounded_after_a_burst() -> None:
    door = ConnectionLimiter()
    for key in range(int(bounds.BURST)):
        assert not door.arrived(key, "10.0.0.1", 0.0).refusal
    refused = door.arrived(100, "10.0.0.1", 0.0)
    assert refused == Verdict(refusal="more than 20 connections a second from 10.0.0.1")
    assert not door.arrived(101, "10.0.0.2", 0.0).refusal
    assert not door.arrived(102, "10.0.0.1", 1.001 / bounds.RATE_PER_S).refusal
    assert door.arrived(103, "10.0.0.1", 1.001 / bounds.RATE_PER_S).refusal


def failing_alone(**bounds_: float) -> ConnectionLimiter:
    """A door that holds nothing against those who prove themselves."""
    return ConnectionLimiter(only_failures=True, **bounds_)


def test_a_peer_that_fails_again_and_again_is_not_let_in_for_a_while() -> None:
    door = failing_alone()
    for key in range(int(bounds.BURST)):
        assert door.arrived(key, "10.0.0.1", 0.0) == WELCOME
        door.gone(key, 0.0)
    refused = door.arrived(100, "10.0.0.1", 0.0)
    assert refused == Verdict(refusal="more than 20 failed connections a second from 10.0.0.1")
    assert door.arrived(101, "10.0.0.2", 0.0) == WELCOME
    a_token_later_s = 1.001 / bounds.RATE_PER_S
    assert door.arrived(102, "10.0.0.1", a_token_later_s) == WELCOME
    assert door.arrived(103, "10.0.0.1", a_token_later_s) == WELCOME  # none has failed yet


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_callers_of_this_host_that_fail_are_bounded_in_number_alone(host: str) -> None:
    door = failing_alone()
    assert not any(door.arrived(key, host, 0.0).refusal for key in range(200))
    assert len(door) == bounds.PER_ADDRESS
    everybody = ConnectionLimiter()
    assert any(everybody.arrived(key, host, 0.0).refusal for key in range(200))


def test_a_peer_that_says_nothing_is_dropped_in_time() -> None:
    door = ConnectionLimiter()
    door.arrived(1, "10.0.0.1", 10.0)
    door.arrived(2, "10.0.0.2", 12.0)
    assert door.next_deadline() == 10.0 + bounds.AUTHENTICATE_WITHIN_S
    assert door.overdue(14.9) == ()
    assert door.overdue(15.0) == (1,)
    assert door.next_deadline() == 17.0


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fd00:1:2:3:4:5:6:7", "fd00:1:2:3::/64"),
        ("::1", "::/64"),
        ("?", "?"),
    ],
)
def test_an_ipv6_host_has_a_whole_network_and_counts_once(host: str, origin: str) -> None:
    assert origin_of(host) == origin


def test_strangers_of_all_addresses_share_one_rate() -> None:
    """Each of them costs a handshake, and a flood has many addresses."""
    door = ConnectionLimiter()
    for number in range(int(bounds.STRANGERS_BURST)):
        assert not door.arrived(number, f"10.0.{number // 250}.{number % 250}", 0.0).refusal
    refused = door.arrived(1000, "10.1.0.1", 0.0)
    assert refused.refusal == "more than 100 connections a second from unknown addresses"
    assert not door.arrived(1001, "10.1.0.1", 1.001 / bounds.STRANGERS_PER_S).refusal


def test_where_somebody_is_known_others_are_let_in_before_strangers() -> None:
    door = ConnectionLimiter(in_all=2)
    door.arrived(0, "10.0.0.1", 0.0)
    door.proven(0)
    for number in range(1, int(bounds.STRANGERS_BURST)):
        door.arrived(number, f"10.1.{number // 250}.{number % 250}", 0.0)
    assert door.arrived(1000, "10.9.9.9", 0.0).refusal
    assert not door.arrived(1001, "10.0.0.1", 0.0).refusal
    assert door.arrived(1002, "10.0.0.1", 0.0).dropped != (1001,)
    assert door.arrived(1003, "10.0.0.1", 0.0) == Verdict(dropped=(1001,))


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(10, 16), (256, 192), (1024, 960), (1_000_000, 4096)]
)
def test_connections_leave_room_for_files(descriptors, connections):
    assert connections_for(descriptors) == connections


def test_there_is_an_end_to_all_connections_and_the_newest_stranger_makes_room():
    connections: Connections[int] = Connections(in_all=3)
    assert connections.opened(1) == connections.opened(2) == connections.opened(3) == ""
    assert connections.opened(4) == "3 connections are open"
    connections.proven(3)
    assert connections.newest_unproven() == 2
    for _ in range(2):
        connections.gone(2)
    connections.proven(2)
    assert connections.opened(4) == ""
