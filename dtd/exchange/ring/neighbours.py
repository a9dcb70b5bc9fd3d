"""The state of a rank's links with its neighbours, and the loss with which a ring ends.

A rank of a ring has two neighbours.  In a generation with parameter servers it has others in a star
besides (`dtd.exchange.ring.topology`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.exchange.ring.topology import star_links
from dtd.wire.messages import Member

# --- how a neighbour in the ring was lost, in the words of FROZEN (protocol.md).  Pure ---------


RESET: Final = "reset"
SILENT: Final = "silent"
UNREACHABLE: Final = "unreachable"
CORRUPT: Final = "corrupt"
ENDED: Final = "ended"

_LEFT: Final = frozenset({ErrorCode.TRUNCATED, ErrorCode.RECALLED})


def of_a_closed_link(error: DtdError | None, *, was_open: bool) -> str:
    """CORRUPT when invalid data arrived, else RESET.

    A dying peer ends inside a frame, a leaving one revokes its shared memory, and an unopened link
    is refused: in all these cases the bytes are intact.
    """
    damaged = isinstance(error, ProtocolError) and error.code not in _LEFT
    return CORRUPT if damaged and was_open else RESET


def of_no_link(
    who: Member, waited_s: float, *, calls_us: bool, refusal: str = ""
) -> tuple[str, str]:
    """(evidence, in words) when a neighbour's link was not established in time."""
    if calls_us:
        return UNREACHABLE, f"{who.name} has not connected within {waited_s:.1f} s"
    why = f": {refusal}" if refusal else ""
    return UNREACHABLE, f"{_where(who)} has not answered within {waited_s:.1f} s{why}"


def of_silence(who: Member, silence_s: float, *, trickles: bool) -> tuple[str, str]:
    """(evidence, in words) when too little has arrived over a neighbour's link."""
    if trickles:
        return CORRUPT, f"no whole frame from {_where(who)} for {silence_s:.1f} s"
    return SILENT, f"not a byte from {_where(who)} for {silence_s:.1f} s"


def _where(who: Member) -> str:
    return f"{who.name} at {who.host}:{who.port}"


def is_no_room(error: DtdError | None) -> bool:
    """Whether too many callers wait for a generation that the other side does not know yet."""
    return isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED


# --- the neighbours of a rank: which of their links stand, and why the ring ends.  Pure -------
#
# The shell (`dtd.exchange.tcp_ring`) reports events of a link; the answer is the loss with which
# the ring ends, or nothing if it continues.  A ring ends once, and the first loss counts.


NEXT: Final = "next"
PREVIOUS: Final = "previous"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLoss:
    """Why a ring has ended, in the words of FROZEN.

    Attributes:
        suspect: name of the lost member; empty when this side ended the ring.
        evidence: how it was lost (`dtd.exchange.ring.neighbours`); empty likewise.
        reason: the same in words.
    """

    suspect: str = ""
    evidence: str = ""
    reason: str


class Neighbours:
    """One rank's view of its neighbours in the ring, and in the star if there are servers.

    Args:
        roster: all members, by rank.
        rank: this member's rank.

    Attributes:
        ended: the ring has ended.
        refusals: why a neighbour refused the last connection, if it did.
        star: the ranks linked with this one in the star, and whether this one opens the link.
    """

    def __init__(self, roster: Sequence[Member], rank: int) -> None:
        self.ended = False
        self.refusals: dict[str, str] = {}
        self.star = star_links(roster, rank)
        self._roster = roster
        self._previous_rank = (rank - 1) % len(roster)
        self._members = {
            NEXT: roster[(rank + 1) % len(roster)],
            PREVIOUS: roster[self._previous_rank],
            **{self.star_neighbour(other): roster[other] for other in self.star},
        }
        self._called_by = {PREVIOUS}
        self._called_by |= {
            self.star_neighbour(one) for one, opens in self.star.items() if not opens
        }
        self._attached: set[str] = set()

    @staticmethod
    def star_neighbour(rank: int) -> str:
        """The name of the neighbour that is this rank in the star."""
        return f"star {rank}"

    @property
    def all(self) -> tuple[str, ...]:
        """All neighbours: "next", "previous", and those in the star."""
        return tuple(self._members)

    def member(self, neighbour: str) -> Member:
        """The neighbour's entry in the roster."""
        return self._members[neighbour]

    def attached(self, neighbour: str) -> bool:
        """Record that this neighbour's link is open; returns whether the ring is now up."""
        self._attached.add(neighbour)
        return len(self._attached) == len(self._members)

    def check_caller(self, rank: int, *, has_link: bool) -> None:
        """Check a caller that claims to be the previous rank.

        Args:
            rank: the caller's.
            has_link: the previous rank is connected already.

        Raises:
            ProtocolError: this ring does not expect it.
        """
        if has_link or self.ended or rank != self._previous_rank:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"this ring does not wait for rank {rank}")

    def check_star_caller(self, rank: int, *, has_link: bool) -> None:
        """Check a caller that claims to be this rank in the star.

        Args:
            rank: the caller's.
            has_link: that rank is connected already.

        Raises:
            ProtocolError: this star does not expect it.
        """
        if has_link or self.ended or self.star.get(rank, True):
            raise ProtocolError(ErrorCode.WRONG_STATE, f"this star does not wait for rank {rank}")

    def lifeline_of(self, rank: int) -> str:
        """The name of the neighbour that owns this lifeline.

        Raises:
            ProtocolError: no neighbour has this rank.
        """
        name = self._roster[rank].name if rank < len(self._roster) else ""
        if self.ended or name not in {self._members[at].name for at in (NEXT, PREVIOUS)}:
            raise ProtocolError(ErrorCode.WRONG_STATE, "no neighbour in this ring")
        return name

    def calls_again(self, neighbour: str, error: DtdError | None) -> bool:
        """Whether to retry a link that was closed before it was open."""
        return not self.ended and is_no_room(error) and neighbour not in self._attached

    def closed(self, neighbour: str, error: DtdError | None) -> RingLoss:
        """Handle the end of a neighbour's link, with or without an error."""
        return RingLoss(
            suspect=self._members[neighbour].name,
            evidence=of_a_closed_link(error, was_open=neighbour in self._attached),
            reason=str(error) if error is not None else "the link was closed",
        )

    def silent(self, neighbour: str, silence_s: float, *, trickles: bool) -> RingLoss:
        """Handle a neighbour that has shown no sign of life for too long.

        Args:
            neighbour: one of `all`.
            silence_s: duration of the silence.
            trickles: bytes arrive, but complete no frame.
        """
        who = self._members[neighbour]
        if neighbour in self._attached:
            evidence, reason = of_silence(who, silence_s, trickles=trickles)
        else:
            evidence, reason = of_no_link(
                who,
                silence_s,
                calls_us=neighbour in self._called_by,
                refusal=self.refusals.get(neighbour, ""),
            )
        return RingLoss(suspect=who.name, evidence=evidence, reason=reason)

    def end(self) -> bool:
        """End the ring; returns whether it was up until now."""
        stood, self.ended = not self.ended, True
        return stood


def process_ended(name: str) -> RingLoss:
    """Handle the end of a neighbour's lifeline, and so of its process."""
    return RingLoss(suspect=name, evidence=ENDED, reason="its process has ended")
