"""One TCP connection that speaks protocol.md: frames in, frames out, handshake, orderly end.

A `Link` joins a transport, a `FrameDecoder` and a `Connection`, and hands messages to its handler.
It is a `BufferedProtocol`: the kernel writes payloads straight into the memory that the handler
names, and `send` passes payloads to the transport as they lie.  Runs on the event loop only; knows
nothing of rings, jobs or workers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Final

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.drain import Drain
from dtd.net.handshake import Opening, answer
from dtd.net.link_handler import LinkHandler
from dtd.net.remote import Remote
from dtd.net.told_off import told_off
from dtd.wire import messages as m
from dtd.wire.connection import Connection, State
from dtd.wire.frames import Frame, FrameDecoder, Hold, encode_frame, frame_bytes
from dtd.wire.header import Header
from dtd.wire.tags import CHECKSUM, UNDECIDED, Tag

HANDSHAKE_TIMEOUT_S = 10.0
MAX_QUEUED_CONTROL_BYTES = 8 * 1024 * 1024

_IN_ONE_PIECE_BYTES: Final = 4096
"""Up to here it is faster to copy a payload than to send three pieces as they lie."""

_OF_THE_LINK: Final = frozenset({m.Hello, m.Welcome, m.Prove, m.Error, m.Goodbye})
"""Messages that change the link itself; all others are its handler's alone."""


class Link(Remote, asyncio.BufferedProtocol):
    """One connection.

    Args:
        handler: receives what happens.
        connection: the life-cycle machine, opener or acceptor.
        hello: sent at once by the opening side.
        secret: on a data connection, what the opening side shares with the other.
        staging_bytes: read-ahead of the decoder; small where payloads are large.
        peer_role: with TLS, the role that the other side's certificate must have; empty: any.

    Attributes:
        on_lost: called when the TCP connection is gone, before the handler.
        received_bytes: everything that has come in, also of frames that are not whole yet.
        received_frames: how many of them are whole.
    """

    def __init__(
        self,
        handler: LinkHandler,
        connection: Connection,
        *,
        hello: m.Hello | None = None,
        secret: bytes = b"",
        staging_bytes: int = 16 * 1024,
        peer_role: str = "",
    ) -> None:
        super().__init__()
        self.handler = handler
        self.connection = connection
        self.on_lost: Callable[[], object] = lambda: None
        self.sent_bytes = 0
        self.received_bytes = 0
        self.received_frames = 0
        self._hello = hello
        self._secret = secret
        self._opening: Opening | None = None
        self._tag: Tag = CHECKSUM
        self._peer_role = peer_role
        self._decoder = FrameDecoder(self._place, staging_bytes=staging_bytes)
        self._message: m.Message | None = None
        self._error: DtdError | None = None
        self._in_order = False
        self._drain = Drain()
        self._timer: asyncio.TimerHandle | None = None

    # --- sending ---------------------------------------------------------------------------

    def send(self, message: m.Message, payload: bytes | memoryview = b"") -> None:
        """Queue a frame; a payload's memory must not change until `drained`."""
        if self._transport is None or self.closing:
            return
        header, size = m.encode_header(message), len(payload)
        if size <= _IN_ONE_PIECE_BYTES:
            self._transport.writelines((frame_bytes(header, payload, self._tag),))
        else:
            head, tag = encode_frame(header, payload, self._tag)
            self._transport.writelines((head, payload, tag))
        self.sent_bytes += size

    def welcome(self, message: m.Welcome, *, secret: bytes = b"") -> None:
        """Accept the other side's HELLO; with a secret it has yet to prove that it has that too."""
        self.connection.accept()
        self._decoder.max_payload_bytes = message.max_payload_bytes
        if self.connection.state is State.OPEN:
            self._opened()
        elif self.connection.state is State.AWAIT_PROVE:
            assert self._hello is not None
            message, keys = answer(
                message,
                self._hello,
                header=self._decoder.header_bytes,
                secret=secret,
                private=self.is_private,
            )
            self._tag, self._decoder.tag = keys.acceptor, keys.opener
        self.send(message)

    def drained(self) -> asyncio.Future[None] | None:
        """None when the kernel has taken everything sent so far, else a future of that."""
        if self._transport is None or not self._transport.get_write_buffer_size():
            return None
        return self._drain.awaited()

    @property
    def held(self) -> bool:
        """Reading is paused because the handler held a frame."""
        return self._decoder.held

    def queued_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    # --- ending ----------------------------------------------------------------------------

    def fail(self, error: ProtocolError) -> None:
        """Tell the other side why, and close."""
        self.send(m.Error(code=error.code, message=error.message, remedy=error.remedy))
        self.close(error)

    def close(self, error: DtdError | None = None) -> None:
        """Close after what is queued has been sent."""
        if self.closing:
            return
        self.closing = True
        self._error = error
        self._in_order = error is None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, dropping what is queued."""
        if not self.closing:
            self._error = DtdError(f"connection to {self.peer} was cut from this side")
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.BufferedProtocol ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection stands: say HELLO, or wait for it."""
        made = self._attach(transport)
        made.set_write_buffer_limits(high=0)
        if self.closing:
            made.abort()
            return
        try:
            self._identify(self._peer_role)
        except ProtocolError as error:
            self.fail(error)
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._too_slow)
        if self._hello is not None:
            self._decoder.max_payload_bytes = self._hello.max_payload_bytes
            self.send(self._greeting(self._hello))

    def _greeting(self, hello: m.Hello) -> m.Hello:
        """What the opening side says; from then on it takes a refusal, or a WELCOME with a key."""
        if not self._secret:
            return hello
        self._opening = Opening(hello, self._secret, private=self.is_private)
        self._decoder.tag = UNDECIDED
        return self._opening.hello

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for the next bytes."""
        del sizehint
        return self._decoder.next_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived in that memory."""
        self.received_bytes += nbytes
        self._deliver(self._decoder.received(nbytes))

    def resume(self) -> None:
        """A frame that the handler held may be placed now."""
        if not self._decoder.held or self.closing:
            return
        assert self._transport is not None
        self._transport.resume_reading()
        self._deliver(self._decoder.resume())

    def eof_received(self) -> bool:
        """The other side will send no more."""
        try:
            self._decoder.end()
        except ProtocolError as error:
            self._error = self._error or error
        return False

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._drain.done()

    def pause_writing(self) -> None:
        """Something is queued; `drained` asks the transport itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The TCP connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self.closing = True
        self.connection.end()
        self.resume_writing()
        self.on_lost()
        if self._error is None and not self._in_order:
            self._error = DtdError(f"connection to {self.peer} lost: {exc or 'closed by peer'}")
            self._error.__cause__ = exc
        self.handler.link_closed(self, self._error)

    # --- decoding --------------------------------------------------------------------------

    def _place(self, header: Header, payload_bytes: int) -> memoryview | Hold | None:
        message = self._message
        if message is None:  # else it was held, and has been accounted for
            message = m.decode_message(header)
            if isinstance(message, m.Welcome):
                self._take_keys(message)
            self.connection.receive(message, payload_bytes)
            self._message = message
        if type(message) in _OF_THE_LINK:
            return None
        return self.handler.link_place(self, message, payload_bytes)

    def _take_keys(self, welcome: m.Welcome) -> None:
        """WELCOME is the first frame with a key, and brings what was lacking to make it."""
        if self.connection.state is State.AWAIT_WELCOME and self._opening is not None:
            keys = self._opening.keys(welcome)
            self._tag, self._decoder.tag = keys.opener, keys.acceptor

    def _deliver(self, decoded: Iterator[Frame]) -> None:
        try:
            for frame in decoded:
                self.received_frames += 1
                message, self._message = self._message, None
                assert message is not None
                if type(message) in _OF_THE_LINK:
                    self._heed(message, frame.payload)
                else:
                    self.handler.link_received(self, message, frame.payload)
                if self.closing:
                    return
        except ProtocolError as error:
            self.fail(error)
            return
        if self._decoder.held:
            assert self._transport is not None
            self._transport.pause_reading()

    def _heed(self, message: m.Message, payload: memoryview) -> None:
        """Do what a message of the link itself asks for."""
        if isinstance(message, m.Hello):
            self._hello = message
            self.handler.link_opened(self, message)
        elif isinstance(message, m.Welcome):
            self._opened()
            if self._opening is not None:
                self.send(m.Prove())
            self.handler.link_opened(self, message)
        elif isinstance(message, m.Prove):
            self._opened()
            self.handler.link_received(self, message, payload)
        elif isinstance(message, m.Error):
            self.close(told_off(message))
        else:
            self.close()

    def _opened(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self.fail(
            ProtocolError(
                ErrorCode.TIMEOUT, f"no handshake with {self.peer} within {HANDSHAKE_TIMEOUT_S} s"
            )
        )


async def attach(
    connected: socket.socket, new_protocol: Callable[[], asyncio.BaseProtocol]
) -> None:
    """Hand a connected socket to the event loop, which owns it from here on."""
    connected.settimeout(0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(new_protocol, sock=connected)
    if transport.is_closing():
        # A connection that ends while it is being attached has closed its descriptor already, and
        # uvloop gives it the socket only then: that one would close whatever has the number now.
        connected.detach()
