"""Restores a backup into a state directory, with a later epoch than the original store.

Workers follow the highest epoch that they have seen, so the coordinator that the backup was taken
from cannot take them back when it returns.  Two restored copies are equals: when a second one is
restored, no coordinator of the first may run any more.
Tokens of the backup are void, since they may have been used or revoked after it was taken.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dtd.coordinator.audit_file import DIRECTORY as AUDIT
from dtd.coordinator.audit_file import AuditFile
from dtd.coordinator.audit_log import command_entry
from dtd.coordinator.handlers.packages import PACKAGES
from dtd.coordinator.store.backup import KEYS
from dtd.coordinator.store.database import FILE_NAME, LOCK_NAME, lock
from dtd.coordinator.store.store import Store
from dtd.durable import sync_directory
from dtd.errors import ConfigError, StoreDamaged, UsageError
from dtd.packages.archives import PACKAGE
from dtd.security.credential_book import mark_restored

MAX_MEMBERS: Final = 10_000
_WORKPLACE: Final = ".restoring"
_NAMES: Final = re.compile(
    rf"{re.escape(FILE_NAME)}"
    rf"|{AUDIT}/[0-9]{{16}}\.jsonl"
    rf"|{KEYS}/[A-Za-z0-9_][A-Za-z0-9._-]{{0,99}}"
    rf"|{PACKAGES}/[0-9a-f]{{64}}{re.escape(PACKAGE.ending)}"
)


def restore(source: Path, state_dir: Path) -> int:
    """Unpack a backup into an empty directory and begin an epoch.

    Args:
        source: a file of `back_up`.
        state_dir: made if missing; what is unpacked belongs to its owner.

    Returns:
        The new epoch.

    Raises:
        UsageError: the file is no backup, or the directory is not empty.
        ConfigError: the directory is in use or cannot be written, or another dtd wrote the backup.
    """
    try:
        with _emptiness(state_dir) as workplace:
            _unpack(source, workplace)
            epoch = _begin_epoch(workplace, source)
            if (workplace / KEYS).is_dir():
                mark_restored(workplace / KEYS, now_s=time.time())
            _move_in(workplace, state_dir)
            return epoch
    except OSError as error:
        raise ConfigError(f"{error.filename or source}: {error.strerror or error}") from None


@contextmanager
def _emptiness(state_dir: Path) -> Iterator[Path]:
    """An empty directory inside of the empty state directory, which nobody else takes meanwhile."""
    entries = {path.name for path in state_dir.iterdir()} if state_dir.is_dir() else set()
    strange = sorted(entries - {LOCK_NAME})
    if LOCK_NAME in entries or not strange:
        held = lock(state_dir)
    if strange:
        if LOCK_NAME in entries:
            held.close()
        raise UsageError(
            f"{state_dir} is not empty: it holds {', '.join(strange[:4])}",
            remedy="name an empty or a new directory with --state-dir",
        )
    workplace = state_dir / _WORKPLACE
    try:
        workplace.mkdir(mode=0o700)
        yield workplace
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
        held.close()


def _unpack(source: Path, workplace: Path) -> None:
    """Plain files under the names that a backup has, each at most once, and nothing else."""
    count = 0
    try:
        with tarfile.open(source, "r:") as tar:
            for member in tar:
                count += 1
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse
                if not plain or not _NAMES.fullmatch(member.name) or count > MAX_MEMBERS:
                    raise _no_backup(source, f"it holds {member.name[:200]!r}")
                _write(tar, member, workplace / member.name)
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError) as error:
        raise _no_backup(source, str(error)) from None
    except FileExistsError as error:
        raise _no_backup(source, f"it holds {Path(error.filename).name!r} twice") from None
    if not (workplace / FILE_NAME).is_file():
        raise _no_backup(source, "it holds no store")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(exist_ok=True, mode=0o700)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        body = tar.extractfile(member)
        assert body is not None
        shutil.copyfileobj(body, file)
        file.flush()
        os.fsync(descriptor)


def _begin_epoch(workplace: Path, source: Path) -> int:
    try:
        store = Store(workplace)
    except StoreDamaged as error:
        raise _no_backup(source, error.message) from error
    try:
        store.begin_epoch()
        epoch = store.identity()[1]
        about = {"file": str(source), "epoch": epoch}
        AuditFile(workplace).add(command_entry("RESTORE", about), synced=True)
        return epoch
    finally:
        store.close()


def _move_in(workplace: Path, state_dir: Path) -> None:
    """The store comes last: without it a coordinator has nothing to begin with."""
    owner = state_dir.stat()
    (workplace / LOCK_NAME).unlink()
    for path in (workplace, *workplace.rglob("*"), state_dir / LOCK_NAME):
        if (path.stat().st_uid, path.stat().st_gid) != (owner.st_uid, owner.st_gid):
            os.chown(path, owner.st_uid, owner.st_gid)
    for path in sorted(workplace.iterdir(), key=lambda path: path.name == FILE_NAME):
        path.rename(state_dir / path.name)
    for directory in (AUDIT, KEYS, PACKAGES):
        if (state_dir / directory).is_dir():
            sync_directory(state_dir / directory)
    sync_directory(state_dir)


def _no_backup(source: Path, why: str) -> UsageError:
    return UsageError(
        f"{source} is not a backup of a coordinator: {why}",
        remedy="name a file that `dtd-coordinator backup FILE` has written",
    )
