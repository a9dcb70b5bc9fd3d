"""The web page as a whole: listens, guards, answers; belongs to the coordinator's event loop.

Beyond loopback it speaks TLS with the coordinator's certificate, and nothing else.  Until a session
is shown on a connection, it is bounded as any unknown caller's is (`dtd.net.limits`): in number,
rate and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Final, cast

import structlog
from aiohttp import web

from dtd.address import Address
from dtd.errors import ConfigError, DtdError
from dtd.net.limits import ConnectionLimiter
from dtd.net.link import UNREAD_S
from dtd.net.server import Server
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import (
    HTTP_FAILED,
    HTTP_FOREIGN,
    answer_headers,
    foreign,
    of_error,
    quiet_log,
    refused,
    static_files,
)
from dtd.observe.web.live import Live
from dtd.observe.web.logins import Logins
from dtd.observe.web.routes import MAX_BODY_BYTES, Routes
from dtd.security.identity import LOCAL, Identity
from dtd.wire import messages as m

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


HOUSE: Final = WebCaller(identity=Identity(role=LOCAL, name="the web page", where=""), host="-")
"""The caller for data that every logged-in person may see."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """The page of one coordinator.

    Attributes:
        address: where it listens, once it does; before, port 0 stands for a free one.
    """

    def __init__(self, address: Address, backend: Backend) -> None:
        self.address = address
        self._backend = backend
        self.logins = Logins(backend)
        self._live = Live(backend, HOUSE, self.logins.is_open)
        self._server: Server[_Connection] | None = None
        self._runner: web.AppRunner | None = None
        self._names: frozenset[str] = frozenset()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the page for a browser of this host, or of another one."""
        host = self.address.host
        if self.address.is_wildcard:
            others = self._backend.addresses()
            host = others[0].host if others else socket.gethostname()
        scheme = "https" if self.logins.secured else "http"
        return f"{scheme}://{Address(host, self.address.port)}/"

    async def start(self) -> None:
        """Listen and answer.

        Raises:
            ConfigError: the address cannot be listened on, or there is no certificate for it.
        """
        secured = not self.address.is_loopback
        hosts = [one.host for one in (*self._backend.addresses(), self.address)]
        self._names = frozenset(name.lower() for name in (*hosts, socket.gethostname()))
        quiet_log(self._backend.refused)
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        Routes(self._backend, self.logins, self._live, static_files()).add_to(app)
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
        context = await self._read_certificate() if secured else None
        await self.logins.restore()
        self._server = self._new_server(self._runner.server)
        try:
            self.address = await self._server.bind(self.address)
        except ConfigError as error:
            raise ConfigError(
                f"web: {error.message}", remedy="choose another address with --web"
            ) from error
        self.logins.use_address(self.address.port, secured=secured)
        self._server.serve(context=context)
        if secured:
            self._renewing = asyncio.create_task(self._keep_certificate())
        log.info("web_listening", url=self.url)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        self._live.close()
        if self._server is not None:
            self._server.close(m.Goodbye())
        if self._runner is not None:
            await self._runner.cleanup()

    def _new_server(self, handle: Callable[[], asyncio.Protocol]) -> Server[_Connection]:
        return Server(
            lambda: _Connection(handle()),
            connection_limiter=ConnectionLimiter(
                patience_s=LOGIN_WITHIN_S, per_address=64, in_all=256, only_failures=True
            ),
            connections=self._backend.connections,
            refused=self._backend.refused,
        )

    async def _read_certificate(self) -> ssl.SSLContext:
        context = await asyncio.get_running_loop().run_in_executor(None, self._backend.tls)
        if context is None:
            raise ConfigError(
                f"web: beyond this host the page is served over TLS, and this coordinator has no"
                f" certificate for {self.address}",
                remedy="start it with --listen HOST:PORT, too, or serve the page on 127.0.0.1 and"
                " reach it through ssh -L",
            )
        return context

    async def _keep_certificate(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_EVERY_S)
            try:
                context = await self._read_certificate()
            except DtdError as error:  # the one that is served counts for a while yet
                log.warning("web_certificate_not_read", reason=error.message)
            else:
                assert self._server is not None
                self._server.use(context)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that do not come from the page, and answer errors in words."""
        why = foreign(request, secured=self.logins.secured, names=self._names)
        if why:
            self._backend.refused(request.remote or "?", why)
            return refused(HTTP_FOREIGN, why, "open the page by the address that `dtdctl web` says")
        if self._server is not None and request.transport and self.logins.cookie_holder(request):
            self._server.proven(request.transport.get_protocol())
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
    """aiohttp's protocol of one connection, which is cut when nothing is read of it for a while."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self.identity: Identity | None = None
        self.on_lost: Callable[[], object] = lambda: None
        self.closing = False
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._set_option(socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._inner.connection_made(transport)
        if self.closing:  # it was cut during the handshake
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._is_read()
        self.on_lost()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._unread = asyncio.get_running_loop().call_later(UNREAD_S, self.abort)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_read()
        self._inner.resume_writing()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def leave(self, _farewell: m.Goodbye) -> None:
        """Browsers are not told why."""
        self.abort()

    def abort(self) -> None:
        """Close at once, and drop data that the peer has not read."""
        self.closing = True
        if self._transport is not None:
            self._set_option(socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()

    def _set_option(self, option: int, value: int | bytes) -> None:
        assert self._transport is not None
        with contextlib.suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, value)
