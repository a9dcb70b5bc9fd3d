"""A viewer of the web page, without a browser: live data, and a page now and then."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dtd.errors import DtdError

PAGE_EVERY_S: Final = 3.0

Page = Sequence[str]
"""Requests of a page; `{job}` stands for the job."""

CURVES: Final[Page] = ("jobs/{job}/metrics?names=loss,rows_per_s&points=300",)
PAGES: Final[Sequence[Page]] = (
    (*CURVES, "events"),
    ("jobs",),
    ("jobs/{job}", "jobs/{job}/metrics?points=300", "events"),
    ("jobs/{job}/metrics?workers=1&points=120", "jobs/{job}/logs"),
    ("checkpoints", "models", "sweeps"),
    ("jobs/{job}/report",),
)
"""All of them."""

_PIECE_BYTES: Final = 65536


def log_in(opened: dict[str, Any]) -> dict[str, str]:
    """Begin a session with an answer to OPEN_WEB; returns the headers that show it.

    Raises:
        DtdError: the page refuses.
    """
    place = urlsplit(opened["url"])
    headers = {"Content-Type": "application/json", "Origin": f"{place.scheme}://{place.netloc}"}
    with contextlib.closing(_link(opened)) as link:
        link.request("POST", "/api/login", json.dumps({"word": opened["code"]}), headers)
        said = link.getresponse()
        content = json.loads(said.read())
    if said.status != http.HTTPStatus.OK:
        raise DtdError(f"the page refuses: {content}")
    cookie = str(said.headers["Set-Cookie"]).partition(";")[0]
    return {"Cookie": cookie, "X-Dtd-Key": str(content["key"])}


def _link(opened: dict[str, Any]) -> http.client.HTTPConnection:
    place = urlsplit(opened["url"])
    return http.client.HTTPConnection(str(place.hostname), int(place.port or 0))


class Viewer:
    """Logs in with a code, and watches until it is closed.

    Args:
        opened: the answer to OPEN_WEB.
        job: the job that is watched.
        pages: looked at in turn, three seconds each.
        first: number of the page to begin with.

    Attributes:
        read_bytes: of live data.
        refused: the page's answer to other requests; empty if there was none.

    Raises:
        DtdError: the page refuses.
    """

    def __init__(
        self, opened: dict[str, Any], job: str = "", pages: Sequence[Page] = (), *, first: int = 0
    ) -> None:
        self._opened = opened
        self.read_bytes = 0
        self.refused = ""
        self._closed = threading.Event()
        self._headers = log_in(opened)
        looks = [self._live, lambda: self._turn(job, pages, first)] if pages else [self._live]
        self._threads = [threading.Thread(target=look, daemon=True) for look in looks]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _live(self) -> None:
        with contextlib.closing(_link(self._opened)) as link:
            link.request("GET", "/api/live", headers=self._headers)
            answer = link.getresponse()
            with contextlib.suppress(OSError, http.client.HTTPException):
                while not self._closed.is_set() and (piece := answer.read1(_PIECE_BYTES)):
                    self.read_bytes += len(piece)

    def _turn(self, job: str, pages: Sequence[Page], number: int) -> None:
        with contextlib.closing(_link(self._opened)) as link:
            while not self._closed.wait(PAGE_EVERY_S):
                for path in pages[number % len(pages)]:
                    link.request("GET", f"/api/{path.format(job=job)}", headers=self._headers)
                    answer = link.getresponse()
                    answer.read()
                    if answer.status != http.HTTPStatus.OK:
                        self.refused = f"{path}: {answer.status} {answer.reason}"
                number += 1
