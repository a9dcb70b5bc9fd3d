"""The coordinator's side of the web page: its callers' requests count like those of dtdctl.

The page itself is `dtd.observe.web`, which is imported only where it is served.
"""

from __future__ import annotations

import secrets
import socket
import sqlite3
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from dtd import __version__
from dtd.config import CoordinatorConfig
from dtd.coordinator.audit_log import AuditLog, Caller
from dtd.coordinator.containment import Containment
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.throttles import Refusals
from dtd.errors import ConfigError, DtdError, RequestRefused
from dtd.observe.web.api import WebCaller
from dtd.observe.web.sessions import FILE, KeptSessions
from dtd.security.identity import OPERATOR, VIEWER, Identity
from dtd.security.token import Token
from dtd.wire import messages as m

if TYPE_CHECKING:
    from dtd.observe.web.server import WebServer

log = structlog.get_logger()

BY_TOKEN: Final = "token"  # noqa: S105 - how somebody is known
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
        self._address = config.web
        local = (config.local_operators, config.local_viewers, config.local_workers)
        self.sessions = KeptSessions(config.state_dir / FILE, repr(local))
        self._coordinator = coordinator
        self._port = port
        self._desk = desk
        self._server: WebServer | None = None
        self._refusals = Refusals()
        self.connections = port.connections

    # --- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the page.

        Raises:
            ConfigError: it cannot be served there, or a package is missing.
        """
        if self._address is None:
            return
        try:
            from dtd.observe.web.server import WebServer

            self._server = WebServer(self._address, self)
            await self._server.start()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"web: the page needs the package {error.name}, which is not installed",
                remedy=_REMEDY,
            ) from None

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

    # --- what the page asks (`dtd.observe.web.api.WebBackend`) -----------------------------------

    async def ask(self, caller: WebCaller, message: m.Message) -> dict[str, Any]:
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

    def standing(self, who: Identity) -> str:
        """Return why a login is not valid any more; empty while it is."""
        authority = self._port.authority
        if authority is None:
            return "" if who.uid is not None else "this coordinator has no authority any more"
        if who.where == BY_TOKEN:
            known = authority.tokens.is_known(who.credential)
            return "" if known else "the token was revoked"
        return authority.standing(who)[0]

    async def holder_of_token(self, text: str, host: str) -> Identity:
        """Return the identity of a login with a token, which counts as one use of it.

        Raises:
            DtdError: it is no valid token of an operator or a viewer.
        """
        token, authority = Token.parse(text), self._port.authority
        if token.role not in (OPERATOR, VIEWER):
            raise RequestRefused(f"a token of a {token.role} does not open the web page")
        if authority is None:
            raise RequestRefused("this coordinator has no tokens", remedy="run `dtdctl web`")

        async def use() -> Identity:
            name = await self._coordinator.in_store(
                lambda: authority.tokens.redeem(
                    token.id,
                    token.secret,
                    token.role,
                    f"web-{secrets.token_hex(8)}",
                    now_s=authority.now_s(),
                )
            )
            return _of_token(token, name)

        claimed = WebCaller(identity=_of_token(token, f"token-{token.id}"), host=host)
        return await self._coordinator.audit.around(claimed, m.OpenWeb(), use)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS for other hosts, whose browsers show no certificate; blocking."""
        authority = self._port.authority
        if authority is None:
            return None
        context = authority.server_context()
        context.verify_mode = ssl.CERT_NONE
        return context

    def host_names(self) -> frozenset[str]:
        """Return the names by which other hosts know the coordinator."""
        hosts = [address.host for address in self._port.coordinators]
        own = [self._address.host] if self._address is not None else []
        return frozenset(name.lower() for name in (*hosts, *own, socket.gethostname()))

    def public_host(self) -> str:
        """Return the host in the URL of a page that is served at all addresses of this host."""
        return self._port.coordinators[0].host if self._port.coordinators else socket.gethostname()

    def tells(self) -> Mapping[str, Any]:
        """Return the page's information about the coordinator itself."""
        return {
            "version": __version__,
            "host": socket.gethostname(),
            "address": self._coordinator.address,
        }

    def failed(self, error: Exception) -> None:
        """Answering a browser failed unexpectedly."""
        self._coordinator.containment.failed(error, "answering the web page")

    def refused(self, host: str, why: str) -> None:
        """A browser was turned away; logged at a bounded rate."""
        reason = f"web page: {why}"
        if self._refusals.note(host, reason, time.monotonic()):
            log.warning("connection_refused", host=host, reason=reason)


def _of_token(token: Token, name: str) -> Identity:
    return Identity(role=token.role, name=name, where=BY_TOKEN, credential=token.id, workers=())
