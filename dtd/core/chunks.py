"""How a bucket is cut: N segments, one per rank, and each segment into chunks.

Pure arithmetic over element indices, shared by the ring, the simulation and protocol.md
("Segments and chunks").  Every segment has at least one chunk, possibly empty, so that even a
bucket without elements goes round the ring and still means that everybody took part.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShape:
    """What the ring needs to know of a bucket.

    Attributes:
        elements: number of elements; may be zero or smaller than the world.
        item_bytes: size of one element in bytes.
    """

    elements: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Segments:
    """The cut of one bucket for one world size.

    Attributes:
        elements: elements of the bucket.
        world_size: number of segments.
        chunk_elements: most elements in one chunk.
    """

    elements: int
    world_size: int
    chunk_elements: int

    def segment(self, index: int) -> tuple[int, int]:
        """Element range [start, stop) of a segment."""
        return (
            self.elements * index // self.world_size,
            self.elements * (index + 1) // self.world_size,
        )

    def chunk_count(self, index: int) -> int:
        """Number of chunks in a segment, at least one."""
        start, stop = self.segment(index)
        return max(1, -(-(stop - start) // self.chunk_elements))

    def chunk(self, index: int, chunk: int) -> tuple[int, int]:
        """Element range [start, stop) of a chunk of a segment."""
        start, stop = self.segment(index)
        begin = start + chunk * self.chunk_elements
        return begin, min(begin + self.chunk_elements, stop)


def cut(shape: BucketShape, *, world_size: int, chunk_bytes: int) -> Segments:
    """Cut a bucket for a world; a chunk never splits an element."""
    return Segments(shape.elements, world_size, max(1, chunk_bytes // shape.item_bytes))
