"""TLS on data ports, for jobs that ask for it: plain and encrypted callers share one port.

A TLS connection begins with another byte than a frame, so who calls shows at once what he speaks.
Both sides show a certificate of the cluster; which generation they belong to is shown by the keyed
handshake inside (`dtd.wire.session`).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

_TLS_HANDSHAKE: Final = b"\x16"


async def begins_tls(accepted: socket.socket, *, patience_s: float) -> bool:
    """Whether the caller speaks TLS; nothing is read that somebody else has to read.

    Raises:
        OSError: it says nothing (TimeoutError), or is gone.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted, _done, readable)
    try:
        async with asyncio.timeout(patience_s):
            await readable
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
