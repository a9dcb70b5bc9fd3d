"""The coordinator's side of the web page: its callers' requests count like those of dtdctl.

The page itself is `dtd.observe.web`, which is imported only where it is served.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from dtd import __version__
from dtd.coordinator.containment import Refusals
from dtd.coordinator.core import Core
from dtd.coordinator.services.audit import Caller
from dtd.errors import ConfigError, DtdError, RequestRefused
from dtd.observe.web.backend import SESSIONS_FILE, Backend, WebCaller
from dtd.wire import messages as m

if TYPE_CHECKING:
    from dtd.observe.web.server import WebServer

log = structlog.get_logger()

_REMEDY: Final = "install it beside dtd: `pip install aiohttp plotly`; or remove the setting"


class WebPage:
    """Serves the page, if it is to be served, and answers it."""

    def __init__(
        self, core: Core, carry_out: Callable[[Caller, m.Message], Awaitable[dict[str, Any]]]
    ) -> None:
        self._core = core
        self._carry_out = carry_out
        self._server: WebServer | None = None
        self._refusals = Refusals()

    async def start(self) -> None:
        """Serve the page.

        Raises:
            ConfigError: it cannot be served there, or a package is missing.
        """
        if self._core.config.web is None:
            return
        try:
            from dtd.observe.web.server import WebServer

            self._server = WebServer(self._core.config.web, self._backend())
            await self._server.start()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"web: the page needs the package {error.name}, which is not installed",
                remedy=_REMEDY,
            ) from None

    def _backend(self) -> Backend:
        config, port = self._core.config, self._core.port
        local = (config.local_operators, config.local_viewers, config.local_workers)
        return Backend(
            ask=self._ask,
            enter=self._core.audit.around,
            in_store=self._core.in_store,
            authority=lambda: port.authority,
            addresses=lambda: port.coordinators,
            tells=lambda: {
                "version": __version__,
                "host": socket.gethostname(),
                "address": self._core.address,
            },
            failed=lambda error: self._core.containment.failed(error, "answering the web page"),
            refused=self._refused,
            connections=port.connections,
            sessions_file=config.state_dir / SESSIONS_FILE,
            local_settings=repr(local),
        )

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    def job_url(self, job: str) -> str:
        """The page of a job; empty if none is served."""
        return f"{self._server.url}#/job/{job}" if self._server is not None else ""

    async def open(self, caller: Caller) -> dict[str, Any]:
        """The answer to OPEN_WEB."""
        if self._server is None:
            raise RequestRefused(
                "this coordinator serves no web page",
                remedy='start it with --web 127.0.0.1:7118, or set web = "127.0.0.1:7118"',
            )
        assert caller.identity is not None
        code, expires_unix_s = self._server.logins.offer(caller.identity)
        authority, sha256 = self._core.port.authority, ""
        if authority is not None and self._server.url.startswith("https:"):
            sha256 = await self._core.in_store(authority.server_sha256)
        return {
            "url": self._server.url,
            "code": code,
            "expires_unix_s": expires_unix_s,
            "certificate_sha256": sha256,
        }

    async def _ask(self, caller: WebCaller, message: m.Message) -> dict[str, Any]:
        """Answer a request, with the checks and records of one of dtdctl's."""
        self._core.check_request(caller, message)
        try:
            return await self._carry_out(caller, message)
        except DtdError:
            raise
        except (OSError, sqlite3.Error) as error:
            why = f"the coordinator's store failed: {error}"
            raise RequestRefused(why, remedy="check its disk") from None
        except Exception as error:  # noqa: BLE001 - it costs this answer, not the daemon
            self._core.containment.failed(error, "answering the web page")
            raise RequestRefused(
                "the coordinator failed with an internal error", remedy="see its log"
            ) from None

    def _refused(self, host: str, why: str) -> None:
        """A browser was turned away; logged at a bounded rate."""
        reason = f"web page: {why}"
        if self._refusals.note(host, reason, time.monotonic()):
            log.warning("connection_refused", host=host, reason=reason)
