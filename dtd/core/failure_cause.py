"""How a neighbour in the ring was lost, in the words of FROZEN (protocol.md).  Pure."""

from __future__ import annotations

from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.wire.messages import Member

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
