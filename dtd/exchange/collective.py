"""The daemons' `Collective`: the training thread's end of the links of one generation.

All calls from the training thread onto the event loop pass through a `Bridge`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from dtd.errors import DtdError
from dtd.exchange.endpoint import RingEndpoint
from dtd.exchange.node import NodeCollective
from dtd.net.clients.blocking_link import connect_tcp
from dtd.net.clients.tls import tls_connect
from dtd.net.data_port.data_server import DataServer
from dtd.security.identity import WORKER
from dtd.wire import messages as m


class Bridge:
    """Posts calls from other threads onto the event loop; nothing else in the worker does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule this call on the loop; it is dropped if the loop has closed."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def posting(self, function: Callable[..., object], *first: object) -> Callable[..., None]:
        """Return a function that other threads can call to run `function` on the loop."""

        def post(*arguments: object) -> None:
            self.post(function, *first, *arguments)

        return post


class RingCollective(NodeCollective):
    """One generation's ring over TCP, as the training thread sees it.

    It is created on the event loop, which uses `endpoint` and `explain` and reads `waiting_since`;
    everything else is called by the training thread.

    Attributes:
        assign: the generation.
        connect_data: opens connections for fetching this generation's state.
        endpoint: the links.
    """

    def __init__(
        self,
        bridge: Bridge,
        assign: m.Assign,
        server: DataServer,
        *,
        agreed: Callable[[], None] | None = None,
        context: ssl.SSLContext | None = None,
        **settings: Any,
    ) -> None:
        self.assign = assign
        self.connect_data = connect_tcp if context is None else tls_connect(context, WORKER)
        self.endpoint = RingEndpoint(assign, server, listener=self, context=context, **settings)
        self._bridge = bridge
        super().__init__(self.endpoint.nodes, run=self._post, end=self.endpoint.end, agreed=agreed)

    def host(self) -> str:
        """Return an address of this rank for the others, once the ring is up.

        Of several, that at which the previous rank has called it.
        """
        own = self.assign.roster[self.rank]
        previous = self.endpoint.links.get(self.endpoint.neighbours.previous)
        return own.host if previous is None or not own.others else previous.own_host()

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        self._bridge.post(self._on_posted, function, arguments)

    def _on_posted(self, function: Callable[..., None], arguments: Iterable[object]) -> None:
        if self.why_broken:
            return
        try:
            function(*arguments)
        except DtdError as error:
            self.endpoint.end(f"{type(error).__name__}: {error}")
