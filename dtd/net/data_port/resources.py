"""Resources, which others can fetch from a worker: each is a list of blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROBE_SCOPE: Final = "measure/67108864"
"""The zeros that a worker may fetch to test and measure its link to another worker."""
Reader = Callable[[int, int], "bytes | memoryview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Bytes that may be fetched: `read(offset, length)` returns a range.

    Attributes:
        in_memory: reading never blocks.
        item_bytes: width of the elements as which it is coded.  Files have several: most of their
            elements are float32, and of those of 16 bits every second one is shortened.
    """

    name: str
    size_bytes: int
    read: Reader
    in_memory: bool = False
    item_bytes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The resource that one FETCH_OPEN opens."""

    manifest: bytes
    blobs: Sequence[Blob]


def memory_blob(name: str, view: memoryview, item_bytes: int) -> Blob:
    """A blob in memory; its ranges are not copied."""
    return Blob(
        name=name,
        size_bytes=len(view),
        read=lambda offset, length: view[offset : offset + length],
        in_memory=True,
        item_bytes=item_bytes,
    )


def file_blob(path: Path) -> Blob:
    """A blob in a file."""

    def read(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return Blob(name=path.name, size_bytes=path.stat().st_size, read=read)


_ZEROS: Final = memoryview(bytes(4 * 1024 * 1024))
"""As many as a range may have; all clients share them."""

ZEROS: Final = Resource(
    manifest=b"",
    blobs=[
        Blob(
            name="zeros",
            size_bytes=int(PROBE_SCOPE.rpartition("/")[2]),
            read=lambda _offset, length: _ZEROS[:length],
            in_memory=True,
        )
    ],
)
