"""The other end of a connection: address, identity, round-trip time and liveness.

Addresses come from the transport, names from certificates, the rest from the kernel (tcp(7)).
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from pathlib import Path
from typing import Any, Final, cast

from dtd.address import SCHEME, is_loopback
from dtd.security.identity import Identity, check_role, of_certificate
from dtd.wire.data_keys import KEY_BYTES, ends_of

IDLE_S: Final = 10
DEAD_S: Final = 30
TLS_ENDS: Final = b"tls"
_RTT_OFFSET_BYTES: Final = 68
_MICROSECONDS: Final = struct.Struct("=I")


class Remote:
    """The other end of a connection on the event loop.

    Attributes:
        identity: the peer's identity; None when it is not known.
        peer: its address and port, or its user on this host, for people; empty until the
            connection stands.
        closing: this side has closed the connection, or it is gone.
        is_same_host: both ends have the same address, so both are probably on this host.
    """

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.peer = ""
        self.closing = False
        self.is_same_host = False
        self._transport: asyncio.Transport | None = None
        self._ends: tuple[Any, Any] = (None, None)

    def _attach(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """The connection is open."""
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's class does not inherit from it
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
        """With TLS, take the peer's identity from its certificate.

        Raises:
            ProtocolError: the peer has another role; an empty role allows any.
        """
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        if tls is not None:
            self.identity = of_certificate(tls.getpeercert(), tls.getpeercert(binary_form=True))
            check_role(self.identity, role)

    def round_trip_s(self) -> float:
        """Smoothed round-trip time measured by the kernel; 0 when it is not known."""
        if self._transport is None or self.closing:
            return 0.0
        return round_trip_s(self._transport.get_extra_info("socket"))

    def keep_alive(self) -> None:
        """Let the kernel detect a dead peer: see `keep_alive`."""
        assert self._transport is not None
        keep_alive(self._transport.get_extra_info("socket"))

    def private_ends(self, *, opened: bool) -> bytes:
        """Return `private_ends` of this connection."""
        return private_ends(*self._ends, opened=opened, encrypted=self.is_encrypted)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection runs over TLS."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("ssl_object") is not None

    def peer_host(self) -> str:
        """Address of the other side without the port, or its user on this host."""
        return self.peer if self.peer.startswith(SCHEME) else self.peer.rsplit(":", 1)[0]


def private_ends(own: Any, peer: Any, *, opened: bool, encrypted: bool) -> bytes:
    """Return the common name of a connection that no third party can reach; empty for others.

    Args:
        own: this end's address, as the kernel has it.
        peer: the other end's, likewise.
        opened: this end has opened the connection.
        encrypted: it runs over TLS, on which both sides have shown certificates of the cluster.
    """
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


def keep_alive(connection: Any) -> None:
    """Enable TCP keep-alive: probe a quiet peer, and drop the connection when it is dead.

    Not for a peer that may stop reading: that counts as dead too.

    Args:
        connection: has the `setsockopt` of a socket.
    """
    options = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): IDLE_S,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): IDLE_S // 2,
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): DEAD_S * 1000,
    }
    for (level, option), value in options.items():
        connection.setsockopt(level, option, value)


def round_trip_s(connection: Any) -> float:
    """Smoothed round-trip time of a connected socket in seconds; 0 when it is not known.

    Args:
        connection: has the `getsockopt` of a socket.
    """
    size = _RTT_OFFSET_BYTES + _MICROSECONDS.size
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:  # just closed
        return 0.0
    if len(info) < size:
        return 0.0
    return float(_MICROSECONDS.unpack_from(info, _RTT_OFFSET_BYTES)[0]) / 1e6
