"""One generation's links over TCP: those of its ring, on which the trees are, and of its star.

A `RingEndpoint` belongs to the event loop.  It connects the links, passes frames between them and
the nodes (`dtd.exchange.node`) and watches all neighbours (`dtd.net.liveness`).  It reports once
that the ring is up, which it is when all links are, and once that it is broken, with the suspect
and the evidence.  Frames of other generations never reach a node: the HELLO of a link names
generation and roster, and the machine checks every frame again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.exchange.memory_offers import SharedMemory
from dtd.exchange.node import RING, SCRATCH_SLOTS, STAR, Node, NodeCollective
from dtd.exchange.schedule.coding_choice import Mode
from dtd.exchange.schedule.crossover import HopMeter
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.neighbours import ENDED, Neighbour, Neighbours, RingLoss
from dtd.exchange.schedule.schedules import RingSchedules, StarSchedules
from dtd.exchange.schedule.tree import strides_in
from dtd.net.addresses.dialling import Dialling, failure_text
from dtd.net.addresses.routes import Routes
from dtd.net.coding_link import Coding, CodingLink
from dtd.net.data_port.data_server import RING_STAGING_BYTES, DataServer
from dtd.net.link import Link, LinkHandler, Traffic
from dtd.net.liveness import Lifeline, LinkHeartbeats
from dtd.planes import PLANES
from dtd.wire import messages as m
from dtd.wire.frames import Hold
from dtd.wire.session import DataCredential

CONNECT_PAUSE_S: Final = 0.02

TURN_BYTES: Final = 1024 * 1024
"""After sending this much over a star other work comes first: a server may start with hundreds of
MiB, whose tags take 0.1 to 0.5 ms for each MiB."""

QUEUED_BYTES: Final = 4 * 1024 * 1024
"""A star's link with more than this queued is given no more until the kernel has taken all of it.
What is queued for TLS is a copy, and a server may let every rank pull its part of a model at once.
"""

_NODE: Final = (m.Chunk, m.SmallGather)
_SHARED: Final = (m.ShmOffer, m.ShmRequest, m.ShmMapped)


class RingEndpoint:
    """This worker's end of one generation's ring, on the event loop.

    Args:
        assign: the generation.
        server: the data port where neighbours will connect.
        chunk_bytes: most payload bytes in one frame.
        beat_interval_s: interval of the heartbeats to all neighbours.
        silence_s: how long a neighbour may be silent, or take to connect.
        listener: is told when the ring is up and broken, and what is done.
        lifeline: holds connections to the neighbours that end with this process.
        context: TLS for all links, if the job requires it.
        fd_dir: directory private to this user, through which neighbours pass each other memory to
            read; None sends everything over the sockets.
        lossless: whether payloads are coded, as in the job file.
        routes: the addresses at which members have answered; kept between generations.

    Attributes:
        node: the ring's node.
        star: the star's node and what it has to send; None without servers.
        neighbours: the other ends of the links, and whether the generation has ended.
        links: by neighbour, those that are open.
    """

    def __init__(
        self,
        assign: m.Assign,
        server: DataServer,
        *,
        chunk_bytes: int,
        beat_interval_s: float,
        silence_s: float,
        listener: NodeCollective,
        lifeline: Lifeline | None = None,
        context: ssl.SSLContext | None = None,
        fd_dir: Path | None = None,
        lossless: Mode = "off",
        routes: Routes | None = None,
    ) -> None:
        self.assign = assign
        self.listener = listener
        schedules = RingSchedules(
            assign.rank,
            len(assign.roster),
            chunk_bytes=chunk_bytes,
            whole_bytes=assign.whole_bytes,
            strides=strides_in(assign.strides),
        )
        self.neighbours = Neighbours(assign.roster, schedules.tree)
        self.links: dict[Neighbour, CodingLink] = {}
        self._at: dict[Link, Neighbour] = {}
        self._server = server
        self.routes = routes or Routes()
        self._lifeline = lifeline
        self._context = context
        self._lifelines: dict[Link, str] = {}
        self._pass = DataCredential.of(assign)
        self._coding = Coding(lossless)
        self._meter = HopMeter()
        self._dialling: list[asyncio.Task[None]] = []
        self._silence_s = silence_s
        self._heartbeats = LinkHeartbeats(
            generation=assign.generation,
            beat_interval_s=beat_interval_s,
            silence_s=silence_s,
            silent=self._on_silent,
            neighbours=tuple(self.neighbours.members),
        )
        machine = Machine(
            schedules,
            generation=assign.generation,
            first_step=assign.held_step,
            scratch_slots=SCRATCH_SLOTS,
        )
        self._shared = SharedMemory(assign.generation, links=self, fd_dir=fd_dir)
        self.node = Node(machine, self, shared=self._shared)
        has_star = bool(self.neighbours.star)
        self.star = StarLinks(assign, self, chunk_bytes=chunk_bytes) if has_star else None

    @property
    def nodes(self) -> list[Node]:
        return [self.node] if self.star is None else [self.node, self.star.node]

    def connect(self) -> None:
        """Start connecting to all neighbours; does nothing if the endpoint has ended."""
        if self.neighbours.ended:
            return
        if len(self.assign.roster) == 1:
            self.listener.ring_up()
            return
        self._heartbeats.begin()
        for neighbour in self.neighbours.members:
            if neighbour.opens:
                self._dialling.append(asyncio.create_task(self._dial(neighbour)))
        self._server.expect_ring(self.assign, self.accept, encrypted=self._context is not None)

    def traffic(self) -> Traffic:
        after = self.links.get(self.neighbours.next)
        return Traffic(
            sent_bytes=sum(link.sent_bytes for link in self.links.values()),
            plain_bytes=sum(link.plain_bytes for link in self.links.values()),
            received_bytes=sum(link.received_bytes for link in self.links.values()),
            rtt_s=0.0 if after is None else after.round_trip_s(),
            hop_bytes=0 if after is None else self._hop_bytes(after),
        )

    def _hop_bytes(self, link: Link) -> int:
        """Bytes that a link carries in the time of a hop; 0: unknown, or within this host."""
        if link.is_same_host:
            return 0
        return self._meter.hop_bytes(
            *link.transmitted(), link.sent_frames, link.least_round_trip_s()
        )

    def end(self, reason: str) -> None:
        """End this rank's part in the generation; idempotent."""
        self.lose(RingLoss(reason=reason))

    # --- connecting --------------------------------------------------------------------------

    async def _dial(self, neighbour: Neighbour) -> None:
        """Retry until a neighbour accepts; the heartbeats limit how long that may take.

        Its process may not listen yet, or have no room for callers.
        """
        to = self.neighbours.members[neighbour]
        while not self.neighbours.ended:
            dialling = Dialling(
                self.routes.addresses(to),
                partial(self._new_link, neighbour),
                opened=partial(self._opened, neighbour),
                context=self._context,
            )
            if await dialling.run():
                return
            self.neighbours.refusals[neighbour] = failure_text(dialling.failures)
            loss = self.neighbours.refused(neighbour, list(dialling.failures.values()))
            if loss is not None:
                self.lose(loss)
            await asyncio.sleep(CONNECT_PAUSE_S)

    def _new_link(self, neighbour: Neighbour, handler: LinkHandler) -> CodingLink:
        name = self.assign.roster[self.assign.rank].name
        hello = replace(self._pass.hello(neighbour.role, name), coding=PLANES)
        return CodingLink(
            handler,
            hello=hello,
            secret=self._pass.secret,
            staging_bytes=RING_STAGING_BYTES,
            peer_name=self.neighbours.members[neighbour].name,
        )

    def _opened(self, neighbour: Neighbour, link: CodingLink, address: Address) -> None:
        self.routes.answered(self.neighbours.members[neighbour], address)
        self._own(link, neighbour)

    def _own(self, link: CodingLink, neighbour: Neighbour) -> None:
        """This link is the one with a neighbour; with the last one the ring is up."""
        link.handler, link.coding = self, self._coding
        self.links[neighbour] = link
        self._at[link] = neighbour
        if self.neighbours.ended:
            link.abort()
            return
        self._heartbeats.attach(neighbour, link)
        if self.neighbours.attached(neighbour):
            self._hold_lifelines()
            self.listener.ring_up()

    def accept(self, link: Link, hello: m.Hello) -> None:
        """A neighbour has connected and proved that it has the generation's key."""
        assert isinstance(link, CodingLink)
        if hello.role == m.Role.LIFELINE:
            self._accept_lifeline(link, hello.rank)
            return
        self._own(link, self.neighbours.caller(m.Role(hello.role), hello.rank))

    def _accept_lifeline(self, link: CodingLink, rank: int) -> None:
        """It is idle until the neighbour's process ends."""
        self._lifelines[link] = self.neighbours.lifeline_of(rank)
        link.handler = self

    def _hold_lifelines(self) -> None:
        """Open lifelines to both neighbours; they are connected, so they accept this ring's."""
        if self._lifeline is None:
            return
        both = (self.neighbours.next, self.neighbours.previous)
        targets = {self._lifeline_to(one) for one in both}
        self._lifeline.hold(
            sorted(targets, key=str),
            name=self.assign.roster[self.assign.rank].name,
            entry=self._pass,
            timeout_s=self._silence_s,
            context=self._context,
        )

    def _lifeline_to(self, neighbour: Neighbour) -> Address:
        """Return the neighbour's address at which the link with it ends, if others may call it."""
        member, there = self.neighbours.members[neighbour], self.links[neighbour].peer_host()
        known = self.routes.addresses(member)
        return next((address for address in known if address.host == there), known[0])

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        raise AssertionError("a link that was open")

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        if isinstance(message, _NODE):
            neighbour = self._at[link]
            return self._node_of(neighbour).place(message, payload_bytes, link=neighbour.rank)
        return None

    def _node_of(self, neighbour: Neighbour) -> Node:
        if self.star is not None and neighbour.role is m.Role.STAR:
            return self.star.node
        return self.node

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        if self.neighbours.ended:
            return
        if isinstance(message, _NODE):
            self._node_of(self._at[link]).received(message, payload)
        elif isinstance(message, m.ShmReleased):
            self.node.released(message)
        elif isinstance(message, _SHARED):
            self._shared.received(message)
        else:
            self._check_heartbeat(message)

    def _check_heartbeat(self, message: m.Message) -> None:
        assert isinstance(message, m.LinkHeartbeat)
        if message.generation != self.assign.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"beat of generation {message.generation}"
            )

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        if link in self._lifelines:
            name = self._lifelines.pop(link)
            self.lose(RingLoss(suspect=name, evidence=ENDED, reason="its process has ended"))
            return
        self.lose(self.neighbours.closed(self._at[link], error))

    # --- ending ------------------------------------------------------------------------------

    def _on_silent(self, neighbour: Neighbour, now: float) -> None:
        silence_s = self._heartbeats.silence_s(neighbour, now)
        trickles = self._heartbeats.trickles(neighbour, now)
        link = self.links.get(neighbour)
        at = "" if link is None else link.peer_host()
        self.lose(self.neighbours.silent(neighbour, silence_s, trickles=trickles, at=at))

    def lose(self, loss: RingLoss) -> None:
        """Reset all links, so that the neighbours do not have to wait for the silence limit."""
        if not self.neighbours.end():
            return
        self._heartbeats.end()
        self._shared.close()
        for dialling in self._dialling:
            dialling.cancel()
        for link in (*self.links.values(), *self._lifelines):
            link.abort()
        if self.star is not None:
            self.star.end()
        self._coding.close()
        self.listener.ring_broken(loss)

    # --- Links: what the ring's node asks for --------------------------------------------------

    def send(
        self, rank: int, message: m.Chunk | m.SmallGather, payload: bytes | memoryview
    ) -> None:
        item_bytes = self.node.item_bytes(message.bucket) if isinstance(message, m.Chunk) else 0
        self.links[self.neighbours.ring[rank, True]].send(message, payload, item_bytes)

    def resume(self, rank: int) -> None:
        """Resume in a later callback: a held frame may lead to many more."""
        self.resume_link(self.neighbours.ring[rank, False])

    def resume_link(self, neighbour: Neighbour) -> None:
        """Place a neighbour's held frame in a later callback."""
        if not self.neighbours.ended:
            asyncio.get_running_loop().call_soon(self.links[neighbour].resume)

    def bucket_done(self, bucket: int) -> None:
        """The bucket holds the sum; its memory is free once the kernel has taken all of it."""
        opened = (one for one in self.neighbours.ring.values() if one.opens)
        self.when_drained(opened, partial(self.listener.bucket_done, RING, bucket))

    def when_drained(self, neighbours: Iterable[Neighbour], then: Callable[[], None]) -> None:
        """Call this once the kernel has accepted everything that was sent so far to these."""
        links = (self.links[one] for one in neighbours if one in self.links)
        waiting = [drained for link in links if (drained := link.drained())]
        left = len(waiting)

        def one_drained(_: asyncio.Future[None]) -> None:
            nonlocal left
            left -= 1
            if not left and not self.neighbours.ended:
                then()

        for drained in waiting:
            drained.add_done_callback(one_drained)
        if not waiting:
            then()

    def gather_done(self, entries: list[bytes]) -> None:
        self.listener.gather_done(entries)

    # --- SharingLinks: what shared memory asks for ---------------------------------------------

    def is_next_on_this_host(self) -> bool:
        after = self.links.get(self.neighbours.next)
        return after is not None and after.is_same_host

    def tell_next(self, message: m.ShmOffer) -> None:
        self.links[self.neighbours.next].send(message)

    def tell_previous(self, message: m.ShmRequest | m.ShmMapped | m.ShmReleased) -> None:
        self.links[self.neighbours.previous].send(message)

    def unreadable(self, error: ProtocolError) -> None:
        link = self.links[self.neighbours.previous]
        link.fail(error)
        self.link_closed(link, error)


class StarLinks:
    """The way out of a star's node: to every server, or from a server to other ranks."""

    def __init__(self, assign: m.Assign, endpoint: RingEndpoint, *, chunk_bytes: int) -> None:
        self._endpoint = endpoint
        self._neighbours = endpoint.neighbours
        self._outboxes: dict[int, deque[tuple[m.Chunk, memoryview]]] = {}
        self._full: set[int] = set()
        self._unsent: Counter[int] = Counter()
        self._ended: set[int] = set()
        self._is_due = False
        size = len(assign.roster)
        machine = Machine(
            StarSchedules(
                assign.rank,
                size,
                servers=sum(member.serves for member in assign.roster),
                chunk_bytes=chunk_bytes,
            ),
            generation=assign.generation,
            first_step=assign.held_step,
            scratch_slots=size,
        )
        self.node = Node(machine, self)

    def end(self) -> None:
        self._outboxes.clear()

    # --- Links: what the star's node asks for --------------------------------------------------

    def send(
        self, rank: int, message: m.Chunk | m.SmallGather, payload: bytes | memoryview
    ) -> None:
        """Queue a chunk, which is sent in a later callback."""
        assert isinstance(message, m.Chunk)
        assert isinstance(payload, memoryview)
        self._unsent[message.bucket] += 1
        self._outboxes.setdefault(rank, deque()).append((message, payload))
        self._send_later()

    def resume(self, rank: int) -> None:
        """Resume in a later callback: a held frame may lead to many more."""
        self._endpoint.resume_link(self._neighbours.star[rank])

    def bucket_done(self, bucket: int) -> None:
        """The bucket has its result; its memory is free once the kernel has taken what is sent."""
        if bucket not in self._unsent:
            self._endpoint.listener.bucket_done(STAR, bucket)
            return
        self._ended.add(bucket)
        self._drain_if_sent(bucket)

    def gather_done(self, entries: list[bytes]) -> None:
        raise AssertionError("a small gather in a star")

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
        link = self._endpoint.links[self._neighbours.star[rank]]
        link.send(chunk, payload, self.node.item_bytes(chunk.bucket))
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
            done = partial(self._endpoint.listener.bucket_done, STAR, bucket)
            self._endpoint.when_drained(self._neighbours.star.values(), done)
