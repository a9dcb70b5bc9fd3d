"""An archive becomes a directory, and nothing outside of that directory is touched.

The archive may come from anybody.  Only plain files and directories are made, under names that stay
inside, within the limits of a package, and never over something that is there already.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import tarfile
from pathlib import Path
from typing import Final

from dtd.errors import TaskError
from dtd.packages.limits import (
    MAX_ARCHIVE_BYTES,
    MAX_CONTENT_BYTES,
    MAX_FILES,
    MAX_FOLDERS,
    MAX_KEPT,
    checked_digest,
    layout_fault,
    short,
)

_FILE_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)
_TAR_ERRORS: Final = (
    *(tarfile.TarError, OSError, ValueError, ArithmeticError, LookupError, EOFError),
    RecursionError,  # of headers that announce headers
)
_NAME_CHARACTERS: Final = 512
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def verify(content: bytes | bytearray | memoryview, digest: str) -> None:
    """Check that these are the bytes that the digest names.

    Raises:
        TaskError: they are not.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise TaskError(
            f"package {short(digest)} was damaged during transfer: its bytes have the sha256"
            f" {short(found)}",
            remedy="submit the job again",
        )


def unpack(content: bytes | bytearray, directory: Path) -> None:
    """Unpack a verified archive into a new directory; files can be read, not written.

    Args:
        content: the archive.
        directory: is made; must not exist.

    Raises:
        TaskError: the archive holds what a package must not hold; what was made stays, and is the
            caller's to remove.
        OSError: the disk is at fault.
    """
    if len(content) > MAX_ARCHIVE_BYTES:
        raise _unfit(f"it has {len(content)} bytes, more than {MAX_ARCHIVE_BYTES}")
    members = _members(content)
    directory.mkdir(mode=0o755)
    folders = {directory}
    for name, body in members:
        target = directory.joinpath(*name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, body)
        except (FileExistsError, NotADirectoryError):
            raise _unfit(f"it holds {'/'.join(name)!r} twice") from None
        folders |= {folder for folder in target.parents if folder.is_relative_to(directory)}
    for folder in folders:
        folder.chmod(0o555)


def _write(target: Path, body: bytes) -> None:
    descriptor = os.open(target, _NEW_FILE, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(descriptor)


def _members(content: bytes | bytearray) -> list[tuple[tuple[str, ...], bytes]]:
    """Name and content of every file; directories follow from the names."""
    found: list[tuple[tuple[str, ...], bytes]] = []
    left_bytes = MAX_CONTENT_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for number, member in enumerate(tar):
                left_bytes -= _checked_size(member)
                if left_bytes < 0 or len(found) >= MAX_FILES or number >= MAX_FILES + MAX_FOLDERS:
                    raise _unfit("it holds more than a package may")
                name = _checked_name(member.name)
                if member.type in _FILE_TYPES:
                    body = tar.extractfile(member)
                    assert body is not None
                    found.append((name, body.read()))
    except TaskError:
        raise
    except _TAR_ERRORS as error:
        raise _unfit(f"it is not an archive: {error}") from None
    fault = layout_fault(name for name, _body in found)
    if fault:
        raise _unfit(fault)
    return found


def _checked_size(member: tarfile.TarInfo) -> int:
    plain = member.type in (*_FILE_TYPES, tarfile.DIRTYPE) and member.sparse is None
    if not plain or member.size < 0:
        raise _unfit(f"{member.name[:200]!r} is neither a plain file nor a directory")
    return member.size if member.type != tarfile.DIRTYPE else 0


def _checked_name(name: str) -> tuple[str, ...]:
    parts = tuple(name.split("/"))
    try:
        too_long = len(name) > _NAME_CHARACTERS or any(len(os.fsencode(p)) > 255 for p in parts)
    except UnicodeError:
        too_long = True
    if too_long or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise _unfit(f"{name[:200]!r} is not a name inside it")
    return parts


def _unfit(why: str) -> TaskError:
    return TaskError(f"the package was not created by dtd: {why}", remedy="submit the job again")


# --- unpacked packages in a worker's state directory, each under its digest ----------------------
#
# The newest are kept.  A package is there whole or not at all: it is unpacked beside its place and
# renamed.  Blocking; belongs in a thread.


def installed(directory: Path, digest: str) -> Path | None:
    """Return the package's path, and mark it as the newest; None when it must be fetched.

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
        digest: the package's name.
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
            f"package {short(digest)} cannot be stored in {directory}: {error.strerror}",
            remedy="free space there, or choose another --state-dir",
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
