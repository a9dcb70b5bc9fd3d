"""Copies of data on this worker's disk, and drafts of those that are being fetched.

    <state directory>/data/
        <digest>/manifest, content/...          a complete copy
        <digest>.part/manifest, content/..., chunks    a draft: the numbers of its verified chunks
        scans/<hash of a path>                  manifest of data that were read, and their times

A copy is not synced to the disk: it is read and hashed again after the host was started anew.
Complete copies that are not in use go when there is no room, the least recently used first.
Blocking; on the training thread, but for `read`, which any thread calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dtd.datasets.manifest import (
    CHUNK_BYTES,
    MAX_MANIFEST_BYTES,
    Found,
    Manifest,
    Progress,
    look,
    parse,
    scan,
)
from dtd.errors import TaskError
from dtd.text.shown import shown_bytes

MANIFEST: Final = "manifest"
CONTENT: Final = "content"
CHUNKS: Final = "chunks"
PART: Final = ".part"
SCANS: Final = "scans"
MAX_SCANS: Final = 64
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NUMBER: Final = struct.Struct("<I")


class Content:
    """Files of data below one directory, which may be renamed meanwhile."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.manifest = manifest
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """A range of the row of all files' bytes.

        Raises:
            OSError: a file is gone, or shorter than it was.
        """
        parts = []
        for path, within, count in self.manifest.pieces(offset, length):
            file = os.open(path, os.O_RDONLY, dir_fd=self._descriptor)
            try:
                parts.append(os.pread(file, count, within))
            finally:
                os.close(file)
            if len(parts[-1]) != count:
                raise OSError(f"{self.root / path} has become shorter")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: memoryview) -> None:
        """Write a range; files are made with their first byte.

        Raises:
            OSError: there is no room, or the disk fails.
        """
        for path, within, count in self.manifest.pieces(offset, len(data)):
            flags = os.O_WRONLY | os.O_CREAT
            file = os.open(path, flags, 0o644, dir_fd=self._descriptor)
            try:
                while count:
                    written = os.pwrite(file, data[:count], within)
                    data, within, count = data[written:], within + written, count - written
            finally:
                os.close(file)

    def verifies(self, chunk: int, data: bytes | memoryview) -> bool:
        return hashlib.sha256(data).hexdigest() == self.manifest.chunks[chunk]


class Draft:
    """A copy that is being fetched; what was fetched and verified before is kept.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, place: Path, manifest: Manifest, progress: Progress) -> None:
        self._place = place
        root = place / CONTENT
        root.mkdir(parents=True, exist_ok=True)
        (place / MANIFEST).write_bytes(manifest.encoded)
        for directory in {str(Path(path).parent) for path, _ in manifest.files}:
            (root / directory).mkdir(parents=True, exist_ok=True)
        for path, size in manifest.files:
            if not size:
                (root / path).touch()
        self.content = Content(root, manifest)
        self.have = {chunk for chunk in self._listed() if self._is_here(chunk, progress)}
        self._log = (place / CHUNKS).open("wb", buffering=0)
        self._log.write(b"".join(map(_NUMBER.pack, sorted(self.have))))

    def add(self, chunk: int, data: memoryview) -> None:
        """Keep a verified chunk.

        Raises:
            OSError: there is no room, or the disk fails.
        """
        self.content.write(chunk * CHUNK_BYTES, data)
        self._log.write(_NUMBER.pack(chunk))
        self.have.add(chunk)

    def close(self) -> None:
        """Let go of it; it is continued later."""
        self._log.close()
        self.content.close()

    def publish(self) -> None:
        """Give it the name of a complete copy; the content stays open."""
        self._log.close()
        (self._place / CHUNKS).unlink()
        target = self._place.with_suffix("")
        shutil.rmtree(target, ignore_errors=True)
        self._place.rename(target)
        self.content.root = target / CONTENT

    def _listed(self) -> set[int]:
        try:
            log = (self._place / CHUNKS).read_bytes()
        except OSError:
            return set()
        whole = log[: len(log) - len(log) % _NUMBER.size]
        chunks = len(self.content.manifest.chunks)
        return {chunk for (chunk,) in _NUMBER.iter_unpack(whole) if chunk < chunks}

    def _is_here(self, chunk: int, progress: Progress) -> bool:
        length = self.content.manifest.chunk_bytes(chunk)
        progress()
        try:
            return self.content.verifies(chunk, self.content.read(chunk * CHUNK_BYTES, length))
        except OSError:
            return False


# --- the manifest of what lies on a disk ----------------------------------------------------------


class Scans:
    """Manifests of data that were read: what has kept its times since is not read again."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def content(self, path: Path, progress: Progress, *, mark: str = "") -> Content:
        """The data at a path.

        Raises:
            TaskError: something there cannot be data, see `look`, or the files change.
            OSError: they cannot be read.
        """
        root, single, found = look(path)
        manifest = self._known(path, _stamp(mark, found))
        if manifest is None:
            manifest = scan(root, single, found, progress)
            if look(path)[2] != found:
                raise TaskError(
                    f"files in {path} have changed while they were read",
                    remedy="submit the job when the data are complete",
                )
            self.remember(path, manifest, found, mark=mark)
        return Content(root, manifest)

    def remember(
        self, path: Path, manifest: Manifest, found: Sequence[Found], *, mark: str = ""
    ) -> None:
        """Files that were found at this path have this manifest; if lost, they are read again."""
        with contextlib.suppress(OSError):
            self._place.mkdir(parents=True, exist_ok=True)
            memos = sorted(self._place.iterdir(), key=lambda one: one.stat().st_mtime_ns)
            for old in memos[: max(0, len(memos) - MAX_SCANS + 1)]:
                old.unlink()
            draft = self._memo(path).with_suffix(PART)
            draft.write_bytes(_stamp(mark, found).encode() + manifest.encoded)
            draft.rename(self._memo(path))

    def _known(self, path: Path, stamp: str) -> Manifest | None:
        try:
            memo = self._memo(path).read_bytes()
            if memo[: len(stamp)] != stamp.encode():
                return None
            os.utime(self._memo(path))
            return parse(memo[len(stamp) :])
        except (OSError, TaskError):
            return None

    def _memo(self, path: Path) -> Path:
        return self._place / hashlib.sha256(os.fsencode(path)).hexdigest()


def _stamp(mark: str, found: Sequence[Found]) -> str:
    return hashlib.sha256(json.dumps([mark, found]).encode()).hexdigest()


# --- the cache -----------------------------------------------------------------------------------


class Copy(NamedTuple):
    """A copy or a draft in the cache; `used_ns` is when it was last used."""

    name: str
    size_bytes: int
    used_ns: int


def what_goes(
    copies: Sequence[Copy],
    *,
    in_use: Collection[str],
    need_bytes: int,
    limit_bytes: int,
    free_bytes: int,
) -> list[str]:
    """The copies that have to go so that there is room, the least recently used first.

    Raises:
        TaskError: there is no room even without them; the message follows "data NAME: ".
    """
    kept = sum(copy.size_bytes for copy in copies)
    goes = []
    candidates = sorted((one.used_ns, one) for one in copies if one.name not in in_use)
    for _, copy in candidates:
        if kept + need_bytes <= limit_bytes and need_bytes <= free_bytes:
            break
        goes.append(copy.name)
        kept -= copy.size_bytes
        free_bytes += copy.size_bytes
    if need_bytes > free_bytes:
        raise TaskError(
            f"{shown_bytes(need_bytes)} are needed, and the disk has {shown_bytes(free_bytes)}",
            remedy="free space on that worker's disk, or put the data there by hand",
        )
    if kept + need_bytes > limit_bytes:
        used = f", of which {shown_bytes(kept)} are in use" if kept else ""
        raise TaskError(
            f"{shown_bytes(need_bytes)} are needed, and the cache holds {shown_bytes(limit_bytes)}"
            f"{used}",
            remedy="raise data_cache_gib of that worker, or put the data there by hand",
        )
    return goes


class Cache:
    """The copies of one worker."""

    def __init__(self, place: Path, limit_bytes: int) -> None:
        self._place = place
        self._limit_bytes = limit_bytes
        self.scans = Scans(place / SCANS)
        self._boot = _BOOT_ID.read_text().strip()

    def copy(self, digest: str, progress: Progress) -> Content | None:
        """A complete copy, if there is one that is as it was fetched.

        Raises:
            OSError: it cannot be read.
        """
        place = self._place / digest
        try:
            path = _path(place / CONTENT, parse(_read(place / MANIFEST)))
            content = self.scans.content(path, progress, mark=self._boot)
        except (FileNotFoundError, NotADirectoryError, TaskError):
            return None
        if content.manifest.digest != digest:
            content.close()
            return None
        os.utime(place)
        return content

    def draft(self, manifest: Manifest, *, in_use: Collection[str], progress: Progress) -> Draft:
        """A draft, continued or new; copies that are not in use make room.

        Raises:
            TaskError: there is no room; the message follows "data NAME: ".
            OSError: it cannot be written.
        """
        place = self._place / f"{manifest.digest}{PART}"
        self._place.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._place / manifest.digest, ignore_errors=True)  # not as it was fetched
        others = [one for one in self._copies() if one.name != place.name]
        for name in what_goes(
            others,
            in_use=in_use,
            need_bytes=manifest.size_bytes,
            limit_bytes=self._limit_bytes,
            free_bytes=shutil.disk_usage(self._place).free + _taken_bytes(place),
        ):
            shutil.rmtree(self._place / name)
        return Draft(place, manifest, progress)

    def publish(self, draft: Draft) -> None:
        """Make a complete draft a copy.

        Raises:
            OSError: it cannot be renamed.
        """
        draft.publish()
        path = path_of(draft.content)
        self.scans.remember(path, draft.content.manifest, look(path)[2], mark=self._boot)

    def _copies(self) -> Iterator[Copy]:
        for path in self._place.iterdir():
            if path.name != SCANS:
                yield Copy(path.name, _taken_bytes(path), path.stat().st_mtime_ns)


def path_of(content: Content) -> Path:
    """The path of data, as a task gets it: their directory, or their only file."""
    return _path(content.root, content.manifest)


def _path(root: Path, manifest: Manifest) -> Path:
    return root / manifest.files[0][0] if manifest.single else root


def _taken_bytes(place: Path) -> int:
    """Bytes on the disk below a directory; 0 if there is none."""
    return sum(512 * path.lstat().st_blocks for path in place.rglob("*"))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_MANIFEST_BYTES + 1)
