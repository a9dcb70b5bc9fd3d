"""Which links of a ring stand, and with which loss a ring ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.wire.messages import Member

# --- how a neighbour in the ring was lost, in the words of FROZEN (protocol.md).  Pure ---------


RESET: Final = "reset"
SILENT: Final = "silent"
UNREACHABLE: Final = "unreachable"
CORRUPT: Final = "corrupt"
ENDED: Final = "ended"

_LEFT: Final = frozenset({ErrorCode.TRUNCATED, ErrorCode.RECALLED})


def of_a_closed_link(error: DtdError | None, *, was_open: bool) -> str:
    """CORRUPT when what came was no good, else RESET.

    Whoever dies ends inside a frame, who leaves recalls what he lends, and an unopened link is
    refused: all with bytes intact.
    """
    damaged = isinstance(error, ProtocolError) and error.code not in _LEFT
    return CORRUPT if damaged and was_open else RESET


def of_no_link(
    who: Member, waited_s: float, *, calls_us: bool, refusal: str = ""
) -> tuple[str, str]:
    """(evidence, in words) when a neighbour's link has not been made in time."""
    if calls_us:
        return UNREACHABLE, f"{who.name} has not connected within {waited_s:.1f} s"
    why = f": {refusal}" if refusal else ""
    return UNREACHABLE, f"{_where(who)} has not answered within {waited_s:.1f} s{why}"


def of_silence(who: Member, silence_s: float, *, trickles: bool) -> tuple[str, str]:
    """(evidence, in words) when too little has come over a neighbour's link."""
    if trickles:
        return CORRUPT, f"no whole frame from {_where(who)} for {silence_s:.1f} s"
    return SILENT, f"not a byte from {_where(who)} for {silence_s:.1f} s"


def _where(who: Member) -> str:
    return f"{who.name} at {who.host}:{who.port}"


def is_no_room(error: DtdError | None) -> bool:
    """Too many wait for a generation that the other side knows nothing of yet."""
    return isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED


# --- both neighbours of a rank: which of their links stand, and why the ring ends.  Pure -------
#
# The shell (`dtd.transport.tcp_ring`) says what happened to a link; the answer is the loss with
# which the ring ends, or nothing where it goes on.  A ring ends once, and the first loss is the one
# that counts.


NEXT: Final = "next"
PREVIOUS: Final = "previous"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLoss:
    """Why a ring has ended, in the words of FROZEN.

    Attributes:
        suspect: name of the member that was lost; empty when this side ended the ring.
        evidence: how that was seen (`dtd.core.ring.neighbours`); empty likewise.
        reason: the same in words.
    """

    suspect: str = ""
    evidence: str = ""
    reason: str


class Neighbours:
    """What one rank knows of the two that it is connected to.

    Args:
        roster: all members, by rank.
        rank: this one's.

    Attributes:
        ended: the ring has ended.
        refusal: why the next rank has not taken the last call; empty while it took it.
    """

    def __init__(self, roster: Sequence[Member], rank: int) -> None:
        self.ended = False
        self.refusal = ""
        self._roster = roster
        self._previous_rank = (rank - 1) % len(roster)
        self._members = {
            NEXT: roster[(rank + 1) % len(roster)],
            PREVIOUS: roster[self._previous_rank],
        }
        self._attached: set[str] = set()

    def member(self, neighbour: str) -> Member:
        """The neighbour's entry in the roster."""
        return self._members[neighbour]

    def attached(self, neighbour: str) -> bool:
        """This neighbour's link stands; returns whether both do now, so that the ring is up."""
        self._attached.add(neighbour)
        return len(self._attached) == len(self._members)

    def check_caller(self, rank: int, *, has_link: bool) -> None:
        """Look at a member that wants to be the previous rank.

        Args:
            rank: the caller's.
            has_link: the previous rank is connected already.

        Raises:
            ProtocolError: this ring does not wait for it.
        """
        if has_link or self.ended or rank != self._previous_rank:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"this ring does not wait for rank {rank}")

    def lifeline_of(self, rank: int) -> str:
        """Name of the neighbour whose lifeline this is.

        Raises:
            ProtocolError: no neighbour has this rank.
        """
        name = self._roster[rank].name if rank < len(self._roster) else ""
        if self.ended or name not in {one.name for one in self._members.values()}:
            raise ProtocolError(ErrorCode.WRONG_STATE, "no neighbour in this ring")
        return name

    def calls_again(self, neighbour: str, error: DtdError | None) -> bool:
        """Whether a link that was closed before it stood is to be tried once more."""
        return not self.ended and is_no_room(error) and neighbour not in self._attached

    def closed(self, neighbour: str, error: DtdError | None) -> RingLoss:
        """A neighbour's link has ended, with an error or without."""
        return RingLoss(
            suspect=self._members[neighbour].name,
            evidence=of_a_closed_link(error, was_open=neighbour in self._attached),
            reason=str(error) if error is not None else "the link was closed",
        )

    def silent(self, neighbour: str, silence_s: float, *, trickles: bool) -> RingLoss:
        """Nothing that counts has come from a neighbour for too long.

        Args:
            neighbour: "next" or "previous".
            silence_s: for how long.
            trickles: bytes come, but complete nothing.
        """
        who = self._members[neighbour]
        if neighbour in self._attached:
            evidence, reason = of_silence(who, silence_s, trickles=trickles)
        else:
            evidence, reason = of_no_link(
                who, silence_s, calls_us=neighbour == PREVIOUS, refusal=self.refusal
            )
        return RingLoss(suspect=who.name, evidence=evidence, reason=reason)

    def end(self) -> bool:
        """The ring ends; returns whether it stood until now."""
        stood, self.ended = not self.ended, True
        return stood


def process_ended(name: str) -> RingLoss:
    """A neighbour's lifeline has ended, and with it the neighbour's process."""
    return RingLoss(suspect=name, evidence=ENDED, reason="its process has ended")
