"""Receives tasks' packages from operators, and sends them to workers, piece by piece.

A worker asks for the next piece when it has the last, so nothing piles up however slow it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import structlog

from dtd.coordinator.handlers.answers import Answers
from dtd.coordinator.store.database import StoreThread
from dtd.errors import ErrorCode, ProtocolError, RequestRefused, TaskError
from dtd.net.link import Link
from dtd.packages.archives import Archives
from dtd.packages.limits import short
from dtd.wire import messages as m

log = structlog.get_logger()

PACKAGES: Final = "packages"
WEIGHTS: Final = "weights"
"""Names of the directories in a state directory; the latter is also what PUT_PACKAGE calls them."""


class PackageTransfer:
    """Answers PUT_PACKAGE and GET_PACKAGE for one kind of files.

    Args:
        needed: tells which must not be forgotten.
    """

    def __init__(
        self,
        archives: Archives,
        thread: StoreThread,
        needed: Callable[[], Awaitable[Collection[str]]],
        answers: Answers,
    ) -> None:
        self._archives = archives
        self._thread = thread
        self._needed = needed
        self._answers = answers

    async def put(self, request: m.PutPackage, piece: bytes) -> dict[str, Any]:
        """Take a piece in; the answer says how many bytes are here."""
        needed: Collection[str] = ()
        if request.offset + len(piece) >= request.size:  # then others may have to make room
            needed = await self._needed()
        have = await self._thread.run(
            lambda: self._archives.put(
                request.digest,
                size=request.size,
                offset=request.offset,
                piece=piece,
                in_use=needed,
            )
        )
        return {"have": have}

    async def check(self, digest: str) -> None:
        """Check that a job's package is here; an empty name is none."""
        if digest and not await self._thread.run(self._archives.has, digest):
            raise RequestRefused(
                f"{self._archives.kind.noun} {short(digest)} is not here",
                remedy="submit the job again",
            )

    def ask(self, link: Link, request: m.GetPackage) -> None:
        """Answer with PACKAGE, soon."""
        self._answers.begin(link, request, lambda: self._serve(link, request))

    async def _serve(self, link: Link, request: m.GetPackage) -> None:
        try:
            size, piece = await self._thread.run(
                self._archives.piece, request.digest, request.offset
            )
        except TaskError as error:
            link.fail(ProtocolError(ErrorCode.BAD_FIELD, error.message))
            return
        except OSError as error:
            log.error("package_unreadable", package=request.digest, error=str(error))
            size, piece = 0, b""
        package = m.Package(digest=request.digest, offset=request.offset, size=size)
        link.send(package, piece)
