"""The neighbours of a rank: which of their links are open, and the loss with which a ring ends.

A rank sends to those that are a stride after it on the ring (`tree.py`), the next one among them,
and receives from those that are a stride before it.  In a generation with parameter servers it has
others in a star besides.  The shell (`dtd.exchange.endpoint`) reports events of a link; the answer
is the loss with which the ring ends, or nothing if it continues.  A ring ends once, and the first
loss counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.schedule.tree import Tree
from dtd.wire.messages import Member, Role

RESET: Final = "reset"
SILENT: Final = "silent"
UNREACHABLE: Final = "unreachable"
CORRUPT: Final = "corrupt"
ENDED: Final = "ended"
"""How a neighbour was lost, in the words of FROZEN (protocol.md)."""

_INTACT: Final = frozenset({ErrorCode.TRUNCATED, ErrorCode.RECALLED})
"""A dying peer ends inside a frame, a leaving one recalls its shared memory: no byte was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLoss:
    """Why a ring has ended, in the words of FROZEN.

    Attributes:
        suspect: name of the lost member; empty when this side ended the ring.
        evidence: how it was lost; empty likewise.
        reason: the same in words.
    """

    suspect: str = ""
    evidence: str = ""
    reason: str


class Neighbour(NamedTuple):
    """The other end of one of a rank's links.

    Attributes:
        role: RING or STAR, as in the link's HELLO.
        rank: its rank.
        opens: this side opens the link; one of a ring brings chunks from the side that opens it.
        beats: both sides send heartbeats; otherwise only the one that opens the link, and the other
            one alone is watched for silence.
    """

    role: Role
    rank: int
    opens: bool
    beats: bool = True


def star_links(roster: Sequence[Member], rank: int) -> dict[int, bool]:
    """Return the ranks with which a rank has a star link, and whether it opens that link.

    A trainer has a link with every server, and opens it; of two servers the lower rank opens it.
    """
    serves = roster[rank].serves
    return {
        other: roster[other].serves and (not serves or rank < other)
        for other in range(len(roster))
        if other != rank and (serves or roster[other].serves)
    }


class Neighbours:
    """One rank's view of its neighbours in the ring, and in the star if there are servers.

    Attributes:
        ended: the ring has ended.
        refusals: why a neighbour refused the last connection, if it did.
        next, previous: those of the ring with the stride 1, which may share memory with this rank
            and have lifelines.
        ring: by rank and whether this side opens the link, the neighbours on the ring.
        star: by rank, those in the star.
        members: the entries of all in the roster.
    """

    def __init__(self, roster: Sequence[Member], tree: Tree) -> None:
        self.ended = False
        self._roster = roster
        self.refusals: dict[Neighbour, str] = {}
        self.ring = {
            (one.rank, one.opens): one for stride in tree.strides for one in _at(tree, stride)
        }
        self.star = {
            other: Neighbour(Role.STAR, other, opens)
            for other, opens in star_links(roster, tree.rank).items()
        }
        self.previous, self.next = _at(tree, 1)
        self.members = {one: roster[one.rank] for one in (*self.ring.values(), *self.star.values())}
        self._attached: set[Neighbour] = set()

    def attached(self, neighbour: Neighbour) -> bool:
        """Record that this neighbour's link is open; returns whether the ring is now up."""
        self._attached.add(neighbour)
        return len(self._attached) == len(self.members)

    def caller(self, role: Role, rank: int) -> Neighbour:
        """Return the neighbour that calls in this role as this rank.

        Raises:
            ProtocolError: it is not expected, or connected already.
        """
        found = self.star.get(rank) if role is Role.STAR else self.ring.get((rank, False))
        if self.ended or found is None or found.opens or found in self._attached:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"this {role} does not wait for rank {rank}")
        return found

    def lifeline_of(self, rank: int) -> str:
        """The name of the neighbour that owns this lifeline.

        Raises:
            ProtocolError: no neighbour has this rank.
        """
        if self.ended or rank not in (self.next.rank, self.previous.rank):
            raise ProtocolError(ErrorCode.WRONG_STATE, "no neighbour in this ring")
        return self._roster[rank].name

    def refused(self, neighbour: Neighbour, errors: Sequence[Exception]) -> RingLoss | None:
        """Return the loss if a neighbour has answered at none of its addresses; None: call again.

        An address that cannot be reached may be reached later, and a worker refuses when too many
        wait for a generation that it does not know yet.
        """
        if any(isinstance(error, OSError) or _has_no_room(error) for error in errors):
            return None
        return self.closed(neighbour, errors[0])

    def closed(self, neighbour: Neighbour, error: Exception | None) -> RingLoss:
        """Handle the end of a neighbour's link, with or without an error."""
        damaged = isinstance(error, ProtocolError) and error.code not in _INTACT
        return RingLoss(
            suspect=self.members[neighbour].name,
            evidence=CORRUPT if damaged and neighbour in self._attached else RESET,
            reason=str(error) if error is not None else "the link was closed",
        )

    def silent(
        self, neighbour: Neighbour, silence_s: float, *, trickles: bool, at: str = ""
    ) -> RingLoss:
        """Handle a neighbour that has shown no sign of life for too long.

        If it `trickles`, bytes arrive but complete no frame; `at` is the address at the other end
        of its link, if that is open.
        """
        member = self.members[neighbour]
        place = f"{member.name} at {at}"
        if neighbour not in self._attached:
            evidence = UNREACHABLE
            refusal = self.refusals.get(neighbour, "")
            hosts = " or ".join((member.host, *member.others))
            place = f"{member.name} at {hosts}, port {member.port},"
            reason = f"{place} has not answered within {silence_s:.1f} s"
            reason += f": {refusal}" if refusal else ""
            if not neighbour.opens:
                reason = f"{member.name} has not connected within {silence_s:.1f} s"
        elif trickles:
            evidence, reason = CORRUPT, f"no whole frame from {place} for {silence_s:.1f} s"
        else:
            evidence, reason = SILENT, f"not a byte from {place} for {silence_s:.1f} s"
        return RingLoss(suspect=member.name, evidence=evidence, reason=reason)

    def end(self) -> bool:
        """End the ring; returns whether it was up until now."""
        stood, self.ended = not self.ended, True
        return stood


def _has_no_room(error: Exception) -> bool:
    return isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED


def _at(tree: Tree, stride: int) -> tuple[Neighbour, Neighbour]:
    """The neighbours a stride before and after a rank."""
    ranks = (tree.rank - stride) % tree.world_size, (tree.rank + stride) % tree.world_size
    return (
        Neighbour(Role.RING, ranks[0], opens=False, beats=stride == 1),
        Neighbour(Role.RING, ranks[1], opens=True, beats=stride == 1),
    )
