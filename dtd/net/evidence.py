"""How a neighbour in the ring was lost, in the words of FROZEN (protocol.md).  Pure."""

from __future__ import annotations

from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError

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


def is_no_room(error: DtdError | None) -> bool:
    """Too many wait for a generation that the other side knows nothing of yet."""
    return isinstance(error, ProtocolError) and error.code is ErrorCode.REFUSED
