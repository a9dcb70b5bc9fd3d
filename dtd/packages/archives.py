"""Files that travel to workers by way of the coordinator: archives of packages, and weights.

Each lies in the coordinator's state directory under its digest once its bytes have been verified;
before that it is a part that grows from where it ends.  A file of weights is a safetensors file;
nothing here needs torch: whether the weights fit a model is found out by the workers.  Blocking;
belongs in the store's thread, one call at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.errors import RequestRefused, UsageError
from dtd.host.durable import make_directory, sync_directory
from dtd.packages.limits import (
    CHUNK_BYTES,
    MAX_ARCHIVE_BYTES,
    MAX_ARCHIVES_KEPT,
    MAX_ARCHIVES_KEPT_BYTES,
    MAX_WEIGHTS_BYTES,
    MAX_WEIGHTS_KEPT,
    MAX_WEIGHTS_KEPT_BYTES,
    MIB,
    check_transfer,
    checked_digest,
    short,
)
from dtd.text.json_reader import read_json

ENDING: Final = ".safetensors"
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 16 * MIB
PART: Final = ".part"

InUse = Collection[str]
"""The digests of packages that must not be forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFile:
    """A file of weights: where it is, its sha256 in hex, and its size."""

    path: Path
    digest: str
    size_bytes: int


def read_weights_file(path: Path) -> WeightsFile:
    """Look at a file before it is brought to the coordinator.

    Raises:
        UsageError: it cannot be read, is not a safetensors file, or is too large.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_WEIGHTS_BYTES:
            raise UsageError(
                f"{path} has {size_bytes} bytes, more than {MAX_WEIGHTS_BYTES}",
                remedy="put it on all workers, and have the task's build_model() load it",
            )
        _check_header(path, size_bytes)
        return WeightsFile(path=path, digest=digest_of_file(path), size_bytes=size_bytes)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def digest_of_file(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_file(path: Path, digest: str, *, noun: str = "weights") -> None:
    """Check that a file has the bytes that the digest names.

    Raises:
        TaskError: it has not.
    """
    check_transfer(noun, digest_of_file(path), digest)


def _check_header(path: Path, size_bytes: int) -> None:
    with path.open("rb") as file:
        length_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        sound = 0 < length_bytes <= min(_MAX_HEADER_BYTES, size_bytes - _LENGTH_BYTES)
        header = file.read(length_bytes) if sound else b""
    try:
        sound = isinstance(read_json(header, max_bytes=_MAX_HEADER_BYTES), dict)
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(
            f"{path} is not a safetensors file",
            remedy="write it with safetensors.torch.save_file(model.state_dict(), FILE)",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file: its name in messages, its ending, and its bounds."""

    noun: str
    ending: str
    max_bytes: int
    max_kept: int
    max_kept_bytes: int


PACKAGE: Final = Kind(
    noun="package",
    ending=".tar",
    max_bytes=MAX_ARCHIVE_BYTES,
    max_kept=MAX_ARCHIVES_KEPT,
    max_kept_bytes=MAX_ARCHIVES_KEPT_BYTES,
)
WEIGHTS: Final = Kind(
    noun="weights",
    ending=ENDING,
    max_bytes=MAX_WEIGHTS_BYTES,
    max_kept=MAX_WEIGHTS_KEPT,
    max_kept_bytes=MAX_WEIGHTS_KEPT_BYTES,
)


class Archives:
    """The archives of one coordinator."""

    def __init__(self, directory: Path, kind: Kind = PACKAGE) -> None:
        self._directory = directory
        self.kind = kind

    def has(self, digest: str) -> bool:
        """Whether the package is here whole; it counts as the newest from now on."""
        whole = self._whole(digest)
        if not whole.is_file():
            return False
        os.utime(whole)
        return True

    def put(self, digest: str, *, size: int, offset: int, piece: bytes, in_use: InUse) -> int:
        """Take a piece in; one that does not follow the stored ones is ignored, as is an empty one.

        Returns:
            How many bytes are here; `size` when the archive is whole and verified.

        Raises:
            RequestRefused: it is too large, damaged, or cannot be written.
            TaskError: the digest is none, or does not name these bytes.
        """
        limit = self.kind.max_bytes
        if not 0 < size <= limit:
            raise RequestRefused(f"{self.kind.noun} of {size} bytes: must have 1 to {limit}")
        if self.has(digest):
            return size
        try:
            return self._append(digest, size, offset, piece, in_use)
        except OSError as error:
            raise RequestRefused(
                f"{self.kind.noun} {short(digest)} cannot be stored in {self._directory} on the"
                f" coordinator's host: {error.strerror}",
                remedy="check its disk",
            ) from None

    def piece(self, digest: str, offset: int) -> tuple[int, bytes]:
        """(size of the archive, the piece that begins at `offset`); size 0 when it is not here."""
        try:
            with self._whole(digest).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(offset)
                return size, file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return 0, b""

    def _append(self, digest: str, size: int, offset: int, piece: bytes, in_use: InUse) -> int:
        if not self._directory.is_dir():
            make_directory(self._directory, mode=0o700)
        part = self._directory / f"{digest}{PART}"
        have = part.stat().st_size if part.exists() else 0
        if have > size:  # somebody else was wrong about its size
            part.unlink()
            have = 0
        if offset == have and piece:
            if offset + len(piece) > size:
                raise RequestRefused(
                    f"{self.kind.noun} {short(digest)} is longer than its {size} bytes"
                )
            descriptor = os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(piece)
            have += len(piece)
        if have == size:
            self._complete(part, digest, in_use)
        return have

    def _complete(self, part: Path, digest: str, in_use: InUse) -> None:
        """A job that names it may be written down from now on, so it must outlive the power."""
        try:
            verify_file(part, digest, noun=self.kind.noun)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(self._whole(digest))
        finally:
            part.unlink(missing_ok=True)
        sync_directory(self._directory)
        self._forget_old(in_use)

    def _forget_old(self, in_use: InUse) -> None:
        for ending in (self.kind.ending, PART):
            found = [p for p in self._directory.glob(f"*{ending}") if p.stem not in in_use]
            found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
            room_bytes = self.kind.max_kept_bytes
            for number, path in enumerate(found):
                room_bytes -= path.stat().st_size
                if number >= self.kind.max_kept or room_bytes < 0:
                    path.unlink()

    def _whole(self, digest: str) -> Path:
        return self._directory / f"{checked_digest(digest)}{self.kind.ending}"
