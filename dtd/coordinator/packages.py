"""Operators bring the code of a task here, and workers are given it, piece by piece.

A worker asks for the next piece when it has the last, so nothing piles up however slow it is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.coordinator.store import Store
from dtd.coordinator.store_thread import StoreThread
from dtd.errors import ErrorCode, ProtocolError, RequestRefused, TaskError
from dtd.net.link import Link
from dtd.packages.archives import Archives
from dtd.packages.limits import short
from dtd.wire import messages as m

log = structlog.get_logger()

MAX_UNANSWERED: Final = 4
"""A worker that has just connected again may ask twice for the same piece."""

PACKAGES: Final = "packages"
"""Name of the directory of packages in a state directory."""


class PackageCounter:
    """Answers PUT_PACKAGE and GET_PACKAGE.

    Args:
        directory: of the archives.
        store: knows which are in use.
        thread: where they are read and written.
    """

    def __init__(self, directory: Path, store: Store, thread: StoreThread) -> None:
        self._archives = Archives(directory)
        self._store = store
        self._thread = thread
        self._tasks: dict[asyncio.Task[None], Link] = {}

    async def put(self, request: m.PutPackage, piece: bytes) -> dict[str, Any]:
        """Take a piece in; the answer says how many bytes are here.

        Raises:
            RequestRefused: it is not taken.
            TaskError: the digest is none, or does not name these bytes.
        """
        have = await self._thread.run(
            lambda: self._archives.put(
                request.digest,
                size=request.size,
                offset=request.offset,
                piece=piece,
                in_use=self._store.packages_in_use,
            )
        )
        return {"have": have}

    async def check(self, digest: str) -> None:
        """Check that a job's package is here; empty names none.

        Raises:
            RequestRefused: it is not.
            TaskError: the digest is none.
        """
        if digest and not await self._thread.run(self._archives.has, digest):
            raise RequestRefused(
                f"the task's package {short(digest)} is not here", remedy="submit the job again"
            )

    def ask(self, link: Link, request: m.GetPackage) -> None:
        """Answer with PACKAGE, soon.

        Raises:
            ProtocolError: too many requests on this connection are not answered yet.
        """
        if sum(one is link for one in self._tasks.values()) >= MAX_UNANSWERED:
            raise ProtocolError(ErrorCode.REFUSED, f"{MAX_UNANSWERED} GET_PACKAGE are unanswered")
        task = asyncio.create_task(self._serve(link, request))
        self._tasks[task] = link
        task.add_done_callback(self._tasks.pop)

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
