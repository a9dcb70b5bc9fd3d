"""Limits of a package or a file of weights, and its digest (protocol.md, "Packages")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dtd.errors import TaskError
from dtd.text.names import DIGEST

MIB: Final = 1024 * 1024
MAX_CONTENT_BYTES: Final = 16 * MIB
MAX_FILES: Final = 4096
MAX_FOLDERS: Final = 4096
MAX_DEPTH: Final = 32
# A file costs two headers and padding besides its content.
MAX_ARCHIVE_BYTES: Final = MAX_CONTENT_BYTES + MAX_FILES * 2048
# Small, because heartbeats wait for a chunk that is on its way on the same connection.
CHUNK_BYTES: Final = 256 * 1024
MAX_KEPT: Final = 16
"""Packages that a worker keeps unpacked."""
MAX_ARCHIVES_KEPT: Final = 1000
MAX_ARCHIVES_KEPT_BYTES: Final = 1024 * MIB
"""Packages that the coordinator keeps, so that a job can be repeated."""
# Files of weights go the same way; they are written to the disk piece by piece.
MAX_WEIGHTS_BYTES: Final = 4 * 1024 * MIB
MAX_WEIGHTS_KEPT: Final = 4
MAX_WEIGHTS_KEPT_BYTES: Final = MAX_WEIGHTS_KEPT * MAX_WEIGHTS_BYTES

_DIGEST: Final = re.compile(DIGEST)


def checked_digest(text: str) -> str:
    """The digest, which is safe to be a file's name.

    Raises:
        TaskError: it is no sha256 in lower-case hex.
    """
    if not _DIGEST.fullmatch(text):
        raise TaskError(f"package {text[:80]!r} is not named by a sha256 in lower-case hex")
    return text


def check_transfer(noun: str, found: str, digest: str) -> None:
    """Check that what has arrived has the digest by which it was requested.

    Raises:
        TaskError: it has another one.
    """
    if found != digest:
        raise TaskError(
            f"{noun} {short(digest)}: damaged during transfer, its bytes have the sha256"
            f" {short(found)}",
            remedy="submit the job again",
        )


def layout_fault(files: Iterable[tuple[str, ...]]) -> str:
    """Why files cannot lie in a package as they are named, as a clause; empty when they can.

    Args:
        files: their names, each cut at the slashes.
    """
    folders: set[tuple[str, ...]] = set()
    for name in files:
        if len(name) > MAX_DEPTH:
            return f"{'/'.join(name)[:200]!r} is over {MAX_DEPTH} levels deep"
        folders |= {name[:depth] for depth in range(1, len(name))}
        if len(folders) > MAX_FOLDERS:
            return f"it has over {MAX_FOLDERS} directories"
    return ""


def short(digest: str) -> str:
    """Return the prefix of a digest that people compare."""
    return digest[:12]
