"""One rank's links of a star: with every server, or from a server with every other rank.

This file connects the links and passes chunks between them and the node
(`dtd.exchange.star_node`).  The ring endpoint of the same generation (`dtd.exchange.tcp_ring`)
owns them: it watches these neighbours together with its own, is up when all links are, and ends
with the first loss of any.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.exchange.dialling import CONNECT_PAUSE_S, dial
from dtd.exchange.ring.neighbours import Neighbours, RingLoss
from dtd.exchange.ring.topology import server_count
from dtd.exchange.star.machine import Star
from dtd.exchange.star_node import StarNode
from dtd.net.data_server import RING_STAGING_BYTES
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.frames import Hold
from dtd.wire.greeting import DataCredential

TURN_BYTES: Final = 1024 * 1024
"""After sending this much other work comes first: a server may start with hundreds of MiB, whose
tags take 0.1 to 0.5 ms for each MiB."""

QUEUED_BYTES: Final = 4 * 1024 * 1024
"""A link with more than this queued is given no more until the kernel has taken all of it.  What is
queued for TLS is a copy, and a server may let every rank pull its part of a model at once."""


class StarOwner(Protocol):
    """The generation to which a star belongs."""

    def attach(self, neighbour: str, link: Link) -> None:
        """A link is open."""
        ...

    def lost(self, loss: RingLoss) -> None:
        """A link was lost, or brought something invalid."""
        ...

    def star_bucket_done(self, bucket: int) -> None:
        """A bucket holds what this rank gets of it, and its memory is free."""
        ...


class StarLinks:
    """This rank's end of one generation's star, on the event loop.

    Args:
        assign: the generation; its roster names servers.
        owner: receives what happens.
        neighbours: those of this rank, shared with the ring.
        chunk_bytes: most payload bytes in one frame.
        context: TLS for all links, if the job requires it.

    Attributes:
        node: the star's node.
    """

    def __init__(
        self,
        assign: m.Assign,
        owner: StarOwner,
        *,
        neighbours: Neighbours,
        chunk_bytes: int,
        context: ssl.SSLContext | None,
    ) -> None:
        self._owner = owner
        self._neighbours = neighbours
        self._generation = assign.generation
        self._pass = DataCredential.of(assign)
        self._name = assign.roster[assign.rank].name
        self._context = context
        self._links: dict[int, Link] = {}
        self._ranks: dict[Link, int] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._outboxes: dict[int, deque[tuple[m.Chunk, memoryview]]] = {}
        self._full: set[int] = set()
        self._unsent: Counter[int] = Counter()
        self._ended: set[int] = set()
        self._is_due = False
        core = Star(
            rank=assign.rank,
            world_size=len(assign.roster),
            servers=server_count(assign.roster),
            generation=assign.generation,
            first_step=assign.held_step,
            chunk_bytes=chunk_bytes,
        )
        self.node = StarNode(core, self)

    # --- connecting --------------------------------------------------------------------------

    def connect(self) -> None:
        """Start connecting to all ranks that wait for this one."""
        for rank, opens in self._neighbours.star.items():
            if opens:
                self._dial(rank)

    def _dial(self, rank: int, pause_s: float = 0.0) -> None:
        def new_link() -> Link:
            link = Link(
                self,
                hello=self._pass.hello(m.Role.STAR, self._name),
                secret=self._pass.secret,
                staging_bytes=RING_STAGING_BYTES,
            )
            self._own(link, rank)
            return link

        dialling = dial(
            self._neighbours,
            self._neighbours.star_neighbour(rank),
            new_link,
            context=self._context,
            pause_s=pause_s,
        )
        self._dialling[rank] = asyncio.create_task(dialling)

    def accept(self, link: Link, rank: int) -> None:
        """A rank has connected and proved that it has the generation's key.

        Raises:
            ProtocolError: this star does not wait for it.
        """
        self._neighbours.check_star_caller(rank, has_link=rank in self._links)
        self._own(link, rank)
        link.handler = self
        self._owner.attach(self._neighbours.star_neighbour(rank), link)

    def _own(self, link: Link, rank: int) -> None:
        self._links[rank] = link
        self._ranks[link] = rank

    def links(self) -> Iterable[Link]:
        """Return the links that are open or about to open."""
        return self._links.values()

    def end(self) -> None:
        """Reset all links."""
        self._outboxes.clear()
        for dialling in self._dialling.values():
            dialling.cancel()
        for link in list(self._ranks):
            link.abort()

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """A rank that this one has called has answered."""
        self._owner.attach(self._neighbours.star_neighbour(self._ranks[link]), link)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Return where an incoming chunk is stored."""
        if isinstance(message, m.Chunk):
            return self.node.place(message, payload_bytes, link=self._ranks[link])
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A chunk or a heartbeat has arrived."""
        if self._neighbours.ended:
            return
        if isinstance(message, m.Chunk):
            self.node.received(message)
            return
        assert isinstance(message, m.LinkHeartbeat)
        if message.generation != self._generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"beat of generation {message.generation}"
            )

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A connection was lost, or brought something invalid."""
        rank = self._ranks.pop(link)
        neighbour = self._neighbours.star_neighbour(rank)
        if self._neighbours.calls_again(neighbour, error):
            self._dial(rank, CONNECT_PAUSE_S)
        else:
            self._owner.lost(self._neighbours.closed(neighbour, error))

    # --- StarHandler: what the node asks for -------------------------------------------------

    def send_to(self, rank: int, chunk: m.Chunk, payload: memoryview) -> None:
        """Queue a chunk, which is sent in a later callback."""
        self._unsent[chunk.bucket] += 1
        self._outboxes.setdefault(rank, deque()).append((chunk, payload))
        self._send_later()

    def resume_link(self, rank: int) -> None:
        """Resume in a later callback: a held frame may lead to many more."""
        if not self._neighbours.ended:
            asyncio.get_running_loop().call_soon(self._links[rank].resume)

    def star_bucket_done(self, bucket: int) -> None:
        """The bucket has its result; its memory is free once the kernel has taken what is sent."""
        if bucket not in self._unsent:
            self._owner.star_bucket_done(bucket)
            return
        self._ended.add(bucket)
        self._drain_if_sent(bucket)

    # --- sending -----------------------------------------------------------------------------

    def _send_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_some)

    def _send_some(self) -> None:
        """Send the next chunks, to all ranks in turn whose links take more."""
        self._is_due = False
        sent_bytes = 0
        while (ready := self._ready()) and sent_bytes < TURN_BYTES:
            for rank in ready:
                sent_bytes += self._send_next(rank)
        if ready:
            self._send_later()

    def _ready(self) -> list[int]:
        return [rank for rank, box in self._outboxes.items() if box and rank not in self._full]

    def _send_next(self, rank: int) -> int:
        """Send the next chunk to a rank; returns its length."""
        chunk, payload = self._outboxes[rank].popleft()
        link = self._links[rank]
        link.send(chunk, payload)
        if link.queued_bytes() > QUEUED_BYTES and (drained := link.drained()) is not None:
            self._full.add(rank)
            drained.add_done_callback(partial(self._on_drained, rank))
        self._unsent[chunk.bucket] -= 1
        self._drain_if_sent(chunk.bucket)
        return len(payload)

    def _on_drained(self, rank: int, _: asyncio.Future[None]) -> None:
        self._full.discard(rank)
        self._send_later()

    def _drain_if_sent(self, bucket: int) -> None:
        """Begin to drain a bucket that has its result, and of which all has been sent."""
        if bucket in self._ended and not self._unsent[bucket]:
            self._ended.discard(bucket)
            del self._unsent[bucket]
            self._drain(bucket)

    def _drain(self, bucket: int) -> None:
        """Report a bucket once the kernel has accepted everything that was sent so far."""
        waiting = [drained for link in self._links.values() if (drained := link.drained())]
        left = len(waiting)

        def one_drained(_: asyncio.Future[None]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._finish(bucket)

        for drained in waiting:
            drained.add_done_callback(one_drained)
        if not waiting:
            self._finish(bucket)

    def _finish(self, bucket: int) -> None:
        if not self._neighbours.ended:
            self._owner.star_bucket_done(bucket)
