"""A coordinator's state in one file: taken while the daemon runs, and restored.

Its content: the store, the cluster's keys and the packages of tasks.  A reader of it can act for
the cluster, so it has mode 0600 from its first byte on.  Checkpoints are with the workers, and
figures drawn for people (TensorBoard) are not state.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dtd.coordinator.handlers.packages import PACKAGES
from dtd.coordinator.services.audit_file import DIRECTORY as AUDIT
from dtd.coordinator.services.audit_file import DONE, AuditFile, Entry
from dtd.coordinator.store.database import FILE_NAME, LOCK_NAME, lock
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError, StoreDamaged, UsageError
from dtd.host.durable import sync_directory, synced
from dtd.packages.archives import PACKAGE
from dtd.security.credential_book import mark_restored
from dtd.security.identity import LOCAL

KEYS: Final = "pki"
"""Name of the directory of the cluster's keys in a state directory."""

DIRECTORIES: Final = (AUDIT, KEYS, PACKAGES)
_NAMES: Final = re.compile(
    rf"{re.escape(FILE_NAME)}"
    rf"|{AUDIT}/[0-9]{{16}}\.jsonl"
    rf"|{KEYS}/[A-Za-z0-9_][A-Za-z0-9._-]{{0,99}}"
    rf"|{PACKAGES}/[0-9a-f]{{64}}{re.escape(PACKAGE.ending)}"
)


def back_up(state_dir: Path, target: Path) -> int:
    """Write a backup; an older one is replaced once this one is whole.

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
    with (
        synced(os.fdopen(descriptor, "wb")) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, copy, FILE_NAME)
        for directory in DIRECTORIES:
            for path in sorted((state_dir / directory).glob("[!.]*")):
                name = f"{directory}/{path.name}"
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if _NAMES.fullmatch(name):
                        _add(tar, path, name)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    with path.open("rb") as file:
        member = tarfile.TarInfo(name)
        member.size, member.mode = os.fstat(file.fileno()).st_size, 0o600
        tar.addfile(member, file)


# --- restoring -----------------------------------------------------------------------------------


_WORKPLACE: Final = ".restoring"


def restore(source: Path, state_dir: Path) -> None:
    """Unpack a backup into an empty directory.

    Args:
        source: a file of `back_up`.
        state_dir: made if missing; what is unpacked belongs to its owner.

    Raises:
        UsageError: the file is no backup, or the directory is not empty.
        ConfigError: the directory is in use or cannot be written, or another dtd wrote the backup.
    """
    try:
        with _emptiness(state_dir) as workplace:
            _unpack(source, workplace)
            _doubt_jobs(workplace, source)
            if (workplace / KEYS).is_dir():
                mark_restored(workplace / KEYS, now_s=time.time())
            _move_in(workplace, state_dir)
    except OSError as error:
        raise ConfigError(f"{error.filename or source}: {error.strerror or error}") from None


@contextmanager
def _emptiness(state_dir: Path) -> Iterator[Path]:
    """An empty directory inside of the empty state directory, which nobody else takes meanwhile."""
    entries = {path.name for path in state_dir.iterdir()} if state_dir.is_dir() else set()
    strange = sorted(entries - {LOCK_NAME})
    if strange:
        raise UsageError(
            f"{state_dir} is not empty: it holds {', '.join(strange[:4])}",
            remedy="name an empty or a new directory with --state-dir",
        )
    held = lock(state_dir)
    workplace = state_dir / _WORKPLACE
    try:
        workplace.mkdir(mode=0o700)
        yield workplace
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
        held.close()


def _unpack(source: Path, workplace: Path) -> None:
    """Plain files under the names that a backup has, each at most once, and nothing else."""
    try:
        with tarfile.open(source, "r:") as tar:
            for member in tar:
                plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse
                if not plain or not _NAMES.fullmatch(member.name):
                    raise _no_backup(source, f"it holds {member.name[:200]!r}")
                _extract(tar, member, workplace / member.name)
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError) as error:
        raise _no_backup(source, str(error)) from None
    except FileExistsError as error:
        raise _no_backup(source, f"it holds {Path(error.filename).name!r} twice") from None
    if not (workplace / FILE_NAME).is_file():
        raise _no_backup(source, "it holds no store")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(exist_ok=True, mode=0o700)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with synced(os.fdopen(descriptor, "wb")) as file:
        body = tar.extractfile(member)
        assert body is not None
        shutil.copyfileobj(body, file)


def _doubt_jobs(workplace: Path, source: Path) -> None:
    try:
        store = Store(workplace)
    except StoreDamaged as error:
        raise _no_backup(source, error.message) from error
    try:
        store.doubt_jobs()
        entry = Entry(
            time_s=time.time(),
            role=LOCAL,
            who=f"uid {os.getuid()}",
            what="RESTORE",
            about={"file": str(source)},
            outcome=DONE,
        )
        AuditFile(workplace).add(entry, synced=True)
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
    for directory in DIRECTORIES:
        if (state_dir / directory).is_dir():
            sync_directory(state_dir / directory)
    sync_directory(state_dir)


def _no_backup(source: Path, why: str) -> UsageError:
    return UsageError(
        f"{source} is not a backup of a coordinator: {why}",
        remedy="name a file that `dtd-coordinator backup FILE` has written",
    )
