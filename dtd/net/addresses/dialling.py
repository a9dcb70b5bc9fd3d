"""Opens a link to a peer: at the first of its addresses at which it completes the handshake.

When which address is tried is decided by `dtd.net.addresses.attempts`.  A worker proves with its
WELCOME that it has the generation's secret, and states its name; the coordinator proves itself by
its certificate.  Any other host that answers is passed over.  Until then the links are those of a
`Dialling`, afterwards the one that is open is the caller's and the others are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.addresses.attempts import Attempts
from dtd.net.clients.tls import tls_fault
from dtd.net.link import Link, LinkHandler
from dtd.wire import messages as m

CONNECT_TIMEOUT_S: Final = 5.0
"""Longest time for a TCP connection, and for TLS on it."""

_Opened = TypeVar("_Opened", bound=Link)


class Dialling(Generic[_Opened]):
    """One round of attempts, one at each address.

    Args:
        addresses: the peer's, best first; a name stands for all addresses that it has.
        opened: called with the link that has been answered, and its address.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        new_link: Callable[[LinkHandler], _Opened],
        *,
        opened: Callable[[_Opened, Address], None],
        context: ssl.SSLContext | None,
    ) -> None:
        self.failures: dict[Address, OSError | DtdError] = {}
        self._addresses = addresses
        self._new_link = new_link
        self._opened = opened
        self._context = context
        self._attempts = Attempts(0)
        self._links: dict[Link, int] = {}
        self._is_open = False
        self._changed = asyncio.Event()

    async def run(self) -> bool:
        """Try all addresses; returns whether a link is open."""
        loop = asyncio.get_running_loop()
        tasks = []
        await self._look_up_names()
        try:
            while not self._is_open and not self._attempts.over:
                while (index := self._attempts.start(loop.time())) is not None:
                    tasks.append(loop.create_task(self._connect(index)))
                self._changed.clear()
                next_s = self._attempts.next_s()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(None if math.isinf(next_s) else next_s):
                        await self._changed.wait()
        finally:
            for task in tasks:
                task.cancel()
            self._drop()
        return self._is_open

    async def _look_up_names(self) -> None:
        """Replace names by their addresses, in the order in which the system gives them."""
        loop, numeric = asyncio.get_running_loop(), list[Address]()
        for one in self._addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    found = await loop.getaddrinfo(one.host, one.port, type=socket.SOCK_STREAM)
            except OSError as error:
                self.failures[one] = error
            else:
                numeric += [Address(str(at[0]), one.port) for *_, at in found]
        self._addresses = numeric
        self._attempts = Attempts(len(numeric))

    async def _connect(self, index: int) -> None:
        loop, to, link = asyncio.get_running_loop(), self._addresses[index], self._new_link(self)
        self._links[link] = index
        options: dict[str, Any] = {}
        if self._context is not None:
            options = {
                "ssl": self._context,
                "server_hostname": "",  # role and name are checked, not the host's name
                "ssl_handshake_timeout": CONNECT_TIMEOUT_S,
                "ssl_shutdown_timeout": CONNECT_TIMEOUT_S,
            }
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: link, to.host, to.port, **options)
        except OSError as error:
            self._fail(link, error)
        else:
            self._attempts.connected(index, loop.time())

    def _fail(self, link: Link, error: OSError | DtdError) -> None:
        index = self._links.pop(link, None)
        if index is not None and not self._is_open:
            self._attempts.failed(index)
            self.failures[self._addresses[index]] = error
            self._changed.set()

    def _drop(self) -> None:
        """Close the links that were not answered."""
        links, self._links = [*self._links], {}
        for link in links:
            link.abort()

    # --- LinkHandler, until a link is open -----------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        index = self._links.pop(link)
        self._is_open = True
        self._drop()
        self._changed.set()
        self._opened(cast(_Opened, link), self._addresses[index])

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        self._fail(link, error or DtdError("the link was closed"))

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> memoryview | None:
        """Refuse what no peer sends before its WELCOME."""
        raise ProtocolError(ErrorCode.WRONG_STATE, "a message before WELCOME")

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        raise ProtocolError(ErrorCode.WRONG_STATE, "a message before WELCOME")


def failure_text(failures: dict[Address, OSError | DtdError]) -> str:
    """Say why no address has answered; each with its reason if there are several."""
    if len(failures) == 1:
        return _fault(*failures.values())
    return "; ".join(f"{address}: {_fault(error)}" for address, error in failures.items())


def _fault(error: OSError | DtdError) -> str:
    if isinstance(error, ssl.SSLError):
        return tls_fault(error)
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
