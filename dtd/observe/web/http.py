"""HTTP of the page: checks of every request, forms of the answers, and the page's own files.

A page of another site can make a browser send requests here, and can have its own name resolve to
this host's address.  So the Host header must be an address or a name of this coordinator; a change
must be requested by the page itself; and every request for data shows two secrets, one of which no
other page can read (`dtd.observe.web.logins`).

Files are sent piece by piece, so that a stranger who reads nothing holds a piece in memory and not
the file.  (`dtd.observe.web.server` cuts the connection.)
"""

from __future__ import annotations

import asyncio
import importlib.resources
import ipaddress
import json
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from dtd.errors import DtdError, ProtocolError
from dtd.observe.step_parts import STEP_PARTS, stylesheet
from dtd.text.shown import escaped

API: Final = "/api/"
KEY_HEADER: Final = "X-Dtd-Key"
READING: Final = frozenset({"GET", "HEAD"})
JSON: Final = "application/json"
HTTP_NOT_MODIFIED: Final = 304
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


def is_our_name(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this coordinator: by an address, as localhost, or by its name.

    An address cannot be made to point elsewhere, as another's name can.  `names` are in lower case.
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
    """Return the reason why a request cannot come from the page itself; empty if it can."""
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
    """An error for the page to show; the connection of a caller without a session is closed."""
    told = {"error": escaped(message), "remedy": escaped(remedy)}
    made = web.json_response(told, status=status)
    if status in (HTTP_LOGIN, HTTP_FOREIGN):
        made.force_close()
    return made


def of_error(error: DtdError) -> web.Response:
    """Return the answer for a refusal by the coordinator."""
    forbidden = isinstance(error, ProtocolError)
    return refused(HTTP_FORBIDDEN if forbidden else HTTP_REFUSED, error.message, error.remedy)


_MAX_LOG_CHARACTERS: Final = 200
SHOWN_DIGITS: Final = 4
_SHORT: Final = 1e6


def quiet_log(note: Callable[[str, str], None]) -> None:
    """Have aiohttp log refused requests in one line, at a bounded rate: `note` gets the reason."""
    log = logging.getLogger("aiohttp")  # the parent of all of its own
    log.propagate = False
    log.handlers = [_Noting(note)]


class _Noting(logging.Handler):
    """Passes a log record on without its traceback."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = type(error).__name__ if error is not None else record.getMessage()
        self._note("?", f"a request could not be read: {kind}"[:_MAX_LOG_CHARACTERS])


async def encoded(value: Any) -> bytes:
    """An answer as JSON; a large one takes a while, in a thread."""
    return await asyncio.to_thread(lambda: dumped(safe(value)))


def dumped(value: Any) -> bytes:
    """JSON of a value that is `safe`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def safe(value: Any, *, shortened: bool = False) -> Any:
    """A value as JSON can carry it and a page may show it, with fractions as it shows them.

    Those of large numbers, such as times of day, are milliseconds.
    """
    match value:
        case str():
            return escaped(value)
        case float() if not math.isfinite(value):
            return None
        case float() if shortened:
            return float(f"{value:.{SHOWN_DIGITS}g}") if abs(value) < _SHORT else round(value, 3)
        case dict():
            items = value.items()
            return {escaped(str(key)): safe(one, shortened=shortened) for key, one in items}
        case list() | tuple():
            return [safe(one, shortened=shortened) for one in value]
        case bytes():
            return value.hex()
        case _:
            return value


INDEX: Final = "index.html"
CHARTS: Final = "charts.js"
"""The name under which the chart library's script is served; ours have others."""

_PARTS: Final = json.dumps([part._asdict() for part in STEP_PARTS], ensure_ascii=False)
_MADE: Final = {
    "step_parts.js": ("text/javascript", f"export const STEP_PARTS = {_PARTS};\n"),
    "step_parts.css": ("text/css", stylesheet()),
}
"""Files that are made here: names and colours of a step's parts; their types and texts."""


def static_files() -> dict[str, Path]:
    """The page's files by their path below `/static`.

    Raises:
        ModuleNotFoundError: the chart library is not installed.
    """
    own = Path(str(importlib.resources.files("dtd.observe.web"))) / "static"
    library = Path(str(importlib.resources.files("plotly"))) / "package_data"
    found = {str(file.relative_to(own)): file for file in own.rglob("*.*")}
    return {**found, CHARTS: library / "plotly.min.js"}


class _PageFile(web.FileResponse):
    """A file, compressed if the browser takes it so."""

    def set_status(self, status: int, reason: str | None = None) -> None:
        """Set the status; an answer that has no body must not have the end of a compressed one."""
        super().set_status(status, reason)
        if status == HTTP_NOT_MODIFIED:
            self.enable_compression(web.ContentCoding.identity)


def file_answer(path: str, files: Mapping[str, Path]) -> web.StreamResponse:
    """One of the page's files; the browser asks each time whether its copy is still the same."""
    if path in _MADE:
        content_type, text = _MADE[path]
        return web.Response(text=text, content_type=content_type, charset="utf-8")
    if path not in files:
        return refused(404, "there is no such file")
    answer = _PageFile(files[path], headers={"Cache-Control": "no-cache"})
    answer.enable_compression()  # also since sendfile would get round the limit for unread data
    return answer
