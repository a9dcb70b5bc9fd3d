"""The coordinator as the web page sees it: the same requests, checks and records as dtdctl's.

Without aiohttp, so that a coordinator that serves no page can be told of it.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.address import Address
from dtd.errors import RequestRefused
from dtd.net.limits import OpenConnections
from dtd.security.authority import Authority
from dtd.security.identity import OPERATOR, VIEWER, Identity
from dtd.security.token import Token
from dtd.wire import messages as m

SESSIONS_FILE: Final = "web-sessions.json"
BY_TOKEN: Final = "token"  # noqa: S105 - how somebody is known


@dataclass(frozen=True, slots=True, kw_only=True)
class WebCaller:
    """A person at a browser; requests are checked and counted like those of dtdctl."""

    identity: Identity | None
    host: str

    def peer_host(self) -> str:
        """The browser's address, marked as a browser's."""
        return f"{self.host} (web)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The coordinator's functions and parts that the page uses.

    Attributes:
        enter: performs a login and enters it in the audit log.
        in_store: runs a blocking function in the store's thread.
        tells: the page's information about the coordinator itself.
        sessions_file: keeps sessions, which outlive the process.
        local_settings: by which users of this host have roles: their sessions end with a change.
    """

    ask: Callable[[WebCaller, m.Message], Awaitable[dict[str, Any]]]
    enter: Callable[[WebCaller, m.Message, Callable[[], Awaitable[Identity]]], Awaitable[Identity]]
    in_store: Callable[[Callable[[], str]], Awaitable[str]]
    authority: Callable[[], Authority | None]
    addresses: Callable[[], Sequence[Address]]
    tells: Callable[[], Mapping[str, Any]]
    failed: Callable[[Exception], None]
    refused: Callable[[str, str], None]
    connections: OpenConnections
    sessions_file: Path
    local_settings: str

    def standing(self, identity: Identity) -> str:
        """Return why a login is not valid any more; empty while it is."""
        authority = self.authority()
        if authority is None:
            return "" if identity.uid is not None else "this coordinator has no authority any more"
        if identity.where == BY_TOKEN:
            known = authority.tokens.is_known(identity.credential)
            return "" if known else "the token was revoked"
        return authority.standing(identity)[0]

    async def holder_of_token(self, text: str, host: str) -> Identity:
        """Return the identity of a login with a token, which counts as one use of it.

        Raises:
            DtdError: it is no valid token of an operator or a viewer.
        """
        token, authority = Token.parse(text), self.authority()
        if token.role not in (OPERATOR, VIEWER):
            raise RequestRefused(f"a token of a {token.role} does not open the web page")
        if authority is None:
            raise RequestRefused("this coordinator has no tokens", remedy="run `dtdctl web`")

        async def use() -> Identity:
            name = await self.in_store(
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
        return await self.enter(claimed, m.OpenWeb(), use)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS for other hosts, whose browsers show no certificate; blocking."""
        authority = self.authority()
        if authority is None:
            return None
        context = authority.server_context()
        context.verify_mode = ssl.CERT_NONE
        return context


def _of_token(token: Token, name: str) -> Identity:
    return Identity(role=token.role, name=name, where=BY_TOKEN, credential=token.id, workers=())
