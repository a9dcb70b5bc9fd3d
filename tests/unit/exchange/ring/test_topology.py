"""Who has a link with whom in a star, and what neighbours of both kinds are asked."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.ring.neighbours import NEXT, PREVIOUS, Neighbours
from dtd.exchange.ring.topology import server_count, star_links
from dtd.wire.messages import Member


def roster(trainers: int, servers: int) -> list[Member]:
    return [
        Member(
            name=f"w{rank}",
            incarnation=1,
            host="10.0.0.1",
            port=9,
            holds=True,
            serves=rank >= trainers,
        )
        for rank in range(trainers + servers)
    ]


def test_every_link_is_opened_by_one_side() -> None:
    members = roster(3, 2)
    assert server_count(members) == 2
    assert [star_links(members, rank) for rank in range(5)] == [
        {3: True, 4: True},
        {3: True, 4: True},
        {3: True, 4: True},
        {0: False, 1: False, 2: False, 4: True},
        {0: False, 1: False, 2: False, 3: False},
    ]


def test_without_servers_there_is_no_star() -> None:
    members = roster(3, 0)
    assert server_count(members) == 0
    assert star_links(members, 1) == {}
    assert Neighbours(members, 1).all == (NEXT, PREVIOUS)


def test_the_generation_is_up_when_all_links_stand() -> None:
    links = Neighbours(roster(2, 2), 2)
    assert links.all == (NEXT, PREVIOUS, "star 0", "star 1", "star 3")
    assert [links.attached(one) for one in links.all] == [False] * 4 + [True]
    assert links.member(links.star_neighbour(3)).name == "w3"


def test_only_who_is_waited_for_may_connect_and_only_once() -> None:
    links = Neighbours(roster(2, 2), 2)
    links.check_star_caller(0, has_link=False)
    for rank, has_link in ((0, True), (3, False), (2, False), (7, False)):
        with pytest.raises(ProtocolError, match=f"does not wait for rank {rank}"):
            links.check_star_caller(rank, has_link=has_link)
    links.end()
    with pytest.raises(ProtocolError):
        links.check_star_caller(0, has_link=False)


def test_a_lost_link_of_the_star_is_a_loss_of_the_ring() -> None:
    links = Neighbours(roster(3, 2), 3)
    links.refusals["star 4"] = "connection refused"
    loss = links.silent("star 4", 2.0, trickles=False)
    assert (loss.suspect, loss.evidence) == ("w4", "unreachable")
    assert loss.reason.endswith("has not answered within 2.0 s: connection refused")
    loss = links.silent("star 1", 2.0, trickles=False)
    assert (loss.suspect, loss.reason) == ("w1", "w1 has not connected within 2.0 s")
    assert links.calls_again("star 4", ProtocolError(ErrorCode.REFUSED, "full"))
    links.attached("star 1")
    assert links.closed("star 1", None).evidence == "reset"
    assert links.silent("star 1", 2.0, trickles=False).evidence == "silent"


def test_lifelines_are_of_the_ring() -> None:
    links = Neighbours(roster(3, 2), 4)
    assert links.lifeline_of(0) == "w0"
    with pytest.raises(ProtocolError, match="no neighbour"):
        links.lifeline_of(1)
