"""A rank's knowledge of both neighbours: when the ring is up, and with which loss it ends."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.schedule.neighbours import Neighbours, star_links
from dtd.exchange.schedule.tree import Tree
from dtd.wire.messages import Member, Role


def neighbours(rank: int = 1, names: str = "abc", strides: tuple[int, ...] = ()) -> Neighbours:
    roster = [
        Member(name=name, incarnation=1, host=f"10.0.0.{at}", port=9, holds=True)
        for at, name in enumerate(names)
    ]
    return Neighbours(roster, Tree(rank, len(names), strides))


def test_a_rank_has_links_over_all_strides() -> None:
    ring = neighbours(rank=5, names="abcdefgh")
    assert {one.rank: one.beats for one in ring.members if one.opens} == {
        6: True,
        7: False,
        1: False,
    }
    assert {one.rank for one in ring.members if not one.opens} == {4, 3, 1}
    assert len(neighbours(rank=63, names="x" * 64).members) == 12
    assert len(neighbours(rank=63, names="x" * 64, strides=(1, 8)).members) == 4
    assert neighbours(rank=0, names="a").members == {}


def test_a_neighbour_is_called_again_while_one_of_its_addresses_may_answer() -> None:
    ring, no_room = neighbours(), ProtocolError(ErrorCode.REFUSED, "full")
    another = ProtocolError(ErrorCode.WRONG_SOURCE, "b answers, not c")
    assert ring.refused(ring.next, [no_room]) is None
    assert ring.refused(ring.next, [another, ConnectionRefusedError()]) is None
    assert ring.refused(ring.next, [another, no_room]) is None
    loss = ring.refused(ring.next, [another, ProtocolError(ErrorCode.BAD_TAG, "no")])
    assert loss is not None
    assert (loss.suspect, loss.evidence, loss.reason) == ("c", "reset", str(another))


def test_what_a_closed_link_says() -> None:
    ring, damaged = neighbours(), ProtocolError(ErrorCode.BAD_TAG, "the tag is wrong")
    loss = ring.closed(ring.next, damaged)
    assert (loss.suspect, loss.evidence) == ("c", "reset")
    ring.attached(ring.next)
    loss = ring.closed(ring.next, damaged)
    assert (loss.suspect, loss.evidence) == ("c", "corrupt")
    assert "the tag is wrong" in loss.reason
    loss = ring.closed(ring.previous, None)
    assert (loss.suspect, loss.evidence, loss.reason) == ("a", "reset", "the link was closed")


def test_what_silence_says() -> None:
    ring = neighbours()
    ring.refusals[ring.next] = "connection refused"
    loss = ring.silent(ring.next, 2.0, trickles=False)
    assert (loss.suspect, loss.evidence) == ("c", "unreachable")
    refused = "c at 10.0.0.2, port 9, has not answered within 2.0 s: connection refused"
    assert loss.reason == refused
    loss = ring.silent(ring.previous, 2.0, trickles=False)
    assert (loss.suspect, loss.reason) == ("a", "a has not connected within 2.0 s")
    ring.attached(ring.previous)
    loss = ring.silent(ring.previous, 2.0, trickles=False, at="fd00::7")
    assert (loss.evidence, loss.reason) == ("silent", "not a byte from a at fd00::7 for 2.0 s")
    assert ring.silent(ring.previous, 2.0, trickles=True).evidence == "corrupt"


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
    server = Neighbours(roster, Tree(3, 4))
    assert len(server.members) == 3 + 4
    server.attached(server.caller(Role.STAR, 2))
    for rank in (3, 2, 9):
        with pytest.raises(ProtocolError, match=f"this star does not wait for rank {rank}"):
            server.caller(Role.STAR, rank)
    with pytest.raises(ProtocolError):
        Neighbours(roster, Tree(0, 4)).caller(Role.STAR, 2)
