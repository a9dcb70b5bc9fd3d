"""Files and directories that survive a loss of power.

A file survives if it was synced, and can be found if every directory on its path was synced after
its entry was added.  Blocking; used by all code that writes durable data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

File = TypeVar("File", bound=IO[Any])


@contextlib.contextmanager
def synced(file: File) -> Iterator[File]:
    """Close a file at the end of the block; what was written to it is durable then.

    Raises:
        OSError: it cannot be written or synced.
    """
    with file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def make_directory(path: Path, *, mode: int = 0o777) -> None:
    """Create a directory and its missing parents, each synced in its parent.

    An existing directory and its parent are synced as well: another process may have just created
    them.

    Raises:
        OSError: it cannot be made, or something else lies there.
    """
    missing = []
    for one in (path, *path.parents):
        kind = _kind(one)  # asked once: another process may be making it at the same moment
        if kind is not None and stat.S_ISDIR(kind):
            break
        if kind is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(one))
        missing.append(one)
    for one in reversed(missing):
        one.mkdir(mode=mode if one == path else 0o777, exist_ok=True)
        sync_directory(one.parent)
    for one in {path, path.parent} - set(missing):
        with contextlib.suppress(OSError):  # it existed before and belongs to another user
            sync_directory(one.parent)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that its entries are durable when this returns.

    Raises:
        OSError: it cannot be opened or synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _kind(path: Path) -> int | None:
    """The file's mode; None if nothing is there."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # the latter: a parent is a file
        return None
