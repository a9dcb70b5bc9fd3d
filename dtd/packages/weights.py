"""A file of weights from outside: its required form, and its name.

A safetensors file, known by its sha256.  Nothing here needs torch; whether the weights fit a model
is found out by the workers.  Blocking.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.errors import TaskError, UsageError
from dtd.json_reader import read_json
from dtd.packages.limits import MAX_WEIGHTS_BYTES, MIB, short

ENDING: Final = ".safetensors"
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 16 * MIB


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


def verify_file(path: Path, digest: str) -> None:
    """Check that a file has the bytes that the digest names.

    Raises:
        TaskError: it has not.
    """
    found = digest_of_file(path)
    if found != digest:
        raise TaskError(
            f"weights {short(digest)} were damaged during transfer: the bytes have the sha256"
            f" {short(found)}",
            remedy="submit the job again",
        )


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
