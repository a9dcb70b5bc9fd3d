"""The sockets of one listening address, and whether a new connection on them speaks TLS.

A name may stand for several addresses, and `[::]` serves IPv4 as well.  On a data port plain and
encrypted connections share one port: a TLS connection begins with another byte than a frame.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import Any, Final

from dtd.address import Address

_TLS_HANDSHAKE: Final = b"\x16"


async def listening_sockets(address: Address) -> list[socket.socket]:
    """A bound socket for each address of the host; they share a port, and nobody is answered yet.

    Raises:
        OSError: an address cannot be bound.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, where in _each_once(found):
            port = bound[0].getsockname()[1] if bound else address.port
            bound.append(_bound(family, (where[0], port, *where[2:])))
    except OSError as error:
        lacking = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # a host's IPv6 may be turned off
        if not bound or error.errno not in lacking:
            for one in bound:
                one.close()
            raise
    return bound


def _each_once(found: list[Any]) -> Iterator[tuple[int, Any]]:
    """(family, socket address), IPv4 first: that is what most callers use."""
    pairs = {(family, where) for family, _type, _protocol, _name, where in found}
    yield from sorted(pairs, key=lambda pair: (pair[0] != socket.AF_INET, pair[1]))


def _bound(family: int, where: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(0)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # the wildcard serves IPv4 too, unless that has its own
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(where[0] != "::"))
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


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
