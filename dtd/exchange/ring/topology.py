"""Links of a star: the ranks at their ends, and the one that opens each.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dtd.wire.messages import Member


def server_count(roster: Sequence[Member]) -> int:
    """The number of servers in a roster, which are its last entries."""
    return sum(member.serves for member in roster)


def star_links(roster: Sequence[Member], rank: int) -> dict[int, bool]:
    """Return the ranks with which a rank has a star link, and whether it opens that link.

    A trainer has a link with every server, and opens it; of two servers the lower rank opens it.

    Args:
        roster: all members, by rank.
        rank: the rank.
    """
    serves = roster[rank].serves
    return {
        other: roster[other].serves and (not serves or rank < other)
        for other in range(len(roster))
        if other != rank and (serves or roster[other].serves)
    }
