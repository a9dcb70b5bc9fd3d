"""Connecting to another rank of a generation, whose process may not listen yet."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from dtd.exchange.ring.neighbours import Neighbours
from dtd.net.link import Link
from dtd.net.tls import tls_fault

CONNECT_PAUSE_S: Final = 0.02


async def dial(
    neighbours: Neighbours,
    neighbour: str,
    new_link: Callable[[], Link],
    *,
    context: ssl.SSLContext | None,
    pause_s: float = 0.0,
) -> None:
    """Retry until a neighbour accepts; the heartbeats limit how long that may take.

    Args:
        neighbours: all neighbours of this rank; nothing is retried once they have ended.
        neighbour: the one to connect to.
        new_link: creates the opening side of the link, for each attempt.
        context: TLS, if the job requires it.
        pause_s: how long to wait before the first attempt.
    """
    await asyncio.sleep(pause_s)
    to = neighbours.member(neighbour)
    while not neighbours.ended:
        try:
            await asyncio.get_running_loop().create_connection(
                new_link, to.host, to.port, ssl=context
            )
        except OSError as error:
            fault = tls_fault(error) if isinstance(error, ssl.SSLError) else error.strerror
            neighbours.refusals[neighbour] = fault or str(error)
            await asyncio.sleep(CONNECT_PAUSE_S)
        else:
            return
