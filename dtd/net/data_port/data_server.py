"""A worker's data port: ring neighbours and clients that fetch bytes connect here.

One port serves four roles, and every caller proves that it holds a key. *ring*: a caller that
states the expected generation, roster and rank is handed to that generation's endpoint. *star*:
likewise, for a link with a parameter server. *lifeline*: an idle link for the same endpoint.
*fetch*: read-only ranges of the state from which the generation starts, for its members, or of the
resource that a ticket names. A caller from a generation that this worker does not know yet waits
without a WELCOME; one from an older generation is refused. No caller is attached to anything before
PROVE, so a replayed HELLO gains nothing, and an address whose callers repeatedly fail to prove
themselves is blocked for a while (`dtd.net.limits`). Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.coding_link import CodingLink
from dtd.net.data_port.fetch_server import FetchHandler
from dtd.net.data_port.resources import Resource
from dtd.net.limits import ConnectionLimiter
from dtd.net.link import HANDSHAKE_TIMEOUT_S, Link
from dtd.net.server import Server
from dtd.planes import PLANES
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.wire.frames import Hold
from dtd.wire.session import DATA_ROLES, welcome

MAX_EARLY: Final = 64
MAX_UNPROVEN: Final = 512
"""Unauthenticated callers at a time, from one address or from many.

A generation of many workers on one host may begin all at once; half of all connections are reserved
for authenticated callers.
"""

UNPROVEN_S: Final = 2 * HANDSHAKE_TIMEOUT_S
"""Every link's own handshake time-out is shorter, and reports the reason."""

RING_STAGING_BYTES: Final = 4608
"""A frame with up to 4 KiB of payload is read at once with header and tag; of a larger one only
this much is copied, and the rest is received in place."""


# Takes the link of a neighbour of this rank, of a rank in its star, or a neighbour's lifeline; the
# HELLO says which.  What it leaves as the link's handler gets all later messages.
Accept = Callable[[Link, m.Hello], None]


class DataServer:
    """The data port.

    Attributes:
        worker_secret: the secret for verifying tickets; empty until the coordinator has sent it.
    """

    def __init__(self, name: str, open_on_disk: Callable[[str], Resource]) -> None:
        self.worker_secret = b""
        self._name = name
        self._fetches = FetchHandler(open_on_disk)
        self._server = Server(
            self._new_link,
            connection_limiter=ConnectionLimiter(
                per_address=MAX_UNPROVEN,
                in_all=MAX_UNPROVEN,
                patience_s=UNPROVEN_S,
                only_failures=True,
            ),
        )
        self._early: deque[Link] = deque()
        self._claims: dict[Link, m.Hello] = {}
        self._assign: m.Assign | None = None
        self._accept: Accept | None = None
        self._encrypted = False

    async def listen(self, address: Address, *, context: ssl.SSLContext | None = None) -> Address:
        """Bind; returns the bound address.  Callers without TLS are served as well."""
        bound = await self._server.bind(address)
        self._server.serve(context=context, plain_too=True)
        return bound

    def use(self, context: ssl.SSLContext) -> None:
        self._server.use(context)

    def close(self) -> None:
        self._fetches.close()
        self._server.close(m.Goodbye(reason="the worker stops"))

    # --- for the current generation -----------------------------------------------------------

    def expect_ring(self, assign: m.Assign, by: Accept, *, encrypted: bool = False) -> None:
        """Hand a generation's links to `by`; older generations are fenced."""
        self._assign, self._accept, self._encrypted = assign, by, encrypted
        early, self._early = self._early, deque()
        for link in early:
            self._answer(link, self._claims[link])

    def offer(self, resource: str, content: Resource) -> None:
        self._fetches.offer(resource, content)

    def withdraw(self) -> None:
        self._fetches.withdraw()

    # --- callers -----------------------------------------------------------------------------

    def _new_link(self) -> Link:
        return CodingLink(self, accepts=DATA_ROLES, staging_bytes=RING_STAGING_BYTES)

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        assert isinstance(message, m.Hello)
        self._claims[link] = message
        if message.scope:
            link.welcome(welcome(self._name), secret=self._ticket_key(message))
        else:
            self._answer(link, message)

    def _ticket_key(self, hello: m.Hello) -> bytes:
        if hello.role != m.Role.FETCH or not self.worker_secret:
            raise ProtocolError(ErrorCode.REFUSED, "no ticket is valid here now")
        if hello.expires_s < asyncio.get_running_loop().time():
            raise ProtocolError(
                ErrorCode.REFUSED, f"the ticket for {hello.scope} has expired", remedy="ask again"
            )
        return ticket_key(self.worker_secret, hello.scope, hello.expires_s)

    def _answer(self, link: Link, hello: m.Hello) -> None:
        """Admit a caller of the current generation if it has the key; a later generation waits."""
        assign = self._assign
        if assign is not None and _generation(hello) == (assign.generation, assign.roster_id):
            if self._encrypted and not link.is_encrypted:
                why = f"{assign.job} is encrypted, and this connection is not"
                link.fail(ProtocolError(ErrorCode.WRONG_STATE, why))
            else:
                coding = PLANES if hello.role in (m.Role.RING, m.Role.STAR) else 0
                answer = replace(welcome(self._name), coding=coding)
                link.welcome(answer, secret=assign.secret)
        elif assign is not None and hello.generation <= assign.generation:
            self._refuse_stale(link, hello)
        else:
            self._wait(link)

    def _wait(self, link: Link) -> None:
        if len(self._early) >= MAX_EARLY:
            self._early.popleft().fail(
                ProtocolError(
                    ErrorCode.REFUSED, "too many callers are waiting for their generation"
                )
            )
        self._early.append(link)

    def _refuse_stale(self, link: Link, hello: m.Hello) -> None:
        now_in = self._assign.generation if self._assign is not None else 0
        link.fail(
            ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"{hello.role} of generation {hello.generation}; {self._name} is in {now_in}",
            )
        )

    def _on_proved(self, link: CodingLink) -> None:
        """The caller has proved that it has the key that its HELLO names."""
        self._server.proven(link)
        hello = self._claims[link]
        if hello.scope:
            link.keep_alive()
            self._fetches.admit(link, hello.scope)
            return
        assign, accept = self._assign, self._accept
        assert assign is not None
        assert accept is not None
        if _generation(hello) != (assign.generation, assign.roster_id):
            self._refuse_stale(link, hello)
        elif hello.role == m.Role.FETCH:
            link.keep_alive()
            self._fetches.admit(link, f"state/{assign.generation}")
        else:
            del self._claims[link]
            accept(link, hello)

    # --- LinkHandler -------------------------------------------------------------------------

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Reject payloads: fetching clients send none."""
        if payload_bytes:
            raise ProtocolError(ErrorCode.BAD_PAYLOAD, "a request to fetch has no payload")
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """The caller has authenticated, or sends a request."""
        assert isinstance(link, CodingLink)
        if isinstance(message, m.Prove):
            self._on_proved(link)
        else:
            self._fetches.request(link, message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A fetching client, or a caller that waited, is gone."""
        self._fetches.forget(link)
        self._claims.pop(link, None)
        if link in self._early:
            self._early.remove(link)


def _generation(hello: m.Hello) -> tuple[int, int]:
    return hello.generation, hello.roster_id
