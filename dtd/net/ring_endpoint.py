"""One generation's two links: to the next rank and from the previous one.

Connects, hands chunks between the links and the node (`dtd.net.ring`), watches that both
neighbours live (`dtd.net.pulse`), and says once that the ring is up and once that it is broken, by
whom and how that was seen.  Frames of other generations never reach the node: the HELLO of a ring
link names generation and roster, and every frame is checked again by the machine.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dtd.address import Address
from dtd.core.ring import Ring
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.data_server import RING_STAGING_BYTES, DataServer
from dtd.net.evidence import ENDED, is_no_room, of_a_closed_link, of_no_link, of_silence
from dtd.net.handshake import Pass
from dtd.net.lifeline import Lifeline
from dtd.net.link import Link
from dtd.net.loans import Loans
from dtd.net.pulse import NEXT, PREVIOUS, Pulse
from dtd.net.ring import SCRATCH_SLOTS, RingNode
from dtd.net.traffic import Traffic, traffic_of
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import Hold

CONNECT_PAUSE_S: Final = 0.02

_NODE: Final = (m.Chunk, m.Word)
_LOANS: Final = (m.Lend, m.Borrow, m.Borrowed)


class RingEndpoint:
    """This worker's end of one generation's ring, on the event loop.

    Args:
        assign: the generation.
        server: the data port where the previous rank will connect.
        chunk_bytes: most payload bytes in one frame.
        beat_interval_s: how often either neighbour is told that this side lives.
        silence_s: how long a neighbour may be silent, or take to connect.
        up: called once when both links stand.
        broken: called once with (suspect, evidence, reason) when the ring cannot go on; the first
            two are empty when this side ended it.
        bucket_done: called when a bucket holds the sum and its memory is free.
        words_done: called with all ranks' words.
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
        up: Callable[[], None],
        broken: Callable[[str, str, str], None],
        bucket_done: Callable[[int], None],
        words_done: Callable[[list[bytes]], None],
        lifeline: Lifeline | None = None,
        context: ssl.SSLContext | None = None,
        letters: Path | None = None,
    ) -> None:
        self.assign = assign
        self._server = server
        self._lifeline = lifeline
        self._context = context
        self._lifelines: dict[Link, str] = {}
        self._up = up
        self._broken = broken
        self._bucket_done = bucket_done
        self._pass = Pass.of(assign)
        size = len(assign.roster)
        self._name = assign.roster[assign.rank].name
        self._previous_rank = (assign.rank - 1) % size
        self._neighbours = {
            NEXT: assign.roster[(assign.rank + 1) % size],
            PREVIOUS: assign.roster[self._previous_rank],
        }
        self._out: Link | None = None
        self._in: Link | None = None
        self._ended = False
        self._connecting: asyncio.Task[None] | None = None
        self._refusal = ""
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
        self._loans = Loans(
            assign.generation,
            to_next=self._send,
            to_previous=self._answer,
            same_host=lambda: self._out is not None and self._out.is_same_host,
            lost=self._on_unreadable,
            letters=letters,
        )
        self.node = RingNode(
            core,
            send=self._send,
            resume=self._resume,
            bucket_done=self._on_bucket_done,
            words_done=words_done,
            loans=self._loans,
        )

    def connect(self) -> None:
        """Begin to connect to both neighbours; nothing when it has ended meanwhile."""
        if self._ended:
            return
        if len(self.assign.roster) == 1:
            self._up()
            return
        self._pulse.begin()
        self._connecting = asyncio.create_task(self._connect_next())
        self._server.expect_ring(self.assign, self, encrypted=self._context is not None)

    def traffic(self) -> Traffic:
        """What has been sent to the next rank and received from the previous one."""
        return traffic_of(self._out, self._in)

    def end(self, reason: str) -> None:
        """Take no further part; idempotent."""
        self._fail("", "", reason)

    # --- connecting --------------------------------------------------------------------------

    async def _connect_next(self, pause_s: float = 0.0) -> None:
        """Call until somebody answers; the pulse knows when that has taken too long."""
        await asyncio.sleep(pause_s)
        to = self._neighbours[NEXT]
        while not self._ended:
            try:
                await asyncio.get_running_loop().create_connection(
                    self._new_link, to.host, to.port, ssl=self._context
                )
            except OSError as error:
                self._refusal = error.strerror or str(error)
                await asyncio.sleep(CONNECT_PAUSE_S)
            else:
                return

    def _new_link(self) -> Link:
        self._out = Link(
            self,
            Connection(opened=True, role=m.Role.RING),
            hello=self._pass.hello(m.Role.RING, self._name),
            secret=self._pass.secret,
            staging_bytes=RING_STAGING_BYTES,
        )
        return self._out

    def accept_ring(self, link: Link, rank: int) -> None:
        """The previous rank has connected, and proved that it has the generation's key."""
        if self._in is not None or self._ended or rank != self._previous_rank:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"this ring does not wait for rank {rank}")
        self._in = link
        link.handler = self
        self._attach(PREVIOUS, link)

    def accept_lifeline(self, link: Link, rank: int) -> None:
        """A neighbour's lifeline: idle until his process ends."""
        roster = self.assign.roster
        name = roster[rank].name if rank < len(roster) else ""
        if self._ended or name not in {one.name for one in self._neighbours.values()}:
            raise ProtocolError(ErrorCode.WRONG_STATE, "no neighbour in this ring")
        self._lifelines[link] = name
        link.handler = self

    def _attach(self, neighbour: str, link: Link) -> None:
        if self._ended:
            return
        self._pulse.attach(neighbour, link)
        if self._pulse.is_attached(NEXT) and self._pulse.is_attached(PREVIOUS):
            self._hold_lifelines()
            self._up()

    def _hold_lifelines(self) -> None:
        """Both neighbours are there, so they know this ring and will take a lifeline of it."""
        if self._lifeline is None:
            return
        targets = {Address(one.host, one.port) for one in self._neighbours.values()}
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
        if self._ended:
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
        """A neighbour is gone, or what he sent was no good."""
        if link in self._lifelines:
            self._fail(self._lifelines.pop(link), ENDED, "its process has ended")
            return
        neighbour = NEXT if link is self._out else PREVIOUS
        was_open = self._pulse.is_attached(neighbour)
        if not self._ended and is_no_room(error) and not was_open:
            self._connecting = asyncio.create_task(self._connect_next(CONNECT_PAUSE_S))
            return
        reason = str(error) if error is not None else "the link was closed"
        evidence = of_a_closed_link(error, was_open=was_open)
        self._fail(self._neighbours[neighbour].name, evidence, reason)

    # --- ending ------------------------------------------------------------------------------

    def _on_unreadable(self, error: ProtocolError) -> None:
        """The previous rank does not lend what it has named; the ring ends now, not soon."""
        assert self._in is not None
        self._in.fail(error)
        self.link_closed(self._in, error)

    def _on_silent(self, neighbour: str, now: float) -> None:
        """Nothing has come from a neighbour for too long."""
        who = self._neighbours[neighbour]
        silence_s = self._pulse.silence_s(neighbour, now)
        if not self._pulse.is_attached(neighbour):
            evidence, reason = of_no_link(
                who, silence_s, calls_us=neighbour == PREVIOUS, refusal=self._refusal
            )
        else:
            trickles = self._pulse.trickles(neighbour, now)
            evidence, reason = of_silence(who, silence_s, trickles=trickles)
        self._fail(who.name, evidence, reason)

    def _fail(self, suspect: str, evidence: str, reason: str) -> None:
        """End both links at once: a neighbour that sees the reset need not wait for silence."""
        if self._ended:
            return
        self._ended = True
        self._pulse.end()
        self._loans.close()
        if self._connecting is not None:
            self._connecting.cancel()
        for link in (self._out, self._in, *self._lifelines):
            if link is not None:
                link.abort()
        self._broken(suspect, evidence, reason)

    # --- RingNode ----------------------------------------------------------------------------

    def _send(self, message: m.Chunk | m.Word | m.Lend, payload: bytes | memoryview = b"") -> None:
        assert self._out is not None
        self._out.send(message, payload)

    def _answer(self, message: m.Borrow | m.Borrowed | m.Taken) -> None:
        assert self._in is not None
        self._in.send(message)

    def _resume(self) -> None:
        """Outside the current callback: a held frame may lead to many more."""
        if self._in is not None and not self._ended:
            asyncio.get_running_loop().call_soon(self._in.resume)

    def _on_bucket_done(self, bucket: int) -> None:
        drained = self._out.drained() if self._out is not None else None
        if drained is None:
            self._bucket_done(bucket)
        else:
            drained.add_done_callback(lambda _: self._bucket_done(bucket))
