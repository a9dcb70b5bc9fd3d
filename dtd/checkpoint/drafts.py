"""Drafts of checkpoints: temporary directories, each of one writer, until they are renamed.

Several writers may share a directory: each uses a unique name for its draft, and a writer that
finds the same state already published is done.  A draft is locked while its writer lives, so that
another one can tell what a dead writer has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from dtd.checkpoint.format import (
    TEMPORARY,
    parse_name,
)


class Drafts:
    """One writer's drafts of one job's checkpoints."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._suffix = f"{os.getpid()}.{secrets.token_hex(4)}"
        self._locks: dict[str, int] = {}

    def path(self, name: str) -> Path:
        return self._directory / f"{TEMPORARY}{name}-{self._suffix}"

    def make(self, name: str) -> Path:
        """An empty draft that nobody else touches."""
        path = self.path(name)
        path.mkdir()
        descriptor = os.open(path, os.O_RDONLY)
        self._locks[name] = descriptor
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path

    def rename(self, name: str, target: Path) -> None:
        """Make the draft the checkpoint.

        Raises:
            OSError: the draft is gone, or something lies there already.
        """
        self.path(name).rename(target)

    def clear(self, name: str, target: Path) -> None:
        """Remove the draft's target, unless another writer has just done so."""
        aside = target.with_name(f"{TEMPORARY}{name}-{self._suffix}.damaged")
        with contextlib.suppress(FileNotFoundError):
            target.rename(aside)
            remove(aside)

    def remove(self, name: str) -> None:
        """Release a draft, and remove it unless it was renamed."""
        remove(self.path(name))
        descriptor = self._locks.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def remove_leftovers(self, generation: int) -> None:
        """Remove drafts of earlier generations whose writers are dead."""
        for path in self._directory.glob(f"{TEMPORARY}*"):
            key = parse_name(path.name.removeprefix(TEMPORARY).rpartition("-")[0])
            if key is None or (key[0] < generation and not _is_locked(path)):
                remove(path)


def remove(directory: Path) -> None:
    """Remove a directory with all that is in it; if that does not work, it stays."""
    with contextlib.suppress(OSError):
        shutil.rmtree(directory)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
