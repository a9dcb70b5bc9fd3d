"""How a neighbour in the ring was lost, in the words of FROZEN (protocol.md).  Pure."""

from __future__ import annotations

from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError

RESET: Final = "reset"
SILENT: Final = "silent"
UNREACHABLE: Final = "unreachable"
CORRUPT: Final = "corrupt"
ENDED: Final = "ended"


def of_a_closed_link(error: DtdError | None, *, was_open: bool) -> str:
    """CORRUPT when what came was no good, else RESET.

    Whoever dies ends inside a frame, and an unopened link is refused: both with bytes intact.
    """
    damaged = isinstance(error, ProtocolError) and error.code is not ErrorCode.TRUNCATED
    return CORRUPT if damaged and was_open else RESET


def is_no_room(error: DtdError | None) -> bool:
    """Too many wait for a generation that the other side knows nothing of yet."""
    return isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED
