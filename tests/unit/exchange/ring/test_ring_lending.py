"""When buckets are lent, and how much is read at once."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.ring.lending import Lending, ReadPace


def test_buckets_are_lent_once_the_next_rank_can_read_them() -> None:
    lending = Lending()
    assert lending.offer([4096, 0, 8192]) == 1
    assert lending.asks(1)
    assert lending.lent() == frozenset()
    lending.borrows(1)
    assert lending.lent() == {0, 2}


def test_a_new_offer_is_lent_when_it_is_taken_up_itself() -> None:
    lending = Lending()
    lending.offer([4096])
    lending.borrows(1)
    assert lending.offer([4096, 8192]) == 2
    assert lending.lent() == frozenset()
    assert not lending.asks(1)
    lending.borrows(1)
    assert not lending.agreed
    assert lending.asks(2)
    lending.borrows(2)
    lending.borrows(1)
    assert lending.lent() == {0, 1}


@pytest.mark.parametrize("number", [0, 2])
def test_what_was_never_offered_cannot_be_borrowed(number: int) -> None:
    lending = Lending()
    lending.offer([4096])
    for act in (lending.asks, lending.borrows):
        with pytest.raises(ProtocolError, match=f"borrows offer {number} of 1"):
            act(number)


def test_a_file_is_handed_over_once() -> None:
    lending = Lending()
    lending.offer([4096])
    lending.asks(1)
    with pytest.raises(ProtocolError, match="offer 1 twice") as caught:
        lending.asks(1)
    assert caught.value.code is ErrorCode.WRONG_STATE


def test_after_enough_has_been_read_others_have_their_turn_once() -> None:
    pace = ReadPace(limit_bytes=10)
    pace.read(9)
    assert not pace.must_pause()
    pace.read(1)
    assert pace.must_pause()
    assert not pace.must_pause()
