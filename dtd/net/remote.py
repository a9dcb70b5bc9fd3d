"""The other end of a connection: where it is, who it is, how far away, and whether it lives.

Addresses come from the transport, names from certificates, the rest from the kernel (tcp(7)).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final, cast

from dtd.address import SCHEME, is_loopback
from dtd.security.identity import Identity, check_role, of_certificate

IDLE_S: Final = 10
DEAD_S: Final = 30
_RTT_OFFSET_BYTES: Final = 68
_MICROSECONDS: Final = struct.Struct("=I")


class Remote:
    """What a connection on the event loop knows of its other end.

    Attributes:
        identity: who is there; None when nothing was found out.
        peer: its address and port, or its user on this host, for people; empty until the
            connection stands.
        closing: this side has closed the connection, or it is gone.
        is_same_host: both ends have one address, so both are here, as far as addresses tell.
    """

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.peer = ""
        self.closing = False
        self.is_same_host = False
        self._transport: asyncio.Transport | None = None

    def _attach(self, transport: asyncio.BaseTransport) -> asyncio.Transport:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        name = transport.get_extra_info("peername")
        if not isinstance(name, tuple):  # a Unix socket, or it is gone already
            who = self.identity
            self.peer = who.name if who is not None else f"{SCHEME}{name}" if name else "?"
            return self._transport
        self.peer = f"{name[0].removeprefix('::ffff:')}:{name[1]}"
        own = transport.get_extra_info("sockname")
        self.is_same_host = bool(own) and name[0] == own[0]
        return self._transport

    def _identify(self, role: str) -> None:
        """With TLS, the certificate says who is at the other end.

        Raises:
            ProtocolError: somebody of another role than this one; an empty role allows any.
        """
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        if tls is not None:
            self.identity = of_certificate(tls.getpeercert())
            check_role(self.identity, role)

    def round_trip_s(self) -> float:
        """Smoothed round-trip time as the kernel measures it; 0 when it is not known."""
        if self._transport is None or self.closing:
            return 0.0
        return round_trip_s(self._transport.get_extra_info("socket"))

    def keep_alive(self) -> None:
        """Have the kernel find out when the other side is dead: see `keep_alive`."""
        assert self._transport is not None
        keep_alive(self._transport.get_extra_info("socket"))

    @property
    def is_private(self) -> bool:
        """Nobody else sees what is said here, or can say something in between."""
        return self.is_encrypted or is_loopback(self.peer_host())

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection runs over TLS."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("ssl_object") is not None

    def peer_host(self) -> str:
        """Address of the other side without the port, or its user on this host."""
        return self.peer if self.peer.startswith(SCHEME) else self.peer.rsplit(":", 1)[0]


def keep_alive(connection: Any) -> None:
    """Ask when the other side is quiet, and give it up when it is dead.

    Not where the other side may stop reading: that counts as dead too.

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
    except OSError:  # it has just been closed
        return 0.0
    if len(info) < size:
        return 0.0
    return float(_MICROSECONDS.unpack_from(info, _RTT_OFFSET_BYTES)[0]) / 1e6
