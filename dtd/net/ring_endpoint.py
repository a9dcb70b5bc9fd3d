"""One generation's two links: to the next rank and from the previous one.

Connects, hands chunks between the links and the node (`dtd.net.ring`), and says once that the ring
is up and once that it is broken.  Frames of other generations never reach the node: the HELLO of a
ring link names generation and roster, and every frame is checked again by the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dtd import __version__
from dtd.core.ring import Ring
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.data_server import RING_STAGING_BYTES, DataServer, welcome
from dtd.net.link import Link
from dtd.net.ring import SCRATCH_SLOTS, RingNode
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold

CONNECT_PAUSE_S: Final = 0.05
LONGEST_CONNECT_PAUSE_S: Final = 0.5


class RingEndpoint:
    """This worker's end of one generation's ring, on the event loop.

    Args:
        assign: the generation.
        server: the data port where the previous rank will connect.
        chunk_bytes: most payload bytes in one frame.
        up: called once when both links stand.
        broken: called once with (suspect, reason) when the ring cannot go on.
        bucket_done: called when a bucket holds the sum and its memory is free.
        words_done: called with all ranks' words.
    """

    def __init__(
        self,
        assign: m.Assign,
        server: DataServer,
        *,
        chunk_bytes: int,
        up: Callable[[], None],
        broken: Callable[[str, str], None],
        bucket_done: Callable[[int], None],
        words_done: Callable[[list[bytes]], None],
    ) -> None:
        self.assign = assign
        self._server = server
        self._up = up
        self._broken = broken
        self._bucket_done = bucket_done
        self._next = assign.roster[(assign.rank + 1) % len(assign.roster)]
        self._previous = assign.roster[(assign.rank - 1) % len(assign.roster)]
        self._out: Link | None = None
        self._in: Link | None = None
        self._ended = False
        self._connecting: asyncio.Task[None] | None = None
        core = Ring(
            rank=assign.rank,
            world_size=len(assign.roster),
            generation=assign.generation,
            first_step=assign.held_step,
            chunk_bytes=chunk_bytes,
            scratch_slots=SCRATCH_SLOTS,
        )
        self.node = RingNode(
            core,
            send=self._send,
            resume=self._resume,
            bucket_done=self._on_bucket_done,
            words_done=words_done,
        )

    def connect(self) -> None:
        """Begin to connect to both neighbours; nothing when it has ended meanwhile."""
        if self._ended:
            return
        if len(self.assign.roster) == 1:
            self._up()
            return
        previous_rank = (self.assign.rank - 1) % len(self.assign.roster)
        self._server.expect_ring(self.assign.generation, self.assign.roster_id, previous_rank, self)
        self._connecting = asyncio.create_task(self._connect_next())

    def end(self, reason: str) -> None:
        """Take no further part; idempotent."""
        self._fail("", reason)

    # --- connecting --------------------------------------------------------------------------

    async def _connect_next(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = CONNECT_PAUSE_S
        while not self._ended:
            try:
                await loop.create_connection(self._new_link, self._next.host, self._next.port)
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_CONNECT_PAUSE_S)
            else:
                return

    def _new_link(self) -> Link:
        hello = m.Hello(
            role=m.Role.RING,
            name=self.assign.roster[self.assign.rank].name,
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            version=__version__,
            max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
            generation=self.assign.generation,
            roster_id=self.assign.roster_id,
            rank=self.assign.rank,
        )
        self._out = Link(
            self,
            Connection(opened=True, role=m.Role.RING),
            hello=hello,
            staging_bytes=RING_STAGING_BYTES,
        )
        return self._out

    def accept_ring(self, link: Link) -> None:
        """The previous rank has connected."""
        if self._in is not None or self._ended:
            raise ProtocolError(ErrorCode.WRONG_STATE, "this ring has its previous neighbour")
        self._in = link
        link.handler = self
        link.welcome(welcome(self.assign.roster[self.assign.rank].name))
        self._check_up()

    def _check_up(self) -> None:
        out_up = self._out is not None and self._out.connection.state.name == "OPEN"
        if self._in is not None and out_up and not self._ended:
            self._up()

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """The next rank answered."""
        self._check_up()

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Where an incoming chunk lies."""
        assert isinstance(message, m.Chunk | m.Word)
        return self.node.place(message, payload_bytes)

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A chunk or word is here."""
        assert isinstance(message, m.Chunk | m.Word)
        if not self._ended:
            self.node.received(message, payload)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A neighbour is gone."""
        if link is self._out and self._retry(error):
            return
        neighbour = self._next if link is self._out else self._previous
        self._fail(neighbour.name, str(error) if error is not None else "the link was closed")

    def _retry(self, error: DtdError | None) -> bool:
        """A neighbour that takes long to take over the state did not welcome us: call again."""
        timed_out = isinstance(error, ProtocolError) and error.code is ErrorCode.TIMEOUT
        if timed_out and not self._ended:
            self._connecting = asyncio.create_task(self._connect_next())
        return timed_out

    def _fail(self, suspect: str, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._connecting is not None:
            self._connecting.cancel()
        for link in (self._out, self._in):
            if link is not None:
                link.abort()
        self._broken(suspect, reason)

    # --- RingNode ----------------------------------------------------------------------------

    def _send(self, message: m.Chunk | m.Word, payload: bytes | memoryview) -> None:
        assert self._out is not None
        self._out.send(message, payload)

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
