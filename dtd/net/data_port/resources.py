"""Resources, which others can fetch from a worker: each is a list of blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.errors import RequestRefused

MEASURE_PREFIX: Final = "measure/"
MAX_MEASURED_BYTES: Final = 64 * 1024 * 1024
PROBE_SCOPE: Final = f"{MEASURE_PREFIX}{MAX_MEASURED_BYTES}"
"""The resource that a worker may fetch to test and measure its link to another worker."""

ZEROS_BYTES: Final = 4 * 1024 * 1024
_ZEROS: Final = memoryview(bytes(ZEROS_BYTES))

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


def zeros(name: str) -> Resource:
    """The resource "measure/BYTES": BYTES zeros, to measure a link without touching any state.

    All ranges come from one small buffer that all clients share.

    Raises:
        RequestRefused: BYTES is not a number, or is too large.
    """
    digits = name.removeprefix(MEASURE_PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_MEASURED_BYTES))):
        raise RequestRefused(f"{name!r} does not state a number of bytes")
    size_bytes = int(digits)
    if not 0 < size_bytes <= MAX_MEASURED_BYTES:
        raise RequestRefused(f"{name!r} is not in 1..{MAX_MEASURED_BYTES} bytes")
    blob = Blob(name="zeros", size_bytes=size_bytes, read=_read_zeros, in_memory=True)
    return Resource(manifest=b"", blobs=[blob])


def _read_zeros(offset: int, length: int) -> memoryview:
    """Ranges are checked against the blob and against the largest range before."""
    del offset
    return _ZEROS[:length]
