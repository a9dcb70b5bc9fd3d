"""Bytes that a worker lets others fetch, in memory or in files, and a text that describes them.

Served by `dtd.net.fetch_desk`; what the bytes mean is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Reader = Callable[[int, int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes that may be fetched: `read(offset, length)` gives a range.

    `in_memory`: reading cannot block.
    """

    name: str
    size_bytes: int
    read: Reader
    in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What one FETCH_OPEN opens."""

    manifest: bytes
    blobs: Sequence[Blob]


def memory_blob(name: str, view: memoryview) -> Blob:
    """A blob that lies in memory; ranges of it are not copied."""
    return Blob(
        name=name,
        size_bytes=len(view),
        read=lambda offset, length: view[offset : offset + length],
        in_memory=True,
    )


def file_blob(path: Path) -> Blob:
    """A blob that lies in a file."""

    def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return Blob(name=path.name, size_bytes=path.stat().st_size, read=read)
