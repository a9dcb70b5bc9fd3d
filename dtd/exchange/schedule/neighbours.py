"""The neighbours of a rank: which of their links are open, and the loss with which a ring ends.

A rank of a ring has two neighbours.  In a generation with parameter servers it has others in a star
besides.  The shell (`dtd.exchange.endpoint`) reports events of a link; the answer is the loss with
which the ring ends, or nothing if it continues.  A ring ends once, and the first loss counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.wire.messages import Member

NEXT: Final = "next"
PREVIOUS: Final = "previous"

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


def star_links(roster: Sequence[Member], rank: int) -> dict[int, bool]:
    """Return the ranks with which a rank has a star link, and whether it opens that link.

    A trainer has a link with every server, and opens it; of two servers the lower rank opens it.

    Args:
        roster: all members, by rank; servers are its last entries.
        rank: the rank.
    """
    serves = roster[rank].serves
    return {
        other: roster[other].serves and (not serves or rank < other)
        for other in range(len(roster))
        if other != rank and (serves or roster[other].serves)
    }


class Neighbours:
    """One rank's view of its neighbours in the ring, and in the star if there are servers.

    Args:
        roster: all members, by rank.
        rank: this member's rank.

    Attributes:
        ended: the ring has ended.
        refusals: why a neighbour refused the last connection, if it did.
        star: the ranks linked with this one in the star, and whether this one opens the link.
        members: the neighbours' entries in the roster.
    """

    def __init__(self, roster: Sequence[Member], rank: int) -> None:
        self.ended = False
        self.refusals: dict[str, str] = {}
        self.star = star_links(roster, rank)
        self._roster = roster
        self._previous_rank = (rank - 1) % len(roster)
        self.members = {
            NEXT: roster[(rank + 1) % len(roster)],
            PREVIOUS: roster[self._previous_rank],
            **{self.star_neighbour(other): roster[other] for other in self.star},
        }
        self._callers = {PREVIOUS}
        self._callers |= {self.star_neighbour(one) for one, opens in self.star.items() if not opens}
        self._attached: set[str] = set()

    @staticmethod
    def star_neighbour(rank: int) -> str:
        """The name of the neighbour that is this rank in the star."""
        return f"star {rank}"

    def attached(self, neighbour: str) -> bool:
        """Record that this neighbour's link is open; returns whether the ring is now up."""
        self._attached.add(neighbour)
        return len(self._attached) == len(self.members)

    def check_caller(self, rank: int, *, in_star: bool, has_link: bool) -> None:
        """Check a caller that says it is this rank.

        Args:
            rank: the caller's.
            in_star: it calls for the star; otherwise as the previous rank.
            has_link: that rank is connected already.

        Raises:
            ProtocolError: it is not expected.
        """
        expected = not self.star.get(rank, True) if in_star else rank == self._previous_rank
        if has_link or self.ended or not expected:
            route = "star" if in_star else "ring"
            raise ProtocolError(
                ErrorCode.WRONG_STATE, f"this {route} does not wait for rank {rank}"
            )

    def lifeline_of(self, rank: int) -> str:
        """The name of the neighbour that owns this lifeline.

        Raises:
            ProtocolError: no neighbour has this rank.
        """
        name = self._roster[rank].name if rank < len(self._roster) else ""
        if self.ended or name not in {self.members[at].name for at in (NEXT, PREVIOUS)}:
            raise ProtocolError(ErrorCode.WRONG_STATE, "no neighbour in this ring")
        return name

    def calls_again(self, neighbour: str, error: DtdError | None) -> bool:
        """Whether to retry a link that was closed before it was open.

        The other side refuses when too many wait for a generation that it does not know yet.
        """
        no_room = isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED
        return not self.ended and no_room and neighbour not in self._attached

    def closed(self, neighbour: str, error: DtdError | None) -> RingLoss:
        """Handle the end of a neighbour's link, with or without an error."""
        damaged = isinstance(error, ProtocolError) and error.code not in _INTACT
        return RingLoss(
            suspect=self.members[neighbour].name,
            evidence=CORRUPT if damaged and neighbour in self._attached else RESET,
            reason=str(error) if error is not None else "the link was closed",
        )

    def silent(self, neighbour: str, silence_s: float, *, trickles: bool) -> RingLoss:
        """Handle a neighbour that has shown no sign of life for too long.

        Args:
            neighbour: one of `members`.
            silence_s: duration of the silence.
            trickles: bytes arrive, but complete no frame.
        """
        member = self.members[neighbour]
        place = f"{member.name} at {member.host}:{member.port}"
        if neighbour not in self._attached:
            evidence = UNREACHABLE
            refusal = self.refusals.get(neighbour, "")
            reason = f"{place} has not answered within {silence_s:.1f} s"
            reason += f": {refusal}" if refusal else ""
            if neighbour in self._callers:
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
