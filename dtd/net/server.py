"""A listener: accepts connections within limits, identifies callers, and tracks their connections.

One connection is accepted at a time and the event loop runs in between, so that a flood of
connections does not delay established ones. The caller is identified by a certificate (TLS) or by
the kernel (a socket of this host) before the first byte of the protocol is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from dtd import diagnostics
from dtd.address import ANY_IPV4, ANY_IPV6, Address, SocketPath
from dtd.errors import ConfigError
from dtd.net.clients.tls import tls_fault
from dtd.net.limits import AUTHENTICATE_WITHIN_S, ConnectionLimiter, OpenConnections
from dtd.net.local_socket import bound_socket, remove_socket
from dtd.security import identity
from dtd.security.identity import Identity, LocalUsers, peer_groups, peer_uid
from dtd.wire import messages as m

MAX_CONNECTIONS = 1024
BACKLOG: Final = 512
ACCEPT_PAUSE_S: Final = 0.1
OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
TLS_SHUTDOWN_S: Final = 5.0


class Connection(Protocol):
    """The protocol object of an accepted connection: a `dtd.net.link.Link`, or a browser's.

    Attributes:
        identity: set as far as the kernel reports one, before the connection is made.
        on_lost: to be called when the connection is gone.
    """

    identity: Identity | None
    on_lost: Callable[[], object]
    closing: bool

    def leave(self, farewell: m.Goodbye) -> None:
        """Close it in good order."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)

# Called with (address, reason) for each connection that ended before its first message.
Refused = Callable[[str, str], None]


@dataclass(slots=True, eq=False)
class _Caller(Generic[ConnectionT]):
    key: int
    host: str
    socket: socket.socket
    link: ConnectionT
    opening: asyncio.Task[None] | None = None


class Server(Generic[ConnectionT]):
    """One listening address.

    Args:
        connection_limiter: bounds unauthenticated callers; None: callers need not authenticate.
        connections: bounds all callers, on all listeners of this process that share it.
        refused: called for connections that ended before their first message.
    """

    def __init__(
        self,
        new_link: Callable[[], ConnectionT],
        *,
        connection_limiter: ConnectionLimiter | None = None,
        connections: OpenConnections | None = None,
        refused: Refused = lambda _host, _why: None,
    ) -> None:
        self._new_link = new_link
        self._connection_limiter = connection_limiter
        self._connections = connections or OpenConnections(MAX_CONNECTIONS)
        self._refused = refused
        self._listeners: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._callers: dict[int, _Caller[ConnectionT]] = {}
        self._keys = itertools.count()
        self._context: ssl.SSLContext | None = None
        self._plain_too = False
        self._users: LocalUsers | None = None
        self._path: SocketPath | None = None
        self._timer: asyncio.TimerHandle | None = None

    def bind_path(self, at: SocketPath) -> None:
        """Bind a socket of this host without accepting yet.

        Raises:
            ConfigError: it cannot be bound, or another process listens there.
        """
        self._listeners = [bound_socket(at)]
        self._path = at

    async def listen(self, address: Address) -> Address:
        """Bind and serve plain TCP to all callers; as `bind`."""
        bound = await self.bind(address)
        self.serve()
        return bound

    async def bind(self, address: Address) -> Address:
        """Bind without accepting yet; returns the bound address (port 0 becomes a real port).

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._listeners = await listening_sockets(address)
        host, port = self._listeners[0].getsockname()[:2]
        return Address(host, port)

    def serve(
        self,
        *,
        context: ssl.SSLContext | None = None,
        plain_too: bool = False,
        users: LocalUsers | None = None,
    ) -> None:
        """Start accepting connections.

        Args:
            context: TLS, with the certificates that callers may show.
            plain_too: also serve callers without TLS.
            users: permissions of this machine's users; for a socket of this host.
        """
        self._context, self._plain_too, self._users = context, plain_too, users
        for listener in self._listeners:
            listener.listen(BACKLOG)
            self._accepting.append(asyncio.create_task(self._accept(listener)))

    def use(self, context: ssl.SSLContext) -> None:
        """Use this TLS context for later connections."""
        self._context = context

    def close(self, farewell: m.Goodbye) -> None:
        """Stop listening and send GOODBYE on every connection."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # wakes a pending accept; close alone would not
                listener.shutdown(socket.SHUT_RDWR)
        for task in self._accepting:
            task.cancel()
        if not self._accepting:
            self._close_listeners()
        if self._path is not None:
            remove_socket(self._path)
        if self._timer is not None:
            self._timer.cancel()
        for caller in tuple(self._callers.values()):
            if caller.opening is not None and not caller.opening.done():
                self._drop(caller.key)
            elif not caller.link.closing:
                caller.link.leave(farewell)

    def links(self) -> tuple[ConnectionT, ...]:
        return tuple(one.link for one in self._callers.values() if not one.link.closing)

    def proven(self, link: object) -> None:
        """The peer of a link has authenticated; the limiter's bounds no longer apply."""
        for key, caller in self._callers.items():
            if caller.link is link and self._connection_limiter is not None:
                self._connection_limiter.proven(key)

    # --- accepting ---------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, _peer = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno == errno.EINVAL:  # the listener was shut down
                        return
                    self._refused("?", f"a connection could not be accepted: {error.strerror}")
                    if error.errno in OUT_OF_FILES:
                        self._make_room()
                    await asyncio.sleep(ACCEPT_PAUSE_S)  # closing connections takes time
                    continue
                with contextlib.suppress(OSError):  # closed before it was inspected
                    self._admit(accepted)
                await asyncio.sleep(0)
        finally:
            listener.close()

    def _admit(self, accepted: socket.socket) -> None:
        """Create a link for a new connection, or close it."""
        key = next(self._keys)
        try:
            host, who = self._look_at(accepted)
        except BaseException:
            accepted.close()
            raise
        refusal = f"{self._connections.most} connections are open"
        if self._connections.open < self._connections.most:
            refusal = self._ask_connection_limiter(key, host, who)
        if refusal:
            accepted.close()
            self._refused(host, refusal)
            return
        self._connections.open += 1
        link = self._new_link()
        link.identity = who
        link.on_lost = lambda: self._gone(key)
        caller = self._callers[key] = _Caller(key, host, accepted, link)
        caller.opening = asyncio.create_task(self._open(caller))

    def _look_at(self, accepted: socket.socket) -> tuple[str, Identity | None]:
        """The caller's address, and its identity as far as the kernel reports one."""
        if self._users is not None:
            who = self._users.identity(peer_uid(accepted), peer_groups(accepted))
            return who.name, who
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return str(accepted.getpeername()[0]), None

    def _ask_connection_limiter(self, key: int, host: str, who: Identity | None) -> str:
        """Why the caller is not admitted; empty when it is."""
        if self._connection_limiter is None:
            return ""
        ours = who is not None and who.role == identity.LOCAL
        now = asyncio.get_running_loop().time()
        verdict = self._connection_limiter.arrived(key, host, now, no_rate=ours)
        for other in verdict.dropped:
            self.turn_out(other, "too many callers had not authenticated")
        self._watch_time()
        return verdict.refusal

    async def _open(self, caller: _Caller[ConnectionT]) -> None:
        loop = asyncio.get_running_loop()
        try:
            options = await self._tls_options(caller.socket)
            made = cast("asyncio.BaseProtocol", caller.link)
            await loop.connect_accepted_socket(lambda: made, caller.socket, **options)
        except (OSError, asyncio.CancelledError) as error:
            caller.socket.close()
            if self._gone(caller.key):
                self._refused(caller.host, tls_fault(error))
            return
        who = caller.link.identity
        if who is not None and who.is_known and caller.key in self._callers:
            self.proven(caller.link)

    async def _tls_options(self, accepted: socket.socket) -> dict[str, Any]:
        if self._context is None:
            return {}
        if self._plain_too and not await begins_tls(accepted, patience_s=AUTHENTICATE_WITHIN_S):
            return {}
        return {
            "ssl": self._context,
            "ssl_handshake_timeout": AUTHENTICATE_WITHIN_S,
            "ssl_shutdown_timeout": TLS_SHUTDOWN_S,
        }

    # --- ends --------------------------------------------------------------------------------

    def _gone(self, key: int) -> bool:
        if self._connection_limiter is not None:
            self._connection_limiter.gone(key, asyncio.get_running_loop().time())
        return self._forget(key) is not None

    def _forget(self, key: int) -> _Caller[ConnectionT] | None:
        caller = self._callers.pop(key, None)
        self._connections.open -= caller is not None
        return caller

    def _make_room(self) -> None:
        """No descriptors are left: close the newest unauthenticated connection."""
        newest = self._connection_limiter.newest() if self._connection_limiter is not None else None
        if newest is not None:
            self.turn_out(newest, "there is no room for more connections")

    def turn_out(self, key: int, why: str) -> None:
        """Close a connection, and log the reason on this host."""
        caller = self._callers.get(key)
        if caller is not None:
            self._refused(caller.host, why)
            self._drop(key)

    def _drop(self, key: int) -> None:
        caller = self._forget(key)
        assert caller is not None
        caller.link.abort()
        with contextlib.suppress(OSError):  # this ends a handshake in progress
            caller.socket.shutdown(socket.SHUT_RDWR)

    def _watch_time(self) -> None:
        assert self._connection_limiter is not None
        deadline = self._connection_limiter.next_deadline()
        if self._timer is None and deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._look)

    def _look(self) -> None:
        assert self._connection_limiter is not None
        self._timer = None
        for key in self._connection_limiter.overdue(asyncio.get_running_loop().time()):
            self.turn_out(
                key, f"did not authenticate within {self._connection_limiter.patience_s:g} s"
            )
        self._watch_time()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()


# --- the sockets of one listening address, and whether a new connection on them speaks TLS -------
#
# A name may stand for several addresses, and `[::]` serves IPv4 as well.  On a data port plain and
# encrypted connections share one port: a TLS connection begins with another byte than a frame.


_TLS_HANDSHAKE: Final = b"\x16"


async def listening_sockets(address: Address) -> list[socket.socket]:
    """A bound socket for each address of the host; they share a port and do not accept yet.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        try:
            return await _bound_to_each(address)
        except OSError as error:
            if (address.host, error.errno) != (ANY_IPV6, errno.EAFNOSUPPORT):
                raise
            # The IPv4 half of the wildcard is all that a host without IPv6 has.
            return await _bound_to_each(Address(ANY_IPV4, address.port))
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        why = "is in use" if in_use else f"cannot be bound: {error.strerror or error}"
        diagnostic = diagnostics.cannot_listen(str(address), why)
        raise ConfigError(diagnostic.message, remedy=diagnostic.remedy) from error


async def _bound_to_each(address: Address) -> list[socket.socket]:
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, where in _each_once(found):
            port = bound[0].getsockname()[1] if bound else address.port
            bound.append(_bound(family, (where[0], port, *where[2:])))
    except OSError as error:
        lacking = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # IPv6 may be disabled on a host
        if not bound or error.errno not in lacking:
            for one in bound:
                one.close()
            raise
    return bound


def _each_once(found: list[Any]) -> Iterator[tuple[int, Any]]:
    """Distinct (family, socket address), IPv4 first since most callers use it."""
    pairs = {(family, where) for family, _type, _protocol, _name, where in found}
    yield from sorted(pairs, key=lambda pair: (pair[0] != socket.AF_INET, pair[1]))


def _bound(family: int, where: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(0)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The wildcard serves IPv4 too, unless IPv4 has its own socket.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(where[0] != ANY_IPV6))
        made.bind(where)
    except BaseException:
        made.close()
        raise
    return made


async def begins_tls(accepted: socket.socket, *, patience_s: float) -> bool:
    """Whether the caller speaks TLS; the bytes are only peeked at.

    Raises:
        OSError: it sends nothing (TimeoutError), or is gone.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted, _done, readable)
    try:
        async with asyncio.timeout(patience_s):
            await readable
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
