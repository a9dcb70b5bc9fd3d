"""The page's own files, and the chart library's script from its installed package.

All are read when the page is first served, in a thread, and compressed once; none is read for a
request.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.resources
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

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
        """The file, or that the browser has it already."""
        etag = f'"{self.tag}"'
        headers = {"ETag": etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match", "") == etag:
            return web.Response(status=304, headers=headers)
        body = self.plain
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body = self.compressed
            headers["Content-Encoding"] = "gzip"
        return web.Response(
            body=body, content_type=self.content_type, charset="utf-8", headers=headers
        )


@functools.cache
def read_files() -> dict[str, ServedFile]:
    """All files by name; blocking.

    Raises:
        ModuleNotFoundError: the chart library is not installed.
    """
    own = importlib.resources.files("dtd.web").joinpath("static")
    found = {one.name: _read(one, one.name) for one in own.iterdir() if "." in one.name}
    script = importlib.resources.files(_CHART_PACKAGE).joinpath(*_CHART_SCRIPT)
    return {**found, CHARTS: _read(script, CHARTS)}


def _read(file: Traversable, name: str) -> ServedFile:
    plain = file.read_bytes()
    return ServedFile(
        content_type=_TYPES[name[name.rindex(".") :]],
        plain=plain,
        compressed=gzip.compress(plain, _FAST, mtime=0),
        tag=hashlib.sha256(plain).hexdigest()[:32],
    )
