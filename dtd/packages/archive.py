"""A package as one archive: packed, verified, unpacked, and kept unpacked by a worker.

A tar file whose bytes depend on names and contents alone: members sorted by name, no owner, no
time, one mode.  The same code has the same digest wherever and whenever it is packed, so it is sent
and kept once.  Byte code and hidden files are left out.  A link that leads out of the package is
refused rather than followed: what it names is not part of the package, and may be a secret.

Only plain files are unpacked, under names that stay inside the new directory.  A worker keeps the
newest packages; one is there whole or not at all, since it is unpacked beside its place and
renamed.  Blocking.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.errors import TaskError
from dtd.host.durable import synced
from dtd.packages.limits import (
    MAX_CONTENT_BYTES,
    MAX_FILES,
    MAX_KEPT,
    MIB,
    check_transfer,
    checked_digest,
    short,
)
from dtd.packages.requirements import MEMBER
from dtd.packages.source import Source

_CACHE: Final = "__pycache__"
_BYTE_CODE: Final = (".pyc", ".pyo")
_SOURCE_CODE: Final = ".py"
_INSTEAD: Final = "put the file itself into the package, or submit with --no-ship"
_FILE_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)
_TAR_ERRORS: Final = (
    *(tarfile.TarError, OSError, ValueError, ArithmeticError, LookupError, EOFError),
    RecursionError,  # of headers that announce headers
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A packed package: its bytes, their sha256, and how many files are in it."""

    content: bytes
    digest: str
    files: int


def pack(sources: Sequence[Source], requirements: bytes = b"") -> Archive:
    """Pack a task's package or module and what belongs to it.

    Raises:
        TaskError: it is too large, or holds something that cannot be packed.
    """
    files = [file for source in sources for file in package_files(source)]
    if sources:
        _check_sizes(sources, files)
    packed = io.BytesIO()
    contents = {file.name: _read(file.path) for file in files}
    for source in sources:
        if source.path is not None and source.path.is_dir():
            # Without one, a package of that name which a worker has installed would be taken.
            contents.setdefault(f"{source.name}/__init__.py", b"")
    if requirements:
        contents[MEMBER] = requirements
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(contents):
            _add(tar, name, contents[name])
    content = packed.getvalue()
    return Archive(content=content, digest=hashlib.sha256(content).hexdigest(), files=len(contents))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))


def _check_sizes(sources: Sequence[Source], files: Sequence[PackageFile]) -> None:
    """Looked at before anything is read: the directory may hold a data set."""
    sizes = [(file.path.stat().st_size, file.name) for file in files]
    total_bytes = sum(size for size, _ in sizes)
    first, *others = sources
    what = f"package {first.name} in {first.path}"
    if others:
        names = ", ".join(source.name for source in others)
        what += f" with {names}, which it imports from beside it,"
    if len(files) <= MAX_FILES and total_bytes <= MAX_CONTENT_BYTES:
        return
    largest_bytes, largest = max(sizes)
    raise TaskError(
        f"{what} has {len(files)} files and {total_bytes / MIB:.1f} MiB, which is more than the"
        f" {MAX_FILES} files and {MAX_CONTENT_BYTES // MIB} MiB that are shipped; the largest is"
        f" {largest} with {largest_bytes / MIB:.1f} MiB",
        remedy="keep data outside and name its directory in [task], or install the package on the"
        " workers and submit with --no-ship",
    )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PackageFile:
    """One file: its name in the archive, and where it lies."""

    name: str
    path: Path


def package_files(source: Source) -> list[PackageFile]:
    """All files of a package or module, by name; links within it as the files they lead to.

    Raises:
        TaskError: something in it is no file, leads out of it, or cannot be looked at.
    """
    assert source.path is not None
    try:
        if not source.path.is_dir():
            return [PackageFile(name=_module_file(source.name, source.path), path=source.path)]
        return sorted(_below(source.path, source.path.resolve(), source.name))
    except OSError as error:
        raise TaskError(f"{error.filename} cannot be read: {error.strerror}") from None


def source_digest(sources: Iterable[Source]) -> str:
    """sha256 over names and contents of the Python files; empty where there are none.

    Raises:
        TaskError: a file cannot be read.
    """
    total = hashlib.sha256()
    count = 0
    found = [one for source in sources for one in _code_files(source.path, source.name)]
    for name, path in sorted(found):
        try:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise TaskError(f"{path} cannot be read: {error.strerror}") from None
        total.update(f"{content} {name}\n".encode("utf-8", "surrogateescape"))
        count += 1
    return total.hexdigest() if count else ""


def _below(folder: Path, root: Path, name: str) -> Iterator[PackageFile]:
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.name.startswith(".") or entry.name == _CACHE or entry.name.endswith(_BYTE_CODE):
            continue
        path, inner = folder / entry.name, f"{name}/{entry.name}"
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _below(path, root, inner)
        elif stat.S_ISREG(mode):
            yield PackageFile(name=inner, path=path)
        else:
            yield PackageFile(name=inner, path=_linked(path, mode, root))


def _linked(path: Path, mode: int, root: Path) -> Path:
    if not stat.S_ISLNK(mode):
        raise TaskError(f"{path} is neither a file nor a directory", remedy=_INSTEAD)
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(root):
        raise TaskError(f"{path} is a link that leads out of the package", remedy=_INSTEAD)
    if not target.is_file():
        raise TaskError(f"{path} is a link to something that is not a file", remedy=_INSTEAD)
    return target


def _module_file(name: str, path: Path) -> str:
    """A module's file as an import finds it, also where a link of that name leads to another."""
    return f"{name}{_SOURCE_CODE}" if path.suffix == _SOURCE_CODE else path.name


def _code_files(path: Path | None, name: str) -> Iterator[tuple[str, Path]]:
    """Only Python files matter here, and no link to a directory is followed."""
    if path is None:
        return
    if path.is_file():
        yield _module_file(name, path), path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = [one for one in folders if one != _CACHE and not one.startswith(".")]
        inner = os.path.relpath(folder, path)
        for file in files:
            if file.endswith(_SOURCE_CODE) and not file.startswith("."):
                yield os.path.normpath(f"{name}/{inner}/{file}"), Path(folder, file)


def unpack(content: bytes | bytearray, directory: Path) -> None:
    """Unpack a verified archive into a new directory; files can be read, not written.

    Raises:
        TaskError: the archive holds what a package must not hold; what was made stays, and is the
            caller's to remove.
        OSError: the disk is at fault, or a name is too long for it.
    """
    members = _members(content)
    directory.mkdir(mode=0o755)
    for name, body in members:
        target = directory / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        except (FileExistsError, NotADirectoryError):
            raise _unfit(f"it holds {name!r} twice") from None
        with synced(os.fdopen(descriptor, "wb")) as file:
            file.write(body)
    for folder, _folders, _files in os.walk(directory):
        Path(folder).chmod(0o555)


def _members(content: bytes | bytearray) -> list[tuple[str, bytes]]:
    """Name and content of every file; directories follow from the names."""
    found: list[tuple[str, bytes]] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                parts = member.name.split("/")
                if not {"", ".", ".."}.isdisjoint(parts) or "\0" in member.name:
                    raise _unfit(f"{member.name[:200]!r} is not a name inside it")
                if member.type not in _FILE_TYPES or member.sparse is not None:
                    raise _unfit(f"{member.name[:200]!r} is not a plain file")
                body = tar.extractfile(member)
                assert body is not None
                found.append((member.name, body.read()))
    except _TAR_ERRORS as error:
        raise _unfit(f"it is not an archive: {error}") from None
    return found


def _unfit(why: str) -> TaskError:
    return TaskError(f"the package was not created by dtd: {why}", remedy="submit the job again")


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

    Raises:
        TaskError: it is damaged, unfit, or cannot be written.
    """
    place = directory / checked_digest(digest)
    check_transfer("package", hashlib.sha256(content).hexdigest(), digest)
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
