"""Limits: rates, and unauthenticated connections."""

from __future__ import annotations

import pytest

from dtd.net import limits as bounds
from dtd.net.limits import (
    ConnectionLimiter,
    Verdict,
    origin_of,
)

WELCOME = Verdict()


def test_when_there_is_no_room_all_that_has_most_makes_way() -> None:
    door = ConnectionLimiter()
    assert door.arrived(1000, "10.9.9.9", 0.0) == WELCOME
    key = 0
    for address in range(20):
        for _ in range(bounds.PER_ADDRESS // 2):
            if len(door._unproven) < bounds.IN_ALL:
                door.arrived(key, f"10.0.0.{address}", 0.0)
                key += 1
    assert len(door._unproven) == bounds.IN_ALL
    assert door.arrived(2000, "10.8.8.8", 0.0) == Verdict(dropped=(0,))
    assert len(door._unproven) == bounds.IN_ALL
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
