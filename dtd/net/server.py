"""Listening: accepts connections, keeps count of them, closes them in good order."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from dtd.address import Address
from dtd.errors import ConfigError
from dtd.net.link import Link
from dtd.wire import messages as m

MAX_CONNECTIONS = 1024


class Server:
    """One listening socket.

    Args:
        new_link: makes the protocol object of an accepted connection.
    """

    def __init__(self, new_link: Callable[[], Link]) -> None:
        self._new_link = new_link
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()

    async def listen(self, address: Address) -> Address:
        """Bind and listen; returns the bound address (port 0 becomes a real one).

        Raises:
            ConfigError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._make, address.host, address.port, backlog=128
            )
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error}"
            raise ConfigError(
                f"listen address {address} {why}", remedy="choose another with --listen"
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    def close(self, farewell: m.Goodbye) -> None:
        """Listen no more and say goodbye on every connection."""
        if self._server is not None:
            self._server.close()
        for link in tuple(self._links):
            if not link.closing:
                link.send(farewell)
                link.close()

    def _make(self) -> Link:
        self._links = {link for link in self._links if not link.closing}
        link = self._new_link()
        if len(self._links) >= MAX_CONNECTIONS:
            link.closing = True
        self._links.add(link)
        return link
