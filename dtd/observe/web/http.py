"""HTTP of the page: checks of every request, forms of the answers, and the page's own files.

A page of another site can make a browser send requests here, and can have its own name resolve to
this host's address.  So the Host header must be an address or a name of this coordinator; a change
must be requested by the page itself; and every request for data shows two secrets, one of which no
other page can read (`dtd.observe.web.logins`).

Large answers are sent piece by piece, so that a browser that reads nothing holds a piece in memory
and not the file.  (`dtd.observe.web.server` cuts it.)
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import importlib.resources
import ipaddress
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, Final

from aiohttp import web

from dtd.errors import DtdError, ProtocolError
from dtd.observe.step_parts import STEP_PARTS, stylesheet
from dtd.text.shown import escaped

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


PIECE_BYTES: Final = 32 * 1024
SMALL_BYTES: Final = 1024
CONTENT_ENCODING: Final = "Content-Encoding"
_MAX_LOG_CHARACTERS: Final = 200


async def in_pieces(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """Send an answer with a large body; any other is returned as it is, to be sent.

    Text is compressed if the browser takes it so.
    """
    body = answer.body if isinstance(answer, web.Response) else None
    if not isinstance(body, bytes) or len(body) <= SMALL_BYTES or request.method == "HEAD":
        return answer
    headers = {**answer.headers}
    accepted = "gzip" in request.headers.get("Accept-Encoding", "")
    if accepted and CONTENT_ENCODING not in headers:
        body = await asyncio.to_thread(gzip.compress, body, _FAST, mtime=0)
        headers[CONTENT_ENCODING] = "gzip"
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = len(body)
    await response.prepare(request)
    view = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        await response.write(view[start : start + PIECE_BYTES])
    await response.write_eof()
    return response


def quiet_log(note: Callable[[str, str], None]) -> None:
    """Have aiohttp log refused requests in one line, at a bounded rate.

    Args:
        note: told the address, as far as it is known, and the reason.
    """
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


def safe(value: Any) -> Any:
    """A value as JSON can carry it and a page may show it."""
    match value:
        case str():
            return escaped(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {escaped(str(key)): safe(one) for key, one in value.items()}
        case list() | tuple():
            return [safe(one) for one in value]
        case bytes():
            return value.hex()
        case _:
            return value


INDEX: Final = "index.html"
CHARTS: Final = "charts.js"
"""The name under which the library's script is served; ours have others."""

_CHART_PACKAGE: Final = "plotly"
_CHART_SCRIPT: Final = ("package_data", "plotly.min.js")
_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
_FAST: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFile:
    """One file; `tag` is a hash of it."""

    content_type: str
    plain: bytes
    compressed: bytes
    tag: str

    def answer(self, request: web.Request) -> web.Response:
        """Return the file, or "not modified"."""
        etag = f'"{self.tag}"'
        headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match", "") == etag:
            return web.Response(status=304, headers=headers)
        body = self.plain
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body = self.compressed
            headers[CONTENT_ENCODING] = "gzip"
        return web.Response(
            body=body, content_type=self.content_type, charset="utf-8", headers=headers
        )


@functools.cache
def read_files() -> dict[str, ServedFile]:
    """All files by their path below `/static`; blocking.

    Raises:
        ModuleNotFoundError: the chart library is not installed.
    """
    own = importlib.resources.files("dtd.observe.web").joinpath("static")
    script = importlib.resources.files(_CHART_PACKAGE).joinpath(*_CHART_SCRIPT)
    made = {CHARTS: script.read_bytes(), **_step_parts()}
    return {
        path: _served(plain, path) for path, plain in {**dict(_read_below(own)), **made}.items()
    }


def _read_below(folder: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _read_below(one, f"{path}{one.name}/")
        elif "." in one.name:
            yield path + one.name, one.read_bytes()


def _step_parts() -> dict[str, bytes]:
    """The names and the colours of a step's parts as the page's modules and styles have them."""
    parts = json.dumps([part._asdict() for part in STEP_PARTS], ensure_ascii=False)
    return {
        "step_parts.js": f"export const STEP_PARTS = {parts};\n".encode(),
        "step_parts.css": stylesheet().encode(),
    }


def _served(plain: bytes, name: str) -> ServedFile:
    return ServedFile(
        content_type=_TYPES[name[name.rindex(".") :]],
        plain=plain,
        compressed=gzip.compress(plain, _FAST, mtime=0),
        tag=hashlib.sha256(plain).hexdigest()[:32],
    )
