"""Answers in pieces, so that no browser costs the others, and a log of one line.

A body is handed to a connection piece by piece, each when the one before has been taken, so that a
browser which reads nothing holds a piece in memory and not the file.  (`dtd.web.listener` cuts it.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

PIECE_BYTES: Final = 32 * 1024
_MAX_LOG_CHARACTERS: Final = 200


async def in_pieces(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """Send an answer with a large body; any other is returned as it is, to be sent."""
    body = answer.body if isinstance(answer, web.Response) else None
    if not isinstance(body, bytes) or len(body) <= PIECE_BYTES or request.method == "HEAD":
        return answer
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_length = len(body)
    await response.prepare(request)
    view = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        await response.write(view[start : start + PIECE_BYTES])
    await response.write_eof()
    return response


def quiet_log(note: Callable[[str, str], None]) -> None:
    """Have aiohttp log refused requests in one line, at a bounded rate.

    Args:
        note: told the address, as far as it is known, and the reason.
    """
    log = logging.getLogger("aiohttp")  # the parent of all of its own
    log.propagate = False
    log.handlers = [_Noting(note)]


class _Noting(logging.Handler):
    """Hands a record on without its traceback."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = type(error).__name__ if error is not None else record.getMessage()
        self._note("?", f"a request could not be read: {kind}"[:_MAX_LOG_CHARACTERS])
