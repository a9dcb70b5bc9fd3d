"""Accepts browsers' connections within bounds and hands them to aiohttp.

Until a session is shown on a connection, it is bounded as any unknown caller's is
(`dtd.net.limits`): in number, rate and time.  One on which nothing is read for a while is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from dtd.address import Address
from dtd.errors import ConfigError
from dtd.net.limits import ConnectionLimiter, Connections
from dtd.net.server import ACCEPT_PAUSE_S, BACKLOG, Place, listening_sockets

PATIENCE_S: Final = 10.0
"""Seconds for logging in, or loading the page, on one connection."""

UNREAD_S: Final = 30.0
SEND_BUFFER_BYTES: Final = 256 * 1024
"""Size of the kernel's buffer for one connection."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)
LOOK_EVERY_S: Final = 1.0
SHUTDOWN_S: Final = 2.0


@dataclass(slots=True, eq=False)
class _Open:
    host: str
    watched: _Watched | None = None
    is_proven: bool = False


class _Watched(asyncio.Protocol):
    """aiohttp's protocol of a connection, and word of when that begins and ends."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        made: Callable[[_Watched], bool],
        gone: Callable[[], None],
    ) -> None:
        self.inner = inner
        self.transport: asyncio.Transport | None = None
        self.unread_since_s: float | None = None
        self._made, self._gone = made, gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)
        if not self._made(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.unread_since_s = asyncio.get_running_loop().time()
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.unread_since_s = None
        self.inner.resume_writing()


class Listener:
    """The page's listening address.

    Args:
        make_protocol: makes the protocol object of a connection.
        note_refusal: told the address and the reason of each connection that is turned away.
        connections: bounds the connections of all listeners of this process.
    """

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        note_refusal: Callable[[str, str], None],
        connections: Connections[Place],
    ) -> None:
        self._make_protocol = make_protocol
        self._note_refusal = note_refusal
        self._connections = connections
        self._limiter = ConnectionLimiter(
            patience_s=PATIENCE_S, per_address=64, in_all=256, only_failures=True
        )
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[int, _Open] = {}
        self._keys = itertools.count()
        self.context: ssl.SSLContext | None = None

    async def bind(self, address: Address) -> Address:
        """Bind without accepting yet; returns the bound address.

        Raises:
            ConfigError: the address cannot be bound.
        """
        try:
            self._sockets = await listening_sockets(address)
        except ConfigError as error:
            raise ConfigError(
                f"web: {error.message}", remedy="choose another address with --web"
            ) from error
        host, port = self._sockets[0].getsockname()[:2]
        return Address(host, port)

    def serve(self) -> None:
        """Accept connections."""
        for listener in self._sockets:
            listener.listen(BACKLOG)
            self._begin(self._accept(listener))
        self._begin(self._watch())

    def close(self) -> None:
        """Stop listening, and cut all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        for listener in self._sockets:
            listener.close()
        for key in tuple(self._open):
            self._drop(key)

    def proven(self, protocol: object) -> None:
        """A session was shown on a connection."""
        for key, one in self._open.items():
            if one.watched is not None and one.watched.inner is protocol and not one.is_proven:
                one.is_proven = True
                self._limiter.proven(key)
                self._connections.proven((self, key))
                return

    def turn_out(self, key: int, why: str) -> None:
        """Close a connection that others need the room of."""
        one = self._open.get(key)
        if one is not None:
            self._note_refusal(one.host, why)
            self._drop(key)

    def _begin(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _peer = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EBADF):
                    return
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._admit(accepted)
            await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket) -> None:
        key = next(self._keys)
        try:
            host = str(accepted.getpeername()[0])
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        except OSError:  # it is gone already
            accepted.close()
            return
        refusal = self._connections.opened((self, key)) or self._ask_limiter(key, host)
        if refusal:
            accepted.close()
            self._connections.gone((self, key))
            self._note_refusal(host, refusal)
            return
        self._open[key] = _Open(host)
        self._begin(self._connect(key, accepted))

    def _ask_limiter(self, key: int, host: str) -> str:
        verdict = self._limiter.arrived(key, host, asyncio.get_running_loop().time())
        for other in verdict.dropped:
            self._drop(other)
        return verdict.refusal

    async def _connect(self, key: int, accepted: socket.socket) -> None:
        def gone() -> None:
            self._gone(key)

        secured = self.context is not None
        times = {"ssl_handshake_timeout": PATIENCE_S, "ssl_shutdown_timeout": SHUTDOWN_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Watched(self._make_protocol(), lambda one: self._made(key, one), gone),
                accepted,
                ssl=self.context,
                **(times if secured else {}),
            )
        except (OSError, asyncio.CancelledError):
            accepted.close()
            self._gone(key)

    def _made(self, key: int, watched: _Watched) -> bool:
        """A connection is ready; returns whether it has not been cut during the handshake."""
        one = self._open.get(key)
        if one is not None:
            one.watched = watched
        return one is not None

    async def _watch(self) -> None:
        """Cut connections without a session in time, or that do not read their answers."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for key in (*self._limiter.overdue(clock()), *self._unread(clock())):
                self._drop(key)

    def _unread(self, now_s: float) -> list[int]:
        since = {
            key: one.watched.unread_since_s
            for key, one in self._open.items()
            if one.watched is not None
        }
        return [key for key, at_s in since.items() if at_s is not None and now_s >= at_s + UNREAD_S]

    def _drop(self, key: int) -> None:
        one = self._open.get(key)
        self._gone(key)
        if one is not None and one.watched is not None and one.watched.transport is not None:
            _reset(one.watched.transport)

    def _gone(self, key: int) -> None:
        self._limiter.gone(key, asyncio.get_running_loop().time())
        self._connections.gone((self, key))
        self._open.pop(key, None)


def _reset(transport: asyncio.Transport) -> None:
    """Close at once; the kernel does not keep what the peer has not taken."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
