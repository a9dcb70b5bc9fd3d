"""The coordinator's side of the web page: its callers' requests count like those of dtdctl.

The page itself is `dtd.observe.web`, which is imported only where it is served.
"""

from __future__ import annotations

import socket
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from dtd import __version__
from dtd.config import CoordinatorConfig
from dtd.coordinator.audit import AuditLog, Caller
from dtd.coordinator.containment import Containment, Refusals
from dtd.coordinator.control_port import ControlPort
from dtd.errors import ConfigError, DtdError, RequestRefused
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.sessions import FILE, KeptSessions
from dtd.wire import messages as m

if TYPE_CHECKING:
    from dtd.observe.web.server import WebServer

log = structlog.get_logger()

_REMEDY: Final = "install it beside dtd: `pip install aiohttp plotly`; or remove the setting"


class Coordinator(Protocol):
    """The parts of the daemon that are needed."""

    audit: AuditLog
    containment: Containment
    address: str

    def check_request(self, caller: Caller, message: m.Message) -> None:
        """Check that the caller may send this request."""
        ...

    async def in_store(self, function: Any, *arguments: Any) -> Any:
        """Run a blocking method of the store."""
        ...


class Desk(Protocol):
    """Answers requests: `dtd.coordinator.requests`."""

    async def carry_out(self, caller: Caller, request: m.Message) -> dict[str, Any]:
        """Perform a request, and enter it."""
        ...


class WebDesk:
    """Serves the page, if it is to be served, and answers it.

    Args:
        config: says where the page is served, if anywhere.
        coordinator: the daemon.
        port: has the authority and the roles.
        desk: answers requests.
    """

    def __init__(
        self, config: CoordinatorConfig, coordinator: Coordinator, port: ControlPort, desk: Desk
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._port = port
        self._desk = desk
        self._server: WebServer | None = None
        self._refusals = Refusals()

    async def start(self) -> None:
        """Serve the page.

        Raises:
            ConfigError: it cannot be served there, or a package is missing.
        """
        if self._config.web is None:
            return
        try:
            from dtd.observe.web.server import WebServer

            self._server = WebServer(self._config.web, self._backend())
            await self._server.start()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"web: the page needs the package {error.name}, which is not installed",
                remedy=_REMEDY,
            ) from None

    def _backend(self) -> Backend:
        config, port = self._config, self._port
        local = (config.local_operators, config.local_viewers, config.local_workers)
        return Backend(
            ask=self._ask,
            enter=self._coordinator.audit.around,
            in_store=self._coordinator.in_store,
            authority=lambda: port.authority,
            addresses=lambda: port.coordinators,
            tells=lambda: {
                "version": __version__,
                "host": socket.gethostname(),
                "address": self._coordinator.address,
            },
            failed=lambda error: self._coordinator.containment.failed(
                error, "answering the web page"
            ),
            refused=self._refused,
            connections=port.connections,
            sessions=KeptSessions(config.state_dir / FILE, repr(local)),
        )

    async def close(self) -> None:
        """Serve it no more."""
        if self._server is not None:
            await self._server.close()

    async def open(self, caller: Caller) -> dict[str, Any]:
        """The answer to OPEN_WEB.

        Raises:
            RequestRefused: no page is served.
        """
        if self._server is None:
            raise RequestRefused(
                "this coordinator serves no web page",
                remedy='start it with --web 127.0.0.1:7118, or set web = "127.0.0.1:7118"',
            )
        assert caller.identity is not None
        offer = self._server.offer(caller.identity)
        authority, sha256 = self._port.authority, ""
        if authority is not None and self._server.url.startswith("https:"):
            sha256 = await self._coordinator.in_store(authority.server_sha256)
        return {
            "url": self._server.url,
            "code": offer.code,
            "expires_unix_s": offer.expires_unix_s,
            "certificate_sha256": sha256,
        }

    async def _ask(self, caller: WebCaller, message: m.Message) -> dict[str, Any]:
        """Answer a request, with the checks and records of one of dtdctl's.

        Raises:
            DtdError: the caller may not ask this, or it cannot be done.
        """
        self._coordinator.check_request(caller, message)
        try:
            return await self._desk.carry_out(caller, message)
        except DtdError:
            raise
        except (OSError, sqlite3.Error) as error:
            why = f"the coordinator's store failed: {error}"
            raise RequestRefused(why, remedy="check its disk") from None
        except Exception as error:  # noqa: BLE001 - it costs this answer, not the daemon
            self._coordinator.containment.failed(error, "answering the web page")
            raise RequestRefused(
                "the coordinator failed with an internal error", remedy="see its log"
            ) from None

    def _refused(self, host: str, why: str) -> None:
        """A browser was turned away; logged at a bounded rate."""
        reason = f"web page: {why}"
        if self._refusals.note(host, reason, time.monotonic()):
            log.warning("connection_refused", host=host, reason=reason)
