"""Locates and hashes the code of a task.

A shipped package comes first, then the current directory, then installed packages.  Workers report
the code that they found, so that differences are noticed before they train together.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import TaskError
from dtd.packages.archive import install, installed, source_digest
from dtd.packages.archives import ENDING, PART, digest_of_file, verify_file
from dtd.packages.limits import (
    MAX_ARCHIVE_BYTES,
    MAX_WEIGHTS_BYTES,
    MAX_WEIGHTS_KEPT,
    checked_digest,
    short,
)
from dtd.packages.source import find_source, module_name, top_level_name, with_imports
from dtd.wire import messages as m
from dtd.worker.control import Requests


def look_first_in(place: Path | None) -> None:
    """Have imports look in the directory of a shipped package before anywhere else.

    Raises:
        TaskError: it contains a module that this process has imported from elsewhere, so that the
            task would get the other one.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if place is not None:
        sys.path.insert(0, str(place))
        _check_not_imported(place)
    importlib.invalidate_caches()


def _check_not_imported(place: Path) -> None:
    for entry in sorted(place.iterdir()):
        spec = getattr(sys.modules.get(entry.name.partition(".")[0]), "__spec__", None)
        if spec is not None and not str(spec.origin).startswith(f"{place}{os.sep}"):
            raise TaskError(
                f"the job brings a module {spec.name} of its own, {entry.name}, and this worker"
                f" needs another one: {spec.origin}",
                remedy="rename the module beside the task",
            )


def task_digest(reference: str, place: Path | None) -> str:
    """Hash of the source of a task and of its imports from its folder.

    Empty for a built-in task, or without source.  Without `place` it is what an import finds.

    Raises:
        TaskError: a file of it cannot be read.
    """
    name = top_level_name(reference)
    source = find_source(name, sys.path if place is None else [place]) if name else None
    return source_digest(with_imports(source, module_name(reference))) if source else ""


# --- the code of a task is on this disk, or comes piece by piece from the coordinator -------------
#
# In a thread that may wait, and hashes and unpacks.


log = structlog.get_logger()

PACKAGES: Final = "packages"
WEIGHTS: Final = "weights"
"""Names of the directories in a worker's state directory; the latter is also the kind's on the
wire."""

ABANDONED_S: Final = 86_400.0
"""Age of the beginning of a download that a process has left behind when it was killed."""


class TaskPackages:
    """The packages of one worker.

    Args:
        directory: where they are unpacked; files of weights go beside it.
    """

    def __init__(self, directory: Path, requests: Requests) -> None:
        self._directory = directory
        self._weights = directory.with_name(WEIGHTS)
        self._requests = requests
        self._fetching = threading.Lock()

    def fetch(self, digest: str) -> Path:
        """Return the package's path, fetched if it had to be.

        There is no bound on the wait for a disconnected coordinator: a connected one drops a
        worker that warms up for too long.

        Raises:
            TaskError: the coordinator lacks it, or it is damaged, unfit or cannot be kept.
        """
        with self._fetching:
            place = installed(self._directory, checked_digest(digest))
            return place if place is not None else self._fetch(digest)

    def fetch_weights(self, digest: str) -> Path:
        """Return the path of the file of weights, fetched if it had to be; see `fetch`."""
        with self._fetching:
            whole = self._weights / f"{checked_digest(digest)}{ENDING}"
            try:
                if not whole.is_file() or digest_of_file(whole) != digest:
                    self._fetch_weights(digest, whole)
                os.utime(whole)
            except OSError as error:
                raise TaskError(
                    f"weights {short(digest)} cannot be stored in {self._weights}: "
                    f"{error.strerror}",
                    remedy="free space there, or choose another --state-dir",
                ) from None
            return whole

    def remove_abandoned(self) -> None:
        """Remove partly fetched files of a process that was killed more than a day ago."""
        before_s = time.time() - ABANDONED_S
        with contextlib.suppress(OSError):
            for part in self._weights.glob(f"*{PART}"):
                if part.stat().st_mtime < before_s:
                    part.unlink()

    def _fetch(self, digest: str) -> Path:
        content = bytearray()
        for piece in self._in_pieces(digest, "", MAX_ARCHIVE_BYTES):
            content += piece
        place = install(self._directory, digest, content)
        log.info("package_received", package=short(digest), bytes=len(content))
        return place

    def _fetch_weights(self, digest: str, whole: Path) -> None:
        """Written as it comes: it may be larger than the memory that is free."""
        self._weights.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.remove_abandoned()
        files = sorted(self._weights.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in files[: max(0, len(files) - MAX_WEIGHTS_KEPT + 1)]:
            old.unlink()
        part = whole.with_suffix(PART)
        try:
            with part.open("wb") as file:
                for piece in self._in_pieces(digest, WEIGHTS, MAX_WEIGHTS_BYTES):
                    file.write(piece)
            verify_file(part, digest)
            part.rename(whole)
        finally:
            part.unlink(missing_ok=True)
        log.info("weights_received", weights=short(digest), bytes=whole.stat().st_size)

    def _in_pieces(self, digest: str, kind: str, limit_bytes: int) -> Iterator[bytes]:
        have, size = 0, 1
        while have < size:
            request = m.GetPackage(digest=digest, offset=have, kind=kind)
            answer, piece = self._requests.ask(request)
            size = _checked_size(answer, have + len(piece), limit_bytes)
            have += len(piece)
            yield piece


def _checked_size(answer: m.Package, have_bytes: int, limit_bytes: int) -> int:
    """The size of the whole, when this answer brings us nearer to it."""
    if not answer.size:
        raise TaskError(
            "the coordinator does not have the content submitted with the job: "
            f"{short(answer.digest)}",
            remedy="submit the job again",
        )
    if not answer.offset < have_bytes <= answer.size <= limit_bytes:
        raise TaskError(
            f"the coordinator delivers {have_bytes} of {answer.size} bytes of "
            f"{short(answer.digest)}, which were submitted with the job",
            remedy="submit the job again",
        )
    return answer.size
