"""Bounds on callers who have not shown who they are: share, room, rate and patience."""

from __future__ import annotations

import pytest

from dtd.limits import connection_limiter as bounds
from dtd.limits.connection_limiter import ConnectionLimiter, Verdict, origin_of

WELCOME = Verdict()


def test_a_caller_is_admitted_and_forgotten_once_proven() -> None:
    door = ConnectionLimiter()
    assert door.arrived(1, "10.0.0.1", 0.0) == WELCOME
    assert len(door) == 1
    door.proven(1)
    door.proven(1)
    door.gone(1, 1.0)
    assert len(door) == 0
    assert door.next_deadline() is None
    assert door.overdue(100.0) == ()


def test_who_opens_too_many_at_once_loses_his_own_oldest() -> None:
    door = ConnectionLimiter()
    for key in range(bounds.PER_ADDRESS):
        assert door.arrived(key, "10.0.0.1", 0.0) == WELCOME
    assert door.arrived(98, "10.0.0.2", 0.0) == WELCOME
    assert door.arrived(99, "10.0.0.1", 0.0) == Verdict(dropped=(0,))
    assert len(door) == bounds.PER_ADDRESS + 1


def test_when_there_is_no_room_whoever_has_most_makes_way() -> None:
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


def test_the_rate_of_our_own_is_not_bounded_but_their_share_is() -> None:
    door = ConnectionLimiter()
    verdicts = [door.arrived(key, "127.0.0.1", 0.0, no_rate=True) for key in range(200)]
    assert not any(verdict.refusal for verdict in verdicts)
    assert len(door) == bounds.PER_ADDRESS


def failing_alone(**bounds_: float) -> ConnectionLimiter:
    """A door that holds nothing against those who prove themselves."""
    return ConnectionLimiter(only_failures=True, **bounds_)


def test_who_proves_himself_has_no_rate() -> None:
    door = failing_alone()
    for key in range(10 * int(bounds.BURST)):
        assert door.arrived(key, "10.0.0.1", 0.0) == WELCOME
        door.proven(key)
        door.gone(key, 0.0)
    assert door.arrived(-1, "10.0.0.1", 0.0) == WELCOME


def test_many_of_one_address_may_come_at_once() -> None:
    door = failing_alone(per_address=1000, in_all=1000)
    verdicts = [door.arrived(key, "10.0.0.1", 0.0) for key in range(1000)]
    assert verdicts == [WELCOME] * 1000


def test_who_fails_again_and_again_is_not_let_in_for_a_while() -> None:
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


def test_all_that_fail_count_though_they_came_together() -> None:
    """Otherwise a flood would pass whenever there is one token."""
    door = failing_alone(per_address=200, in_all=200, patience_s=5.0)
    for key in range(200):
        assert door.arrived(key, "10.0.0.1", 0.0) == WELCOME
    assert len(door.overdue(5.0)) == 200
    debt_s = (200 - bounds.BURST) / bounds.RATE_PER_S
    assert door.arrived(200, "10.0.0.1", 5.0 + debt_s).refusal
    assert door.arrived(201, "10.0.0.1", 5.0 + debt_s + 1.001 / bounds.RATE_PER_S) == WELCOME


def test_who_makes_way_has_failed() -> None:
    door = failing_alone(per_address=1)
    verdicts = [door.arrived(key, "10.0.0.1", 0.0) for key in range(int(bounds.BURST) + 2)]
    assert verdicts[1:-1] == [Verdict(dropped=(key,)) for key in range(int(bounds.BURST))]
    assert verdicts[-1].refusal


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_callers_of_this_host_that_fail_are_bounded_in_number_alone(host: str) -> None:
    door = failing_alone()
    assert not any(door.arrived(key, host, 0.0).refusal for key in range(200))
    assert len(door) == bounds.PER_ADDRESS
    everybody = ConnectionLimiter()
    assert any(everybody.arrived(key, host, 0.0).refusal for key in range(200))


def test_addresses_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_ADDRESSES", 2)
    door = ConnectionLimiter()
    for number in range(10):
        door.arrived(number, f"10.0.0.{number}", 0.0)
    assert list(door._allowances) == ["10.0.0.8", "10.0.0.9"]


def test_who_says_nothing_is_dropped_in_time() -> None:
    door = ConnectionLimiter()
    door.arrived(1, "10.0.0.1", 10.0)
    door.arrived(2, "10.0.0.2", 12.0)
    assert door.next_deadline() == 10.0 + bounds.PATIENCE_S
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


def test_known_addresses_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_KNOWN", 2)
    door = ConnectionLimiter()
    for number in range(4):
        door.arrived(number, f"10.0.0.{number}", 0.0)
        door.proven(number)
    assert list(door._known) == ["10.0.0.2", "10.0.0.3"]
