"""The manifest of a job's data: names, sizes and hashes, from which follows the data's digest.

Data are a directory or one file.  All files in the order of their names are one row of bytes, cut
into chunks of 4 MiB; a chunk may be a part of a large file or many small ones.  The digest is the
SHA-256 of the manifest, so a manifest that was received is verified by it, and each chunk by its
hash in the manifest.  A received manifest leads out of no directory.

Reading is blocking; `dtd.worker.files.datasets` runs it on the training thread.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from dtd.errors import TaskError
from dtd.text.json_reader import read_json

CHUNK_BYTES: Final = 4 * 1024 * 1024
MAX_FILES: Final = 500_000
MAX_BYTES: Final = 1 << 40
MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
MAX_PATH_BYTES: Final = 4096

Progress = Callable[[], None]


class Piece(NamedTuple):
    """A part of one file."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of the data, and the hashes of their chunks.

    Attributes:
        single: whether they are one file, not a directory.
        files: relative path and size of each file, in the order of the paths.
        chunks: SHA-256 of each chunk, in hex.
    """

    single: bool
    files: tuple[tuple[str, int], ...]
    chunks: tuple[str, ...]
    encoded: bytes = field(init=False, repr=False)
    _starts: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Encode it, and find where each file begins."""
        content = {"single": self.single, "files": self.files, "chunks": self.chunks}
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        sizes = itertools.accumulate((size for _, size in self.files), initial=0)
        object.__setattr__(self, "encoded", text.encode())
        object.__setattr__(self, "_starts", tuple(sizes))

    @property
    def digest(self) -> str:
        """The name of these data everywhere."""
        return hashlib.sha256(self.encoded).hexdigest()

    @property
    def size_bytes(self) -> int:
        return self._starts[-1]

    def chunk_bytes(self, chunk: int) -> int:
        """Bytes of one chunk; only the last one is shorter."""
        return min(CHUNK_BYTES, self.size_bytes - chunk * CHUNK_BYTES)

    def pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """The parts of files that a range of the row of bytes consists of."""
        index = bisect.bisect_right(self._starts, offset) - 1
        while length > 0:
            path, size = self.files[index]
            within = offset - self._starts[index]
            taken = min(length, size - within)
            if taken:
                yield Piece(path, within, taken)
            offset, length, index = offset + taken, length - taken, index + 1


def parse(encoded: bytes) -> Manifest:
    """The manifest in bytes that another worker, or the disk, has delivered.

    Raises:
        TaskError: it is none.
    """
    try:
        content = read_json(encoded, max_bytes=MAX_MANIFEST_BYTES)
        manifest = _checked(content)
    except (ValueError, TypeError, KeyError) as error:
        raise TaskError(f"not a manifest of data: {error}") from None
    if manifest.encoded != encoded:
        raise TaskError("not a manifest of data: it is written in another way")
    return manifest


def _checked(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.keys() != {"single", "files", "chunks"}:
        raise ValueError("it has other keys")
    single, listed, chunks = content["single"], content["files"], content["chunks"]
    if type(single) is not bool or not isinstance(listed, list) or not isinstance(chunks, list):
        raise ValueError("its keys have other types")
    if len(listed) > MAX_FILES or (single and len(listed) != 1):
        raise ValueError(f"it lists {len(listed)} files")
    files = tuple(_checked_file(one) for one in listed)
    size_bytes = sum(size for _, size in files)
    if size_bytes > MAX_BYTES or len(chunks) != -(-size_bytes // CHUNK_BYTES):
        raise ValueError(f"{len(chunks)} chunks do not make {size_bytes} bytes")
    return Manifest(single=single, files=files, chunks=tuple(chunks))


def _checked_file(entry: Any) -> tuple[str, int]:
    path, size = entry
    if not isinstance(path, str) or type(size) is not int or not 0 <= size <= MAX_BYTES:
        raise ValueError(f"{str(entry)[:100]!r} is not a file and its size")
    parts = path.split("/")
    if (
        not 0 < len(path.encode()) <= MAX_PATH_BYTES  # surrogates have no UTF-8: ValueError
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ValueError(f"{path[:100]!r} is not the path of a file")
    return path, size


def first_difference(one: Manifest, other: Manifest) -> str:
    """The first file in which two data differ, in words that follow "it differs in"."""
    for mine, theirs in zip(one.files, other.files, strict=False):
        if mine != theirs:
            return min(mine, theirs)[0]
    if len(one.files) != len(other.files):
        return f"its number of files, {len(one.files)} instead of {len(other.files)}"
    for chunk, hashes in enumerate(zip(one.chunks, other.chunks, strict=True)):
        if hashes[0] != hashes[1]:
            start = chunk * CHUNK_BYTES
            paths = [piece.path for piece in one.pieces(start, one.chunk_bytes(chunk))]
            return paths[0] if len(paths) == 1 else f"{paths[0]}, or a file up to {paths[-1]}"
    return "whether it is a directory or a file"


# --- the data on a disk --------------------------------------------------------------------------


class Found(NamedTuple):
    """A file that was found: its path below the root, and what changes when its content does."""

    path: str
    size: int
    mtime_ns: int


def look(path: Path) -> tuple[Path, bool, list[Found]]:
    """The root, whether the data are one file, and all files in their order, without reading them.

    Raises:
        TaskError: there is something that is not a regular file, or a link out of the directory.
        OSError: they cannot be read.
    """
    root = Path(os.path.realpath(path, strict=True))  # `resolve` knows no OSError for a loop
    single = not root.is_dir()
    found = [_regular(root, root.name)] if single else _below(root)
    size_bytes = sum(one.size for one in found)
    if size_bytes > MAX_BYTES:
        raise TaskError(
            f"{root} has {size_bytes} bytes, more than {MAX_BYTES}",
            remedy="put it on every host, and let the task take its path as an argument",
        )
    return root.parent if single else root, single, found


def _below(root: Path) -> list[Found]:
    found: list[Found] = []
    for place, directories, names in os.walk(root, onerror=_raise):
        for name in directories:
            if (Path(place) / name).is_symlink():
                raise TaskError(
                    f"{Path(place) / name} is a link to a directory",
                    remedy="put the directory itself there, or name its parent in [data]",
                )
        for name in names:
            file = Path(place) / name
            if file.is_symlink() and not Path(os.path.realpath(file)).is_relative_to(root):
                raise TaskError(
                    f"{file} is a link that leads out of {root}",
                    remedy="copy the file there, or name a directory that has both in [data]",
                )
            found.append(_regular(file, str(file.relative_to(root))))
        if len(found) > MAX_FILES:
            raise TaskError(
                f"{root} has more than {MAX_FILES} files", remedy="pack them into archives"
            )
    return sorted(found, key=lambda one: os.fsencode(one.path))


def _raise(error: OSError) -> None:
    raise error


def _regular(file: Path, name: str) -> Found:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise TaskError(f"{file} is no regular file", remedy="take it out of the data")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise TaskError(f"{str(file)!a}: its name is not UTF-8", remedy="rename it") from None
    return Found(name, status.st_size, status.st_mtime_ns)


def scan(root: Path, single: bool, found: Sequence[Found], progress: Progress) -> Manifest:
    """Read and hash all files.

    Raises:
        TaskError: a file changes meanwhile.
        OSError: one cannot be read.
    """
    chunks = []
    hasher, room = hashlib.sha256(), CHUNK_BYTES
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for path, size, _ in found:
        left = size
        with (root / path).open("rb", buffering=0) as file:
            while left:
                count = file.readinto(buffer[: min(left, room)])
                if not count:
                    raise TaskError(
                        f"{root / path} has become shorter while it was read",
                        remedy="submit the job when the data are complete",
                    )
                hasher.update(buffer[:count])
                left, room = left - count, room - count
                if not room:
                    chunks.append(hasher.hexdigest())
                    hasher, room = hashlib.sha256(), CHUNK_BYTES
                    progress()
    if room < CHUNK_BYTES:
        chunks.append(hasher.hexdigest())
    files = tuple((one.path, one.size) for one in found)
    return Manifest(single=single, files=files, chunks=tuple(chunks))
