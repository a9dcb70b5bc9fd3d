"""One generation's two links: to the next rank and from the previous one.

Connects, hands chunks between the links and the node (`dtd.transport.ring_node`), watches that both
neighbours live (`dtd.net.pulse`), and says once that the ring is up and once that it is broken, by
whom and how that was seen.  Frames of other generations never reach the node: the HELLO of a ring
link names generation and roster, and every frame is checked again by the machine.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final, Protocol

from dtd.address import Address
from dtd.core.ring.machine import Ring
from dtd.core.ring.neighbours import NEXT, PREVIOUS, Neighbours, RingLoss, process_ended
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.data_server import RING_STAGING_BYTES, DataServer
from dtd.net.lifeline import Lifeline
from dtd.net.link import Link
from dtd.net.pulse import Pulse
from dtd.net.traffic import Traffic, traffic_of
from dtd.transport.ring_node import SCRATCH_SLOTS, RingNode
from dtd.transport.shared_memory import Loans
from dtd.wire import messages as m
from dtd.wire.frames import Hold
from dtd.wire.greeting import DataCredential

CONNECT_PAUSE_S: Final = 0.02

_NODE: Final = (m.Chunk, m.Word)
_LOANS: Final = (m.Lend, m.Borrow, m.Borrowed)


class RingListener(Protocol):
    """Hears what becomes of a ring; called on the event loop."""

    def ring_up(self) -> None:
        """Both links stand; called once."""
        ...

    def ring_broken(self, loss: RingLoss) -> None:
        """The ring cannot go on; called once."""
        ...

    def bucket_done(self, bucket: int) -> None:
        """A bucket holds the sum, and its memory is free."""
        ...

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words of an exchange are here, in rank order."""
        ...


class RingEndpoint:
    """This worker's end of one generation's ring, on the event loop.

    Args:
        assign: the generation.
        server: the data port where the previous rank will connect.
        chunk_bytes: most payload bytes in one frame.
        beat_interval_s: how often either neighbour is told that this side lives.
        silence_s: how long a neighbour may be silent, or take to connect.
        listener: hears what becomes of the ring.
        lifeline: holds connections to the neighbours that end with this process.
        context: TLS for all links, if the job wants that.
        letters: directory of this user alone, through which neighbours hand each other memory to
            read; None: everything is sent.
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
        self._pulse = Pulse(
            generation=assign.generation,
            beat_interval_s=beat_interval_s,
            silence_s=silence_s,
            silent=self._on_silent,
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
        self._loans = Loans(assign.generation, neighbours=self, letters=letters)
        self.node = RingNode(core, self, loans=self._loans)

    def connect(self) -> None:
        """Begin to connect to both neighbours; nothing when it has ended meanwhile."""
        if self._neighbours.ended:
            return
        if len(self.assign.roster) == 1:
            self._listener.ring_up()
            return
        self._pulse.begin()
        self._connecting = asyncio.create_task(self._connect_next())
        self._server.expect_ring(self.assign, self, encrypted=self._context is not None)

    def traffic(self) -> Traffic:
        """What has been sent to the next rank and received from the previous one."""
        return traffic_of(self._out, self._in)

    def end(self, reason: str) -> None:
        """Take no further part; idempotent."""
        self._end(RingLoss(reason=reason))

    # --- connecting --------------------------------------------------------------------------

    async def _connect_next(self, pause_s: float = 0.0) -> None:
        """Call until somebody answers; the pulse knows when that has taken too long."""
        await asyncio.sleep(pause_s)
        to = self._neighbours.member(NEXT)
        while not self._neighbours.ended:
            try:
                await asyncio.get_running_loop().create_connection(
                    self._new_link, to.host, to.port, ssl=self._context
                )
            except OSError as error:
                self._neighbours.refusal = error.strerror or str(error)
                await asyncio.sleep(CONNECT_PAUSE_S)
            else:
                return

    def _new_link(self) -> Link:
        self._out = Link(
            self,
            hello=self._pass.hello(m.Role.RING, self._name),
            secret=self._pass.secret,
            staging_bytes=RING_STAGING_BYTES,
        )
        return self._out

    def accept_ring(self, link: Link, rank: int) -> None:
        """The previous rank has connected, and proved that it has the generation's key."""
        self._neighbours.check_caller(rank, has_link=self._in is not None)
        self._in = link
        link.handler = self
        self._attach(PREVIOUS, link)

    def accept_lifeline(self, link: Link, rank: int) -> None:
        """A neighbour's lifeline: idle until its process ends."""
        self._lifelines[link] = self._neighbours.lifeline_of(rank)
        link.handler = self

    def _attach(self, neighbour: str, link: Link) -> None:
        if self._neighbours.ended:
            return
        self._pulse.attach(neighbour, link)
        if self._neighbours.attached(neighbour):
            self._hold_lifelines()
            self._listener.ring_up()

    def _hold_lifelines(self) -> None:
        """Both neighbours are there, so they know this ring and will take a lifeline of it."""
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
        """The next rank answered."""
        self._attach(NEXT, link)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Where an incoming chunk lies."""
        if isinstance(message, _NODE):
            return self.node.place(message, payload_bytes)
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A chunk or word is here, or what a neighbour says beside them."""
        if self._neighbours.ended:
            return
        if isinstance(message, _NODE):
            self.node.received(message, payload)
        elif isinstance(message, m.Taken):
            self.node.taken(message)
        elif isinstance(message, _LOANS):
            self._loans.received(message)
        else:
            assert isinstance(message, m.Beat)
            if message.generation != self.assign.generation:
                raise ProtocolError(
                    ErrorCode.STALE_GENERATION, f"beat of generation {message.generation}"
                )

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A neighbour is gone, or what it sent was no good."""
        if link in self._lifelines:
            self._end(process_ended(self._lifelines.pop(link)))
            return
        neighbour = NEXT if link is self._out else PREVIOUS
        if self._neighbours.calls_again(neighbour, error):
            self._connecting = asyncio.create_task(self._connect_next(CONNECT_PAUSE_S))
            return
        self._end(self._neighbours.closed(neighbour, error))

    # --- ending ------------------------------------------------------------------------------

    def _on_silent(self, neighbour: str, now: float) -> None:
        """Nothing has come from a neighbour for too long."""
        silence_s = self._pulse.silence_s(neighbour, now)
        trickles = self._pulse.trickles(neighbour, now)
        self._end(self._neighbours.silent(neighbour, silence_s, trickles=trickles))

    def _end(self, loss: RingLoss) -> None:
        """End both links at once: a neighbour that sees the reset need not wait for silence."""
        if not self._neighbours.end():
            return
        self._pulse.end()
        self._loans.close()
        if self._connecting is not None:
            self._connecting.cancel()
        for link in (self._out, self._in, *self._lifelines):
            if link is not None:
                link.abort()
        self._listener.ring_broken(loss)

    # --- NodeHandler: what the node asks for -------------------------------------------------

    def send(self, message: m.Chunk | m.Word, payload: bytes | memoryview) -> None:
        """To the next rank."""
        assert self._out is not None
        self._out.send(message, payload)

    def resume(self) -> None:
        """Outside the current callback: a held frame may lead to many more."""
        if self._in is not None and not self._neighbours.ended:
            asyncio.get_running_loop().call_soon(self._in.resume)

    def bucket_done(self, bucket: int) -> None:
        """The bucket holds the sum; its memory is free when the kernel has taken it all."""
        drained = self._out.drained() if self._out is not None else None
        if drained is None:
            self._listener.bucket_done(bucket)
        else:
            drained.add_done_callback(lambda _: self._listener.bucket_done(bucket))

    def words_done(self, words: list[bytes]) -> None:
        """All ranks' words are here."""
        self._listener.words_done(words)

    # --- LoanNeighbours: what loans need -----------------------------------------------------

    def is_next_on_this_host(self) -> bool:
        """Whether the next rank is on this host, as far as addresses tell."""
        return self._out is not None and self._out.is_same_host

    def tell_next(self, message: m.Lend) -> None:
        """To the next rank."""
        assert self._out is not None
        self._out.send(message)

    def tell_previous(self, message: m.Borrow | m.Borrowed | m.Taken) -> None:
        """To the previous rank."""
        assert self._in is not None
        self._in.send(message)

    def unreadable(self, error: ProtocolError) -> None:
        """The previous rank does not lend what it has named; the ring ends now, not soon."""
        assert self._in is not None
        self._in.fail(error)
        self.link_closed(self._in, error)
