"""The web page as a whole: listens, guards, answers; belongs to the coordinator's event loop.

Beyond loopback it speaks TLS with the coordinator's certificate, and nothing else.  Until a session
is shown on a connection, it is bounded as any unknown caller's is (`dtd.net.limits`): in number,
rate and time.  One on which nothing is read for a while is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import structlog
from aiohttp import web

from dtd.address import Address
from dtd.errors import ConfigError, DtdError
from dtd.net.limits import ConnectionLimiter, Connections
from dtd.net.link import UNREAD_S
from dtd.net.server import ACCEPT_PAUSE_S, BACKLOG, Place, listening_sockets
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import (
    HTTP_FAILED,
    HTTP_FOREIGN,
    answer_headers,
    foreign,
    of_error,
    quiet_log,
    read_files,
    refused,
)
from dtd.observe.web.live import Live, SharedAnswers
from dtd.observe.web.logins import Logins, Offer
from dtd.observe.web.routes import MAX_BODY_BYTES, Routes
from dtd.security.identity import LOCAL, Identity

log = structlog.get_logger()

MAX_LINE_BYTES: Final = 8190
IDLE_S: Final = 60.0
CERTIFICATE_EVERY_S: Final = 3600.0
"""Seconds between readings of the certificate: it is renewed long before it ends."""

LOGIN_WITHIN_S: Final = 10.0
"""Seconds for logging in, or loading the page, on one connection."""

SEND_BUFFER_BYTES: Final = 256 * 1024
"""Size of the kernel's buffer for one connection."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)
LOOK_EVERY_S: Final = 1.0
SHUTDOWN_S: Final = 2.0


HOUSE: Final = WebCaller(identity=Identity(role=LOCAL, name="the web page", where=""), host="-")
"""The caller for data that every logged-in person may see."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """The page of one coordinator.

    Args:
        address: where to listen; port 0 takes a free one.
        backend: the coordinator.

    Attributes:
        address: where it listens, once it does.
    """

    def __init__(self, address: Address, backend: Backend) -> None:
        self.address = address
        self._backend = backend
        self._logins = Logins(backend)
        self._live = Live(backend, HOUSE, self._logins.is_open)
        self._shared = SharedAnswers(lambda message: backend.ask(HOUSE, message))
        self._listener: _Listener | None = None
        self._runner: web.AppRunner | None = None
        self._names: frozenset[str] = frozenset()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the page for a browser of this host, or of another one."""
        host = self.address.host
        if self.address.is_wildcard:
            host = self._backend.public_host()
        scheme = "https" if self._logins.secured else "http"
        return f"{scheme}://{Address(host, self.address.port)}/"

    async def start(self) -> None:
        """Listen and answer.

        Raises:
            ConfigError: the address cannot be listened on, or there is no certificate for it.
        """
        loop = asyncio.get_running_loop()
        secured = not self.address.is_loopback
        hosts = [one.host for one in (*self._backend.addresses(), self.address)]
        self._names = frozenset(name.lower() for name in (*hosts, socket.gethostname()))
        files = await loop.run_in_executor(None, read_files)
        quiet_log(self._backend.refused)
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        Routes(self._backend, self._logins, self._live, self._shared, files).add_to(app)
        app.on_response_prepare.append(_with_headers)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = _Listener(
            self._runner.server, self._backend.refused, self._backend.connections
        )
        if secured:
            await self._read_certificate()
            self._renewing = asyncio.create_task(self._keep_certificate())
        await self._logins.restore()
        self.address = await self._listener.bind(self.address)
        self._logins.use_address(self.address.port, secured=secured)
        self._listener.serve()
        log.info("web_listening", url=self.url)

    async def close(self) -> None:
        """Stop."""
        if self._renewing is not None:
            self._renewing.cancel()
        self._live.close()
        self._shared.close()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def offer(self, who: Identity) -> Offer:
        """Return a code that is good for one login."""
        return self._logins.offer(who)

    async def _read_certificate(self) -> None:
        assert self._listener is not None
        context = await asyncio.get_running_loop().run_in_executor(None, self._backend.tls)
        if context is None:
            raise ConfigError(
                f"web: beyond this host the page is served over TLS, and this coordinator has no"
                f" certificate for {self.address}",
                remedy="start it with --listen HOST:PORT, too, or serve the page on 127.0.0.1 and"
                " reach it through ssh -L",
            )
        self._listener.context = context

    async def _keep_certificate(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_EVERY_S)
            try:
                await self._read_certificate()
            except DtdError as error:  # the one that is served counts for a while yet
                log.warning("web_certificate_not_read", reason=error.message)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that do not come from the page, and answer errors in words."""
        assert self._listener is not None
        why = foreign(request, secured=self._logins.secured, names=self._names)
        if why:
            self._backend.refused(request.remote or "?", why)
            return refused(HTTP_FOREIGN, why, "open the page by the address that `dtdctl web` says")
        if self._logins.knows(request):
            self._listener.proven(request.protocol)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return refused(error.status, error.reason)
        except DtdError as error:
            return of_error(error)
        except ConnectionError:
            raise  # the browser is gone
        except Exception as error:
            self._backend.failed(error)
            if request.writer.output_size:
                raise ConnectionResetError from error  # half of an answer is sent already
            return refused(
                HTTP_FAILED, "the coordinator failed with an internal error", "see its log"
            )


async def _with_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(answer_headers(request.path))
    response.headers.pop("Server", None)


class _Connection(asyncio.Protocol):
    """aiohttp's protocol of one connection, and what the listener knows of it."""

    def __init__(self, listener: _Listener, key: int, host: str, inner: asyncio.Protocol) -> None:
        self._listener, self._key = listener, key
        self.host = host
        self.inner = inner
        self.transport: asyncio.Transport | None = None
        self.is_proven = False
        self.unread_since_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)
        if not self._listener.has(self._key):  # it was cut during the handshake
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.gone(self._key)
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


class _Listener:
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
            patience_s=LOGIN_WITHIN_S, per_address=64, in_all=256, only_failures=True
        )
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[int, _Connection] = {}
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
        """Note that a request on this connection has shown a session."""
        for key, one in self._open.items():
            if one.inner is protocol and not one.is_proven:
                one.is_proven = True
                self._limiter.proven(key)
                self._connections.proven((self, key))
                return

    def turn_out(self, key: int, why: str) -> None:
        """Close a connection to make room for others."""
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
        connection = self._open[key] = _Connection(self, key, host, self._make_protocol())
        self._begin(self._connect(key, connection, accepted))

    def _ask_limiter(self, key: int, host: str) -> str:
        verdict = self._limiter.arrived(key, host, asyncio.get_running_loop().time())
        for other in verdict.dropped:
            self._drop(other)
        return verdict.refusal

    async def _connect(self, key: int, connection: _Connection, accepted: socket.socket) -> None:
        times = {"ssl_handshake_timeout": LOGIN_WITHIN_S, "ssl_shutdown_timeout": SHUTDOWN_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self.context,
                **(times if self.context is not None else {}),
            )
        except (OSError, asyncio.CancelledError):
            accepted.close()
            self.gone(key)

    def has(self, key: int) -> bool:
        """Whether a connection counts yet."""
        return key in self._open

    def gone(self, key: int) -> None:
        """A connection has ended."""
        self._limiter.gone(key, asyncio.get_running_loop().time())
        self._connections.gone((self, key))
        self._open.pop(key, None)

    async def _watch(self) -> None:
        """Drop connections that show no session in time, or do not read their answers."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for key in (*self._limiter.overdue(clock()), *self._unread(clock())):
                self._drop(key)

    def _unread(self, now_s: float) -> list[int]:
        since = {key: one.unread_since_s for key, one in self._open.items()}
        return [key for key, at_s in since.items() if at_s is not None and now_s >= at_s + UNREAD_S]

    def _drop(self, key: int) -> None:
        one = self._open.get(key)
        self.gone(key)
        if one is not None and one.transport is not None:
            _reset(one.transport)


def _reset(transport: asyncio.Transport) -> None:
    """Close at once, and drop data that the peer has not read."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
