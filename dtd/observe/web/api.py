"""The web page's interface to the coordinator, and its callers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dtd.net.limits import Connections
from dtd.net.server import Place
from dtd.observe.web.sessions import KeptSessions
from dtd.security.identity import Identity
from dtd.wire import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class WebCaller:
    """A person who has logged in, or wants to; its requests count like those of dtdctl.

    Attributes:
        identity: the person's; None before the login.
        host: the browser's address.
    """

    identity: Identity | None
    host: str

    def peer_host(self) -> str:
        """The browser's address, marked as a browser's."""
        return f"{self.host} (web)"


class WebBackend(Protocol):
    """The coordinator, as the page sees it: the same requests, checks and records as dtdctl's.

    Attributes:
        connections: bounds all callers' connections, the page's as well.
        sessions: outlive the process.
    """

    connections: Connections[Place]
    sessions: KeptSessions

    async def ask(self, caller: WebCaller, message: m.Message) -> dict[str, Any]:
        """Answer a request.

        Raises:
            DtdError: the caller may not ask this, or it cannot be done.
        """
        ...

    def standing(self, who: Identity) -> str:
        """Return why a login is not valid any more; empty while it is."""
        ...

    async def holder_of_token(self, text: str, host: str) -> Identity:
        """Return the identity of a login with a token, which counts as one use of it.

        Raises:
            DtdError: it is no valid token of an operator or a viewer.
        """
        ...

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS for other hosts; blocking.  None: there is no certificate."""
        ...

    def host_names(self) -> frozenset[str]:
        """Return the names by which other hosts know the coordinator."""
        ...

    def tells(self) -> Mapping[str, Any]:
        """Return the page's information about the coordinator itself."""
        ...

    def public_host(self) -> str:
        """Return the host in the URL of a page that is served at all addresses of this host."""
        ...

    def failed(self, error: Exception) -> None:
        """Answering a browser failed unexpectedly; logged at a bounded rate."""
        ...

    def refused(self, host: str, why: str) -> None:
        """A browser was turned away; logged at a bounded rate."""
        ...
