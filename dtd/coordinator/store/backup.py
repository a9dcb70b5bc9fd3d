"""A coordinator's state in one file, taken while the daemon runs.

Its content: the store, the audit log, the cluster's keys and the packages of tasks.  A reader of it
can act for the cluster, so it has mode 0600 from its first byte on.  Checkpoints are with the
workers, and figures drawn for people (TensorBoard) are not state.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import tarfile
from pathlib import Path
from typing import Final

from dtd.coordinator.audit_file import DIRECTORY as AUDIT
from dtd.coordinator.handlers.packages import PACKAGES
from dtd.coordinator.store.database import FILE_NAME
from dtd.durable import sync_directory
from dtd.errors import ConfigError
from dtd.packages.archives import PACKAGE

KEYS: Final = "pki"
"""Name of the directory of the cluster's keys in a state directory."""


def back_up(state_dir: Path, target: Path) -> int:
    """Write a backup; an older one is replaced once this one is whole.

    Returns:
        Its size in bytes.

    Raises:
        ConfigError: there is no store, or the file cannot be written.
    """
    store = state_dir / FILE_NAME
    if not store.is_file():
        raise ConfigError(
            f"{state_dir} is not the state directory of a coordinator: it has no {FILE_NAME}",
            remedy="name it with --state-dir",
        )
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    copy = beside.with_suffix(".sqlite3")
    try:
        _copy_store(store, copy)
        _write(beside, state_dir, copy)
        beside.rename(target)
        sync_directory(target.parent)
        return target.stat().st_size
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"no backup could be written to {target}: {error}") from None
    finally:
        for leftover in (beside, copy):
            leftover.unlink(missing_ok=True)


def _copy_store(store: Path, copy: Path) -> None:
    """A copy as of one moment, whatever is being written meanwhile."""
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    source = sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)
    with contextlib.closing(source), contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it


def _write(beside: Path, state_dir: Path, copy: Path) -> None:
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, copy, FILE_NAME)
            for path in sorted((state_dir / AUDIT).glob("[0-9]*.jsonl")):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    _add(tar, path, f"{AUDIT}/{path.name}")
            for path in sorted((state_dir / KEYS).glob("[!.]*")):
                _add(tar, path, f"{KEYS}/{path.name}")
            for path in sorted((state_dir / PACKAGES).glob(f"[!.]*{PACKAGE.ending}")):
                with contextlib.suppress(FileNotFoundError):  # forgotten meanwhile
                    _add(tar, path, f"{PACKAGES}/{path.name}")
        file.flush()
        os.fsync(descriptor)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    with path.open("rb") as file:
        member = tarfile.TarInfo(name)
        member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
        tar.addfile(member, file)
