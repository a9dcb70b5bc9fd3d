"""One generation's links: to the next rank, from the previous one, and those of its star.

This file connects the links, passes chunks between them and the node (`dtd.exchange.ring_node`)
and monitors all neighbours (`dtd.net.liveness`).  It reports once that the ring is up, and once
that it is broken, with the suspect and the evidence.  Frames of other generations never reach the
node: the HELLO of a ring link names generation and roster, and the machine checks every frame
again.
A generation whose roster names parameter servers has a star besides (`dtd.exchange.star_links`);
it is up and ends together with the ring.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final, Protocol

from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.exchange.dialling import CONNECT_PAUSE_S, dial
from dtd.exchange.ring.machine import Ring
from dtd.exchange.ring.neighbours import NEXT, PREVIOUS, Neighbours, RingLoss, process_ended
from dtd.exchange.ring_node import SCRATCH_SLOTS, RingNode
from dtd.exchange.shared_memory import SharedMemory
from dtd.exchange.star_links import StarLinks
from dtd.net.data_server import RING_STAGING_BYTES, DataServer
from dtd.net.link import Link, Traffic, traffic_of
from dtd.net.liveness import Lifeline, LinkHeartbeats
from dtd.wire import messages as m
from dtd.wire.frames import Hold
from dtd.wire.greeting import DataCredential

_NODE: Final = (m.Chunk, m.SmallGather)
_LOANS: Final = (m.ShmOffer, m.ShmRequest, m.ShmMapped)


class RingListener(Protocol):
    """Receives the events of a ring; called on the event loop."""

    def ring_up(self) -> None:
        """All links are established; called once."""
        ...

    def ring_broken(self, loss: RingLoss) -> None:
        """The ring is broken; called once."""
        ...

    def bucket_done(self, bucket: int) -> None:
        """A bucket holds the sum, and its memory is free."""
        ...

    def star_bucket_done(self, bucket: int) -> None:
        """A bucket of the star holds what this rank gets of it, and its memory is free."""
        ...

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words of an exchange have arrived, in rank order."""
        ...


class RingEndpoint:
    """This worker's end of one generation's ring, on the event loop.

    Args:
        assign: the generation.
        server: the data port where the previous rank will connect.
        chunk_bytes: most payload bytes in one frame.
        beat_interval_s: interval of the heartbeats to all neighbours.
        silence_s: how long a neighbour may be silent, or take to connect.
        listener: receives the events of the ring.
        lifeline: holds connections to the neighbours that end with this process.
        context: TLS for all links, if the job requires it.
        letters: directory private to this user, through which neighbours pass each other memory to
            read; None sends everything over the sockets.

    Attributes:
        node: the ring's node.
        star: the links of the generation's star; None without servers.
    """

    def __init__(
        self,
        assign: m.Assign,
        server: DataServer,
        *,
        chunk_bytes: int,
        beat_interval_s: float,
        silence_s: float,
        listener: RingListener,
        lifeline: Lifeline | None = None,
        context: ssl.SSLContext | None = None,
        letters: Path | None = None,
    ) -> None:
        self.assign = assign
        self._server = server
        self._lifeline = lifeline
        self._context = context
        self._lifelines: dict[Link, str] = {}
        self._listener = listener
        self._pass = DataCredential.of(assign)
        size = len(assign.roster)
        self._name = assign.roster[assign.rank].name
        self._neighbours = Neighbours(assign.roster, assign.rank)
        self._out: Link | None = None
        self._in: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._silence_s = silence_s
        self._pulse = LinkHeartbeats(
            generation=assign.generation,
            beat_interval_s=beat_interval_s,
            silence_s=silence_s,
            silent=self._on_silent,
            neighbours=self._neighbours.all,
        )
        core = Ring(
            rank=assign.rank,
            world_size=size,
            generation=assign.generation,
            first_step=assign.held_step,
            chunk_bytes=chunk_bytes,
            scratch_slots=SCRATCH_SLOTS,
            one_host=len({member.host for member in assign.roster}) == 1,
        )
        self._loans = SharedMemory(assign.generation, neighbours=self, letters=letters)
        self.node = RingNode(core, self, loans=self._loans)
        self.star = (
            StarLinks(
                assign,
                self,
                neighbours=self._neighbours,
                chunk_bytes=chunk_bytes,
                context=context,
            )
            if self._neighbours.star
            else None
        )

    def connect(self) -> None:
        """Start connecting to all neighbours; does nothing if the endpoint has ended."""
        if self._neighbours.ended:
            return
        if len(self.assign.roster) == 1:
            self._listener.ring_up()
            return
        self._pulse.begin()
        self._connect_next()
        if self.star is not None:
            self.star.connect()
        self._server.expect_ring(self.assign, self, encrypted=self._context is not None)

    def traffic(self) -> Traffic:
        """Return what was sent to the next rank and over the star, and received likewise."""
        traffic = traffic_of(self._out, self._in)
        for link in () if self.star is None else self.star.links():
            traffic = traffic._replace(
                sent_bytes=traffic.sent_bytes + link.sent_bytes,
                received_bytes=traffic.received_bytes + link.received_bytes,
            )
        return traffic

    def explain(self) -> str:
        """Return what ring and star are waiting for, in words."""
        if self.star is None:
            return self.node.core.explain()
        return f"{self.node.core.explain()}; {self.star.node.core.explain()}"

    def end(self, reason: str) -> None:
        """End this rank's part in the generation; idempotent."""
        self._end(RingLoss(reason=reason))

    # --- connecting --------------------------------------------------------------------------

    def _connect_next(self, pause_s: float = 0.0) -> None:
        dialling = dial(
            self._neighbours, NEXT, self._new_link, context=self._context, pause_s=pause_s
        )
        self._connecting = asyncio.create_task(dialling)

    def _new_link(self) -> Link:
        self._out = Link(
            self,
            hello=self._pass.hello(m.Role.RING, self._name),
            secret=self._pass.secret,
            staging_bytes=RING_STAGING_BYTES,
        )
        return self._out

    def accept_ring(self, link: Link, rank: int) -> None:
        """The previous rank has connected and proved that it has the generation's key."""
        self._neighbours.check_caller(rank, has_link=self._in is not None)
        self._in = link
        link.handler = self
        self.attach(PREVIOUS, link)

    def accept_star(self, link: Link, rank: int) -> None:
        """A rank has connected for the star, and proved that it has the generation's key."""
        if self.star is None:
            raise ProtocolError(ErrorCode.WRONG_STATE, "this generation has no servers")
        self.star.accept(link, rank)

    def accept_lifeline(self, link: Link, rank: int) -> None:
        """Accept a neighbour's lifeline, which is idle until its process ends."""
        self._lifelines[link] = self._neighbours.lifeline_of(rank)
        link.handler = self

    def attach(self, neighbour: str, link: Link) -> None:
        """A neighbour's link is open; with the last one the ring is up."""
        if self._neighbours.ended:
            return
        self._pulse.attach(neighbour, link)
        if self._neighbours.attached(neighbour):
            self._hold_lifelines()
            self._listener.ring_up()

    def _hold_lifelines(self) -> None:
        """Open lifelines to both neighbours; they are connected, so they accept this ring's."""
        if self._lifeline is None:
            return
        members = map(self._neighbours.member, (NEXT, PREVIOUS))
        targets = {Address(one.host, one.port) for one in members}
        self._lifeline.hold(
            sorted(targets, key=str),
            name=self._name,
            entry=self._pass,
            timeout_s=self._silence_s,
            context=self._context,
        )

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """The next rank has answered."""
        self.attach(NEXT, link)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Return where an incoming chunk is stored."""
        if isinstance(message, _NODE):
            return self.node.place(message, payload_bytes)
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A chunk, a word or another message of a neighbour has arrived."""
        if self._neighbours.ended:
            return
        if isinstance(message, _NODE):
            self.node.received(message, payload)
        elif isinstance(message, m.ShmReleased):
            self.node.taken(message)
        elif isinstance(message, _LOANS):
            self._loans.received(message)
        else:
            assert isinstance(message, m.LinkHeartbeat)
            if message.generation != self.assign.generation:
                raise ProtocolError(
                    ErrorCode.STALE_GENERATION, f"beat of generation {message.generation}"
                )

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A neighbour's connection was lost, or it sent something invalid."""
        if link in self._lifelines:
            self._end(process_ended(self._lifelines.pop(link)))
            return
        neighbour = NEXT if link is self._out else PREVIOUS
        if self._neighbours.calls_again(neighbour, error):
            self._connect_next(CONNECT_PAUSE_S)
            return
        self._end(self._neighbours.closed(neighbour, error))

    # --- ending ------------------------------------------------------------------------------

    def _on_silent(self, neighbour: str, now: float) -> None:
        """A neighbour has been silent for too long."""
        silence_s = self._pulse.silence_s(neighbour, now)
        trickles = self._pulse.trickles(neighbour, now)
        self._end(self._neighbours.silent(neighbour, silence_s, trickles=trickles))

    def _end(self, loss: RingLoss) -> None:
        """Reset all links, so that the neighbours do not have to wait for the silence limit."""
        if not self._neighbours.end():
            return
        self._pulse.end()
        self._loans.close()
        if self._connecting is not None:
            self._connecting.cancel()
        for link in (self._out, self._in, *self._lifelines):
            if link is not None:
                link.abort()
        if self.star is not None:
            self.star.end()
        self._listener.ring_broken(loss)

    # --- StarOwner: what happens in the star ---------------------------------------------------

    def lost(self, loss: RingLoss) -> None:
        """A link of the star was lost: ring and star end."""
        self._end(loss)

    def star_bucket_done(self, bucket: int) -> None:
        """A bucket of the star is complete and its memory free."""
        self._listener.star_bucket_done(bucket)

    # --- NodeHandler: what the node asks for -------------------------------------------------

    def send(self, message: m.Chunk | m.SmallGather, payload: bytes | memoryview) -> None:
        """Send a message to the next rank."""
        assert self._out is not None
        self._out.send(message, payload)

    def resume(self) -> None:
        """Resume in a later callback: a held frame may lead to many more."""
        if self._in is not None and not self._neighbours.ended:
            asyncio.get_running_loop().call_soon(self._in.resume)

    def bucket_done(self, bucket: int) -> None:
        """The bucket holds the sum; its memory is free once the kernel has taken all of it."""
        drained = self._out.drained() if self._out is not None else None
        if drained is None:
            self._listener.bucket_done(bucket)
        else:
            drained.add_done_callback(lambda _: self._listener.bucket_done(bucket))

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words have arrived."""
        self._listener.words_done(words)

    # --- LoanNeighbours: what loans need -----------------------------------------------------

    def is_next_on_this_host(self) -> bool:
        """Whether the next rank is on this host, judging by addresses."""
        return self._out is not None and self._out.is_same_host

    def tell_next(self, message: m.ShmOffer) -> None:
        """Send an offer to the next rank."""
        assert self._out is not None
        self._out.send(message)

    def tell_previous(self, message: m.ShmRequest | m.ShmMapped | m.ShmReleased) -> None:
        """Send an answer to the previous rank."""
        assert self._in is not None
        self._in.send(message)

    def unreadable(self, error: ProtocolError) -> None:
        """The memory that the previous rank offered is not readable: end the ring immediately."""
        assert self._in is not None
        self._in.fail(error)
        self.link_closed(self._in, error)
