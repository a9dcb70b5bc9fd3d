"""A worker's data port: neighbours connect their rings here, and whoever needs bytes fetches them.

Three roles are served on one port.  *ring*: a HELLO that names the generation, roster and rank we
expect is handed to that generation's endpoint; one that comes early waits without a WELCOME, a
stale one is refused.  *lifeline*: an idle link for the same endpoint.  *fetch*: read-only ranges of
what was offered (a live state at a step boundary) or lies in the checkpoint directory.  Runs on the
event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from dtd import __version__
from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.fetch_desk import FetchDesk
from dtd.net.link import Link
from dtd.net.resource import Resource
from dtd.net.server import Server
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold

MAX_EARLY_RINGS: Final = 64
RING_STAGING_BYTES: Final = 512


class RingAcceptor(Protocol):
    """A generation that waits for its previous neighbour."""

    def accept_ring(self, link: Link) -> None:
        """The previous neighbour's link; the acceptor becomes its handler."""
        ...

    def accept_lifeline(self, link: Link, rank: int) -> None:
        """The lifeline of the neighbour of this rank; the acceptor becomes its handler."""
        ...


def welcome(name: str) -> m.Welcome:
    """Our answer to a HELLO on the data port."""
    return m.Welcome(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        name=name,
        max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
    )


class DataServer:
    """The data port.

    Args:
        name: this worker's name, said in WELCOME.
        open_checkpoint: gives the resource of "checkpoint/JOB/NAME", run in a thread; raises
            CheckpointError when there is none.
    """

    def __init__(self, name: str, open_checkpoint: Callable[[str], Resource]) -> None:
        self._name = name
        self._desk = FetchDesk(open_checkpoint)
        self._server = Server(self._new_link)
        self._early: dict[tuple[int, int, int], Link] = {}
        self._expected: dict[tuple[int, int, int], RingAcceptor] = {}
        self._generation = 0

    async def listen(self, address: Address) -> Address:
        """Bind; returns the bound address."""
        return await self._server.listen(address)

    def close(self) -> None:
        """Close everything."""
        self._desk.close()
        self._server.close(m.Goodbye(reason="the worker stops"))

    # --- for the generation at hand ----------------------------------------------------------

    def expect_ring(self, generation: int, roster_id: int, rank: int, by: RingAcceptor) -> None:
        """Hand the ring link of this generation, roster and rank to `by`; older ones are fenced."""
        self._generation = generation
        key = (generation, roster_id, rank)
        self._expected = {key: by}
        for old in [known for known in self._early if known[0] < generation]:
            self._refuse_stale(self._early.pop(old), old[0])
        early = self._early.pop(key, None)
        if early is not None:
            by.accept_ring(early)

    def offer(self, resource: str, content: Resource) -> None:
        """Let others fetch this until `withdraw`."""
        self._desk.offer(resource, content)

    def withdraw(self) -> None:
        """End all offers, also those that are waited for; checkpoints stay open."""
        self._desk.withdraw()

    # --- links -------------------------------------------------------------------------------

    def _new_link(self) -> Link:
        accepts = frozenset({m.Role.RING, m.Role.LIFELINE, m.Role.FETCH})
        connection = Connection(opened=False, accepts=accepts)
        return Link(self, connection, staging_bytes=RING_STAGING_BYTES)

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Somebody says what he wants."""
        assert isinstance(message, m.Hello)
        if message.role == m.Role.FETCH:
            link.keep_alive()
            link.welcome(welcome(self._name))
            return
        if message.role == m.Role.LIFELINE:
            self._accept_lifeline(link, message)
            return
        key = (message.generation, message.roster_id, message.rank)
        if key in self._expected:
            self._expected[key].accept_ring(link)
        elif message.generation <= self._generation:
            self._refuse_stale(link, message.generation)
        elif len(self._early) >= MAX_EARLY_RINGS:
            raise ProtocolError(ErrorCode.REFUSED, "too many rings wait for their generation")
        else:
            self._early[key] = link

    def _accept_lifeline(self, link: Link, message: m.Hello) -> None:
        """A lifeline comes when the ring is up, so its ring is the one that we expect, or over."""
        for (generation, roster_id, _), acceptor in self._expected.items():
            if (generation, roster_id) == (message.generation, message.roster_id):
                acceptor.accept_lifeline(link, message.rank)
                return
        self._refuse_stale(link, message.generation)

    def _refuse_stale(self, link: Link, generation: int) -> None:
        link.fail(
            ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"ring of generation {generation}; {self._name} is in {self._generation}",
            )
        )

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Those who fetch send no payloads."""
        if payload_bytes:
            raise ProtocolError(ErrorCode.BAD_PAYLOAD, "a request to fetch has no payload")
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A request to fetch."""
        self._desk.request(link, message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """Whoever fetched is gone, or a ring that came early."""
        self._desk.forget(link)
        self._early = {key: early for key, early in self._early.items() if early is not link}
