"""Limits of a package or a file of weights, and its digest (protocol.md, "Packages")."""

from __future__ import annotations

import re
from typing import Final

from dtd.errors import TaskError
from dtd.text.names import DIGEST

MIB: Final = 1024 * 1024
MAX_CONTENT_BYTES: Final = 16 * MIB
MAX_FILES: Final = 4096
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


def short(digest: str) -> str:
    """Return the prefix of a digest that people compare."""
    return digest[:12]
