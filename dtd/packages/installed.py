"""Unpacked packages in a worker's state directory, each under its digest; the newest are kept.

A package is there whole or not at all: it is unpacked beside its place and renamed.  Blocking;
belongs in a thread.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from dtd.errors import TaskError
from dtd.packages.limits import MAX_KEPT, checked_digest, short
from dtd.packages.unpack import unpack, verify


def installed(directory: Path, digest: str) -> Path | None:
    """Where the package lies; None when it must be fetched.  It counts as the newest from now on.

    Raises:
        TaskError: this is no digest.
    """
    place = directory / checked_digest(digest)
    if not place.is_dir():
        return None
    os.utime(place)
    return place


def install(directory: Path, digest: str, content: bytes | bytearray) -> Path:
    """Verify and unpack a package, forget those that are too many, and return its place.

    Args:
        directory: of all packages; made if missing.
        digest: what the package is named by.
        content: its archive.

    Raises:
        TaskError: it is damaged, unfit, or cannot be written.
    """
    place = directory / checked_digest(digest)
    verify(content, digest)
    beside = directory / f".{digest}.{secrets.token_hex(4)}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _forget_old(directory)
        unpack(content, beside)
        beside.rename(place)
    except OSError as error:
        raise TaskError(
            f"package {short(digest)} cannot be kept in {directory}: {error.strerror}",
            remedy="make room there, or choose another --state-dir",
        ) from None
    finally:
        if beside.exists():
            _remove(beside)
    return place


def _forget_old(directory: Path) -> None:
    """Leave room for one more; what an interrupted process left behind goes first."""
    entries = list(directory.iterdir())
    kept = [entry for entry in entries if not entry.name.startswith(".")]
    kept.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in {*entries} - {*kept[: MAX_KEPT - 1]}:
        _remove(entry)


def _remove(tree: Path) -> None:
    for folder, _folders, _files in os.walk(tree):
        Path(folder).chmod(0o755)  # nothing can be taken out of a directory that is read-only
    shutil.rmtree(tree)
