"""Checks of every request: the name it was sent to, its origin, and the session it shows.

A page of another site can make a browser send requests here, and can have its own name resolve to
this host's address.  So the Host header must be an address or a name of this coordinator; a change
must be requested by the page itself; and every request for data shows two secrets, one of which no
other page can read (`dtd.web.sessions`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiohttp import web

from dtd.errors import DtdError, ProtocolError
from dtd.shown import escaped

API: Final = "/api/"
KEY_HEADER: Final = "X-Dtd-Key"
READING: Final = frozenset({"GET", "HEAD"})
JSON: Final = "application/json"
HTTP_REFUSED: Final = 400
HTTP_LOGIN: Final = 401
HTTP_FORBIDDEN: Final = 403
HTTP_FOREIGN: Final = 421
HTTP_TOO_MANY: Final = 429
HTTP_FAILED: Final = 500
_HOST: Final = re.compile(
    r"(\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9_.-]{1,253}))(:[0-9]{1,5})?"
)
# The chart library adds rules to a style element that it makes empty: the hash is that of nothing.
_EMPTY_STYLE: Final = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
CONTENT_POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY_STYLE}; img-src 'self' data:;"
    " connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_our_name(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this coordinator: by an address, as localhost, or by its name.

    An address cannot be made to point elsewhere, as another's name can.

    Args:
        host: the header, with or without a port.
        names: the coordinator's own, in lower case.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found["address"]:
        return is_address(found["address"])
    name = found["name"].lower().rstrip(".")
    return name == "localhost" or name in names or is_address(name)


def is_address(text: str) -> bool:
    """Whether this is an IP address, and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def foreign(request: web.Request, *, secured: bool, names: Collection[str]) -> str:
    """Why a request does not come from the page itself; empty when it may."""
    host = request.headers.get("Host", "")
    if not is_our_name(host, names):
        return "the page is not served under this name"
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return "another site has sent this request"
    if request.method in READING:
        return ""
    if request.method != "POST":
        return f"{request.method[:16]} is not used here"
    if request.headers.get("Origin", "") != f"{'https' if secured else 'http'}://{host}":
        return "another site has sent this request"
    return "" if request.content_type == JSON else f"requests must be {JSON}"


def answer_headers(path: str) -> dict[str, str]:
    """Return the headers of an answer; data is not stored by anybody."""
    kept = {"Cache-Control": "no-store"} if path.startswith(API) else {}
    return {**HEADERS, **kept}


def refused(status: int, message: str, remedy: str = "") -> web.Response:
    """An error, for the page to show; the connection of a caller without a session ends."""
    told = {"error": escaped(message), "remedy": escaped(remedy)}
    made = web.json_response(told, status=status)
    if status in (HTTP_LOGIN, HTTP_FOREIGN):
        made.force_close()
    return made


def of_error(error: DtdError) -> web.Response:
    """Return the answer for a refusal by the coordinator."""
    forbidden = isinstance(error, ProtocolError)
    return refused(HTTP_FORBIDDEN if forbidden else HTTP_REFUSED, error.message, error.remedy)
