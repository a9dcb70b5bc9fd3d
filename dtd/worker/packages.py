"""A worker gets the code of a task: from its own disk, or piece by piece from the coordinator.

`fetch` runs in a thread that may wait, and hashes and unpacks there; the pieces come over the
control connection on the event loop.  A connection that is lost meanwhile costs the piece that was
on its way, and nothing else.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import TaskError
from dtd.packages.installed import install, installed
from dtd.packages.limits import MAX_ARCHIVE_BYTES, checked_digest, short
from dtd.wire import messages as m

log = structlog.get_logger()

PACKAGES: Final = "packages"
"""Name of the directory of packages in a worker's state directory."""


class TaskPackages:
    """The packages of one worker.

    Args:
        directory: where they are unpacked.
        send: sends to the coordinator, on the event loop; lost while there is no connection.
        post: runs a function on the event loop, from any thread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        send: Callable[[m.Message], None],
        post: Callable[..., None],
    ) -> None:
        self._directory = directory
        self._send = send
        self._post = post
        self._fetching = threading.Lock()
        self._wanted: m.GetPackage | None = None
        self._pieces: queue.SimpleQueue[tuple[m.Package, bytes]] = queue.SimpleQueue()

    # --- in a thread that may wait ---------------------------------------------------------------

    def fetch(self, digest: str) -> Path:
        """Where the package lies, after it was fetched if it had to be.

        There is no bound on the wait for a coordinator that is away: one that is there drops a
        worker that warms up for too long.

        Raises:
            TaskError: the coordinator lacks it, or it is damaged, unfit or cannot be kept.
        """
        with self._fetching:
            place = installed(self._directory, checked_digest(digest))
            return place if place is not None else self._fetch(digest)

    def _fetch(self, digest: str) -> Path:
        content, size = bytearray(), 1
        while len(content) < size:
            self._post(self._want, m.GetPackage(digest=digest, offset=len(content)))
            answer, piece = self._pieces.get()
            size = _checked_size(answer, len(content) + len(piece))
            content += piece
        place = install(self._directory, digest, content)
        log.info("package_received", package=short(digest), bytes=len(content))
        return place

    # --- on the event loop -----------------------------------------------------------------------

    def received(self, answer: m.Package, piece: bytes) -> None:
        """A piece has come; one that was asked for twice is passed over."""
        if self._wanted == m.GetPackage(digest=answer.digest, offset=answer.offset):
            self._wanted = None
            self._pieces.put((answer, piece))

    def ask_again(self) -> None:
        """The connection is a new one: nothing asked on the last one will be answered."""
        if self._wanted is not None:
            self._send(self._wanted)

    def _want(self, request: m.GetPackage) -> None:
        self._wanted = request
        self._send(request)


def _checked_size(answer: m.Package, have_bytes: int) -> int:
    """The size of the whole, when this answer brings us nearer to it."""
    if not answer.size:
        raise TaskError(
            f"the coordinator lacks the task's package {short(answer.digest)}",
            remedy="submit the job again",
        )
    if not answer.offset < have_bytes <= answer.size <= MAX_ARCHIVE_BYTES:
        raise TaskError(
            f"the coordinator gives {have_bytes} of {answer.size} bytes of the task's package"
            f" {short(answer.digest)}",
            remedy="submit the job again",
        )
    return answer.size
