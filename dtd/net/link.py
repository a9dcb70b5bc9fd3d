"""One TCP connection that speaks protocol.md: frames, handshake, orderly end, and its other end.

A `Link` connects a transport to a `Session`, which decides everything about the protocol, and
passes messages to its handler.  It is a `BufferedProtocol`: the kernel writes payloads directly
into memory provided by the handler, and `send` passes payloads to the transport without copying.
Addresses of the other end come from the transport, names from certificates, the rest from the
kernel (tcp(7)).  Runs on the event loop only; knows nothing of rings, jobs or workers.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from dtd.address import SCHEME, is_loopback
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.security.identity import Identity, check_role, of_certificate
from dtd.wire import messages as m
from dtd.wire.data_keys import KEY_BYTES, ends_of
from dtd.wire.frames import Hold
from dtd.wire.session import (
    OF_THE_SESSION,
    STAGING_BYTES,
    Received,
    Session,
    State,
    error_of,
    without_words,
)

HANDSHAKE_TIMEOUT_S = 10.0
UNREAD_S = 30.0
"""After this time without progress the other side is assumed not to read the rest."""
MAX_QUEUED_CONTROL_BYTES = 8 * 1024 * 1024
IDLE_S: Final = 10
DEAD_S: Final = 30
TLS_ENDS: Final = b"tls"
_RTT_OFFSET_BYTES: Final = 68
_MICROSECONDS: Final = struct.Struct("=I")
_NOT_MEASURED: Final = 2**32 - 1
_ACKED_OFFSET_BYTES: Final = 120
_LEAST_RTT_OFFSET_BYTES: Final = 148
_U64: Final = struct.Struct("=Q")
_BUSY_OFFSET_BYTES: Final = 168
_BUSY: Final = struct.Struct("=QQ")


def private_ends(own: Any, peer: Any, *, opened: bool, encrypted: bool) -> bytes:
    """Return the common name of a connection that no third party can reach; empty for others."""
    if encrypted:
        return TLS_ENDS
    network = _network()
    if not network or not all(
        isinstance(end, tuple) and is_loopback(_host(end)) for end in (own, peer)
    ):
        return b""
    opener, acceptor = (own, peer) if opened else (peer, own)
    return ends_of(network, opener=_text(opener), acceptor=_text(acceptor))


@functools.cache
def _network() -> bytes:
    """The running kernel and this process's network namespace; empty if they are not known."""
    import hashlib  # here: dtdctl loads this module, and does not wait for OpenSSL

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        namespace = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return b""
    return hashlib.blake2b(b"%s %d" % (boot, namespace), digest_size=KEY_BYTES).digest()


def _host(end: tuple[Any, ...]) -> str:
    return str(end[0]).removeprefix("::ffff:")


def _text(end: tuple[Any, ...]) -> str:
    return f"{_host(end)}:{end[1]}"


class LinkHandler(Protocol):
    """The owner of a link.  A ProtocolError raised in any method closes the link with it."""

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """HELLO arrived (answer with `link.welcome(...)`, now or later), or WELCOME arrived.

        On a data connection the other side is authenticated when `link_received` delivers PROVE.
        """
        ...

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Provide the memory of a payload that is about to arrive."""
        ...

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A complete message arrived."""
        ...

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """The link has ended; `error` gives the reason unless it ended normally."""
        ...


class Link(asyncio.BufferedProtocol):
    """One connection.

    Args:
        accepts: without `hello`, the roles that are served.
        secret: on a data connection, the secret shared by both sides.
        staging_bytes: read-ahead of the decoder; small where payloads are large.
        peer_role: with TLS, the role that the other side's certificate must have; empty: any.
        peer_name: the name that the other side must state in WELCOME; empty: any.

    Attributes:
        peer: its address and port, or its user on this host, for people; empty until the
            connection stands.
        is_same_host: both ends have the same address, so both are probably on this host.
        on_lost: called when the TCP connection is gone, before the handler.
        received_bytes: all received bytes, including those of incomplete frames.
    """

    def __init__(
        self,
        handler: LinkHandler,
        *,
        hello: m.Hello | None = None,
        accepts: frozenset[m.Role] = frozenset(),
        secret: bytes = b"",
        staging_bytes: int = STAGING_BYTES,
        peer_role: str = "",
        peer_name: str = "",
    ) -> None:
        self.identity: Identity | None = None
        self.peer = ""
        self.closing = False
        self.is_same_host = False
        self._transport: asyncio.Transport | None = None
        self._ends: tuple[Any, Any] = (None, None)
        self.handler = handler
        self.session = Session(
            role=None if hello is None else m.Role(hello.role),
            accepts=accepts,
            random_bytes=os.urandom,
            place=self._place,
            staging_bytes=staging_bytes,
            peer_name=peer_name,
        )
        self.on_lost: Callable[[], object] = lambda: None
        self.sent_bytes = 0
        self.sent_frames = 0
        self.received_bytes = 0
        self.received_frames = 0
        self._hello = hello
        self._secret = secret
        self._peer_role = peer_role
        self._error: DtdError | None = None
        self._in_order = False
        self._draining: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    # --- the other end ---------------------------------------------------------------------

    def round_trip_s(self) -> float:
        """Smoothed round-trip time measured by the kernel; 0 when it is not known."""
        return self._microseconds(_RTT_OFFSET_BYTES) / 1e6

    def least_round_trip_s(self) -> float:
        """The least round-trip time of the last minutes, without queues; 0 when it is not known."""
        least_us = self._microseconds(_LEAST_RTT_OFFSET_BYTES)
        return least_us / 1e6 if least_us != _NOT_MEASURED else 0.0

    def _microseconds(self, offset_bytes: int) -> int:
        info = self._tcp_info(offset_bytes + _MICROSECONDS.size)
        return int(_MICROSECONDS.unpack_from(info, offset_bytes)[0]) if info else 0

    def transmitted(self) -> tuple[int, float]:
        """Bytes that the other side's kernel has acknowledged, and how long that took in seconds.

        Time with nothing to send, and time in which the other side did not read, do not count.
        Both are 0 when they are not known.
        """
        info = self._tcp_info(_BUSY_OFFSET_BYTES + _BUSY.size)
        if not info:
            return 0, 0.0
        busy_us, unread_us = _BUSY.unpack_from(info, _BUSY_OFFSET_BYTES)
        acked_bytes = int(_U64.unpack_from(info, _ACKED_OFFSET_BYTES)[0])
        return acked_bytes, max(busy_us - unread_us, 0) / 1e6

    def _tcp_info(self, size: int) -> bytes:
        """The first bytes of what the kernel knows of the connection (tcp(7)); or none."""
        if self._transport is None or self.closing:
            return b""
        connection = self._transport.get_extra_info("socket")
        try:
            info = bytes(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size))
        except OSError:  # just closed
            return b""
        return info if len(info) == size else b""

    def keep_alive(self) -> None:
        """Enable TCP keep-alive: probe a quiet peer, and drop the connection when it is dead.

        Not for a peer that may stop reading: that counts as dead too.
        """
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        options = {
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): IDLE_S,
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): IDLE_S // 2,
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): DEAD_S * 1000,
        }
        for (level, option), value in options.items():
            connection.setsockopt(level, option, value)

    def _private_ends(self, *, opened: bool) -> bytes:
        return private_ends(*self._ends, opened=opened, encrypted=self.is_encrypted)

    @property
    def is_encrypted(self) -> bool:
        transport = self._transport
        return transport is not None and transport.get_extra_info("ssl_object") is not None

    def peer_host(self) -> str:
        """Address of the other side without the port, or its user on this host."""
        return self.peer if self.peer.startswith(SCHEME) else self.peer.rsplit(":", 1)[0]

    def own_host(self) -> str:
        """Address of this side without the port; empty for other sockets."""
        return _host(self._ends[0]) if self._ends[0] else ""

    # --- sending ---------------------------------------------------------------------------

    def send(self, message: m.Message, payload: bytes | memoryview = b"") -> None:
        """Queue a frame; a payload's memory must not change until `drained`."""
        if self._transport is None or self._is_closing:
            return
        self._transport.writelines(self.session.encode(message, payload))
        self.sent_bytes += len(payload)
        self.sent_frames += 1

    def welcome(self, message: m.Welcome, *, secret: bytes = b"") -> None:
        """Accept the other side's HELLO; with a secret, it must still prove that it has it."""
        ends = self._private_ends(opened=False) if secret else b""
        self._write(self.session.welcome(message, secret=secret, ends=ends))
        if self.session.state is State.OPEN:
            self._opened()

    def drained(self) -> asyncio.Future[None] | None:
        """None when the kernel has accepted everything sent so far, else a future for that."""
        if self._transport is None or not self._transport.get_write_buffer_size():
            return None
        future = asyncio.get_running_loop().create_future()
        self._draining.append(future)
        return future

    @property
    def held(self) -> bool:
        """Reading is paused because the handler held a frame."""
        return self.session.held

    def queued_bytes(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._is_closing:
            self._transport.writelines((data,))

    @property
    def _is_closing(self) -> bool:
        """A transport that its peer has reset is closed before this link hears of it."""
        return self.closing or (self._transport is not None and self._transport.is_closing())

    # --- ending ----------------------------------------------------------------------------

    def fail(self, error: ProtocolError) -> None:
        """Send the reason to the other side, and close."""
        self._refuse(error)
        self.close(error)

    def _refuse(self, error: ProtocolError) -> None:
        self.send(m.Error(code=error.code, message=error.message, remedy=error.remedy))

    def _reported(self, error: ProtocolError) -> ProtocolError:
        """Return the error for the handler, which reaches the operator: no words of a stranger."""
        return error if self.session.knows_peer else without_words(error)

    def close(self, error: DtdError | None = None) -> None:
        """Close once queued data has been sent, or has not been read for too long."""
        if self.closing:
            return
        self.closing = True
        self._error = error
        self._in_order = error is None
        if self._transport is not None:
            self._opened()  # the handshake is no longer awaited
            self._transport.close()
            self._watch_rest()

    def leave(self, farewell: m.Goodbye) -> None:
        """Send GOODBYE, and close."""
        self.send(farewell)
        self.close()

    def abort(self) -> None:
        """Close at once and drop queued data."""
        if not self.closing:
            self._error = DtdError(f"connection to {self.peer} was closed by this side")
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def _watch_rest(self) -> None:
        """Abort if the peer stops reading: the kernel would keep the connection open for ever."""
        left_bytes = self.queued_bytes()
        if left_bytes:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(UNREAD_S, self._look_at_rest, left_bytes)

    def _look_at_rest(self, before_bytes: int) -> None:
        assert self._transport is not None
        if self.queued_bytes() >= before_bytes:
            self._transport.abort()
        else:
            self._watch_rest()

    # --- asyncio.BufferedProtocol ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
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
            ends = self._private_ends(opened=True) if self._secret else b""
            self._write(self.session.hello(self._hello, secret=self._secret, ends=ends))

    def _attach(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        # uvloop's class does not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if not isinstance(name, tuple):  # a Unix socket, or already closed
            who = self.identity
            self.peer = who.name if who is not None else f"{SCHEME}{name}" if name else "?"
            return self._transport
        self.peer = f"{name[0].removeprefix('::ffff:')}:{name[1]}"
        own = transport.get_extra_info("sockname")
        self._ends = own, name
        self.is_same_host = bool(own) and name[0] == own[0]
        return self._transport

    def _identify(self, role: str) -> None:
        """With TLS, take the peer's identity from its certificate."""
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        if tls is not None:
            self.identity = of_certificate(tls.getpeercert(), tls.getpeercert(binary_form=True))
            check_role(self.identity, role)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self.session.next_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        self._deliver(self.session.received(nbytes))

    def resume(self) -> None:
        """Place a frame that the handler held."""
        if not self.session.held or self.closing:
            return
        assert self._transport is not None
        self._transport.resume_reading()
        self._deliver(self.session.resume())

    def eof_received(self) -> bool:
        try:
            self.session.end()
        except ProtocolError as error:
            self._error = self._error or error
        return False

    def resume_writing(self) -> None:
        draining, self._draining = self._draining, []
        for future in draining:
            if not future.done():
                future.set_result(None)

    def pause_writing(self) -> None:
        """Data is queued; `drained` asks the transport itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.closing = True
        self.session.close()
        self.resume_writing()
        self.on_lost()
        if self._error is None and not self._in_order:
            self._error = DtdError(f"connection to {self.peer} lost: {exc or 'closed by peer'}")
            self._error.__cause__ = exc
        self.handler.link_closed(self, self._error)

    # --- receiving -------------------------------------------------------------------------

    def _place(self, message: m.Message, payload_bytes: int) -> memoryview | Hold | None:
        return self.handler.link_place(self, message, payload_bytes)

    def _pass_on(self, message: m.Message, payload: memoryview) -> None:
        self.received_frames += 1
        self.handler.link_received(self, message, payload)

    def _deliver(self, received: Iterator[Received]) -> None:
        try:
            for message, payload in received:
                if type(message) in OF_THE_SESSION:
                    self.received_frames += 1
                    self._heed(message, payload)
                else:
                    self._pass_on(message, payload)
                if self.closing:
                    return
        except ProtocolError as error:
            self._refuse(error)
            self.close(self._reported(error))
            return
        if self.session.held:
            assert self._transport is not None
            self._transport.pause_reading()

    def _heed(self, message: m.Message, payload: memoryview) -> None:
        """Act on a message of the handshake or of the end of the connection."""
        if isinstance(message, m.Hello):
            self.handler.link_opened(self, message)
        elif isinstance(message, m.Welcome):
            self._opened()
            self._write(self.session.data_to_send())
            self.handler.link_opened(self, message)
        elif isinstance(message, m.Prove):
            self._opened()
            self.handler.link_received(self, message, payload)
        elif isinstance(message, m.Error):
            self.close(self._reported(error_of(message)))
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
    """Pass a connected socket to the event loop, which then owns it."""
    connected.settimeout(0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(new_protocol, sock=connected)
    if transport.is_closing():
        # A connection that ends while it is being attached has closed its descriptor already, and
        # uvloop gives it the socket only then: that one would close whatever has the number now.
        connected.detach()


# --- traffic of a worker's links to other ranks --------------------------------------------------


class Traffic(NamedTuple):
    """The traffic of a worker's two ring links, and of its star links if there are any.

    Attributes:
        sent_bytes: payload bytes to the next rank and over the star, without those read from shared
            memory.
        plain_bytes: the same before they were coded.
        received_bytes: all bytes from the previous rank and over the star.
        rtt_s: round-trip time to the next rank; 0 when there is no link.
        hop_bytes: what that link carries in the time of a hop; 0 when it is not known.
    """

    sent_bytes: int
    plain_bytes: int
    received_bytes: int
    rtt_s: float
    hop_bytes: int


NO_TRAFFIC: Final = Traffic(sent_bytes=0, plain_bytes=0, received_bytes=0, rtt_s=0.0, hop_bytes=0)
