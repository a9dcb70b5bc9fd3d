"""A package's files as one archive whose bytes depend on names and contents alone.

A tar file: members sorted by name, no owner, no time, one mode.  The same code has the same digest
wherever and whenever it is packed, so it is sent and kept once.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtd.errors import TaskError
from dtd.packages.limits import MAX_CONTENT_BYTES, MAX_FILES, MIB
from dtd.packages.source import Source
from dtd.packages.tree import PackageFile, package_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A packed package: its bytes, their sha256, and how many files are in it."""

    content: bytes
    digest: str
    files: int


def pack(source: Source) -> Archive:
    """Pack a package or module.

    Raises:
        TaskError: it is too large, or holds something that cannot be packed.
    """
    files = package_files(source)
    _check_sizes(source, files)
    packed = io.BytesIO()
    contents = {file.name: _read(file.path) for file in files}
    if len(files) != 1 or "/" in files[0].name:
        # Without one, a package of that name which a worker has installed would be taken instead.
        contents.setdefault(f"{source.name}/__init__.py", b"")
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


def _check_sizes(source: Source, files: Sequence[PackageFile]) -> None:
    """Looked at before anything is read: the directory may hold a data set."""
    sizes = [(file.path.stat().st_size, file.name) for file in files]
    total_bytes = sum(size for size, _ in sizes)
    if len(files) <= MAX_FILES and total_bytes <= MAX_CONTENT_BYTES:
        return
    largest_bytes, largest = max(sizes)
    raise TaskError(
        f"package {source.name} in {source.path} has {len(files)} files and"
        f" {total_bytes / MIB:.1f} MiB, which is more than the {MAX_FILES} files and"
        f" {MAX_CONTENT_BYTES // MIB} MiB that are shipped; the largest is {largest} with"
        f" {largest_bytes / MIB:.1f} MiB",
        remedy="keep data outside and name its directory in [task], or install the package on the"
        " workers and submit with --no-ship",
    )
