"""A rank's knowledge of both neighbours: when the ring is up, and with which loss it ends."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.schedule.neighbours import NEXT, PREVIOUS, Neighbours, star_links
from dtd.wire.messages import Member

NAMES = ("a", "b", "c")


def neighbours(rank: int = 1) -> Neighbours:
    roster = [
        Member(name=name, incarnation=1, host=f"10.0.0.{at}", port=9, holds=True)
        for at, name in enumerate(NAMES)
    ]
    return Neighbours(roster, rank)


def test_a_link_that_was_refused_for_want_of_room_is_tried_again_until_it_stood() -> None:
    ring, no_room = neighbours(), ProtocolError(ErrorCode.REFUSED, "full")
    assert ring.calls_again(NEXT, no_room)
    assert not ring.calls_again(NEXT, None)
    assert not ring.calls_again(NEXT, ProtocolError(ErrorCode.BAD_TAG, "no"))
    ring.attached(NEXT)
    assert not ring.calls_again(NEXT, no_room)
    assert ring.calls_again(PREVIOUS, no_room)
    ring.end()
    assert not ring.calls_again(PREVIOUS, no_room)


def test_what_a_closed_link_says() -> None:
    ring, damaged = neighbours(), ProtocolError(ErrorCode.BAD_TAG, "the tag is wrong")
    loss = ring.closed(NEXT, damaged)
    assert (loss.suspect, loss.evidence) == ("c", "reset")
    ring.attached(NEXT)
    loss = ring.closed(NEXT, damaged)
    assert (loss.suspect, loss.evidence) == ("c", "corrupt")
    assert "the tag is wrong" in loss.reason
    loss = ring.closed(PREVIOUS, None)
    assert (loss.suspect, loss.evidence, loss.reason) == ("a", "reset", "the link was closed")


def test_what_silence_says() -> None:
    ring = neighbours()
    ring.refusals[NEXT] = "connection refused"
    loss = ring.silent(NEXT, 2.0, trickles=False)
    assert (loss.suspect, loss.evidence) == ("c", "unreachable")
    assert loss.reason.endswith("has not answered within 2.0 s: connection refused")
    loss = ring.silent(PREVIOUS, 2.0, trickles=False)
    assert (loss.suspect, loss.reason) == ("a", "a has not connected within 2.0 s")
    ring.attached(PREVIOUS)
    assert ring.silent(PREVIOUS, 2.0, trickles=False).evidence == "silent"
    assert ring.silent(PREVIOUS, 2.0, trickles=True).evidence == "corrupt"


def test_a_star_has_links_with_servers_only() -> None:
    roster = [
        Member(name=name, incarnation=1, host="h", port=9, holds=True, serves=name in "cd")
        for name in "abcd"
    ]
    assert [star_links(roster, rank) for rank in range(4)] == [
        {2: True, 3: True},
        {2: True, 3: True},
        {0: False, 1: False, 3: True},
        {0: False, 1: False, 2: False},
    ]
    server = Neighbours(roster, 3)
    assert len(server.members) == 5
    server.check_caller(2, in_star=True, has_link=False)
    for rank, has_link in ((3, False), (2, True), (9, False)):
        with pytest.raises(ProtocolError, match=f"this star does not wait for rank {rank}"):
            server.check_caller(rank, in_star=True, has_link=has_link)
    with pytest.raises(ProtocolError):
        Neighbours(roster, 0).check_caller(2, in_star=True, has_link=False)
