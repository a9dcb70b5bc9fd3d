"""The resource "measure/BYTES": so many zeros, for measuring a link without touching any state.

All of it is one small buffer, shared by whoever fetches.
"""

from __future__ import annotations

from typing import Final

from dtd.errors import RequestRefused
from dtd.net.resource import Blob, Resource

PREFIX: Final = "measure/"
MAX_BYTES: Final = 64 * 1024 * 1024
RANGE_BYTES: Final = 4 * 1024 * 1024
_ZEROS: Final = memoryview(bytes(RANGE_BYTES))


def zeros(name: str) -> Resource:
    """The resource of "measure/BYTES".

    Raises:
        RequestRefused: BYTES is no number of bytes, or too large a one.
    """
    digits = name.removeprefix(PREFIX)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_BYTES))):
        raise RequestRefused(f"{name!r} does not say how many bytes")
    size_bytes = int(digits)
    if not 0 < size_bytes <= MAX_BYTES:
        raise RequestRefused(f"{name!r} is not in 1..{MAX_BYTES} bytes")
    blob = Blob(name="zeros", size_bytes=size_bytes, read=_read, in_memory=True)
    return Resource(manifest=b"", blobs=[blob])


def _read(offset: int, length: int) -> memoryview:
    """Ranges are checked against the blob and against the largest range before."""
    del offset
    return _ZEROS[:length]
