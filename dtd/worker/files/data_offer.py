"""Data that this worker offers to others: what they ask of its data port, and what is here of it.

The resource "data/DIGEST" has three blobs: the manifest, a bitmap of the chunks that are here, and
the row of all files' bytes, of which only those chunks can be read.  From any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dtd.datasets.cache import Content
from dtd.datasets.manifest import CHUNK_BYTES, Manifest
from dtd.net.data_port.resources import Blob, Resource

PREFIX: Final = "data/"

MANIFEST, BITMAP, CONTENT = range(3)
"""The numbers of the blobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Data that others may fetch; `bitmap` has a bit for each chunk that is here."""

    content: Content
    bitmap: bytes | bytearray

    def resource(self) -> Resource:
        """The blobs, as the data port serves them."""
        manifest = self.content.manifest
        encoded, bitmap = manifest.encoded, self.bitmap
        return Resource(
            manifest=b"",
            blobs=[
                Blob(
                    name="manifest",
                    size_bytes=len(encoded),
                    read=lambda offset, length: encoded[offset : offset + length],
                    in_memory=True,
                ),
                Blob(
                    name="chunks",
                    size_bytes=len(bitmap),
                    read=lambda offset, length: bytes(bitmap[offset : offset + length]),
                    in_memory=True,
                ),
                Blob(name="content", size_bytes=manifest.size_bytes, read=self._read),
            ],
        )

    def _read(self, offset: int, length: int) -> bytes:
        chunks = range(offset // CHUNK_BYTES, -(-(offset + length) // CHUNK_BYTES))
        if not all(has(self.bitmap, one) for one in chunks):
            raise OSError("these bytes are not here yet")
        return self.content.read(offset, length)


def all_chunks(manifest: Manifest) -> bytes:
    """The bitmap of complete data."""
    return b"\xff" * -(-len(manifest.chunks) // 8)


def has(bitmap: bytes | bytearray, chunk: int) -> bool:
    """Whether a chunk is there."""
    return bool(bitmap[chunk // 8] >> chunk % 8 & 1)


def mark(bitmap: bytearray, chunk: int) -> None:
    """A chunk is there from now on."""
    bitmap[chunk // 8] |= 1 << chunk % 8
