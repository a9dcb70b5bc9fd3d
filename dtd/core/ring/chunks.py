"""How a bucket is cut: N segments, one per rank, and each into chunks; or not at all.

Pure arithmetic over element indices, shared by the ring, the simulation and protocol.md ("Two ways
round", "Segments and chunks").  Every segment has at least one chunk, possibly empty, so that even
a bucket without elements goes round the ring and still means that everybody took part.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

EXCHANGE_BYTES: Final = 256 * 1024
"""Most bytes that one link carries for a bucket that goes round whole: (N - 1) * its size.

A bucket in segments sends 2 (N - 1) / N of its size and 2 (N - 1) frames, one whole N / 2 times
these bytes in half the frames.  On loopback, where a frame costs more time than its bytes, whole
buckets were 1.5 to 1.8 times as fast at 4 to 32 KiB; two ranks gain up to 64 KiB, and eight even at
448 KiB a link.  At 1 Gbit/s these take 3.6 ms, more than the hops that they save, so the limit is
lower unless the whole ring is on one host.
"""

ONE_HOST_EXCHANGE_BYTES: Final = 512 * 1024
"""The same where all ranks are on one host."""

MAX_EXCHANGED: Final = 16
"""Most buckets of a step that go round whole: each needs memory for all N contributions."""


class Operation(enum.Enum):
    """What an exchange makes of a bucket, and on which ranks.

    SUM and MAXIMUM travel alike: what is done with two contributions is the bucket's own addition.
    The halves go in segments always.  A reduce-scatter and then an all-gather of the same bucket
    are a sum.
    """

    SUM = "sum"
    """Every rank ends with the sum of all contributions."""
    MAXIMUM = "maximum"
    """Every rank ends with the largest contribution to each element."""
    REDUCE_SCATTER = "reduce_scatter"
    """Every rank ends with the sum of its own segment; the rest holds no meaning."""
    ALL_GATHER = "all_gather"
    """Every rank gives its own segment, and ends with all."""

    @property
    def is_half(self) -> bool:
        """Whether it takes N - 1 hops in segments and not twice as many."""
        return self in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShape:
    """What the ring needs to know of a bucket.

    Attributes:
        elements: number of elements; may be zero or smaller than the world.
        item_bytes: size of one element in bytes.
        operation: what is made of it.
    """

    elements: int
    item_bytes: int
    operation: Operation = Operation.SUM

    @property
    def size_bytes(self) -> int:
        """Size of the whole bucket."""
        return self.elements * self.item_bytes


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

    def own(self, rank: int) -> tuple[int, int]:
        """Element range of a rank's own segment: whose sum is complete there, and given by it."""
        return self.segment((rank + 1) % self.world_size)

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


def exchanged(
    shapes: Sequence[BucketShape], *, world_size: int, chunk_bytes: int, one_host: bool = False
) -> frozenset[int]:
    """Which of a step's buckets go round whole (`dtd.core.ring.exchange`), by their index.

    Those that are small and fit in one chunk.  Of many, the last few: those before them travel
    during backward, while for the last ones the step may have to wait.
    """
    if world_size == 1:
        return frozenset()
    link_bytes = ONE_HOST_EXCHANGE_BYTES if one_host else EXCHANGE_BYTES
    limit_bytes = min(chunk_bytes, link_bytes // (world_size - 1))
    small = [
        index
        for index, shape in enumerate(shapes)
        if shape.size_bytes <= limit_bytes and not shape.operation.is_half
    ]
    return frozenset(small[-MAX_EXCHANGED:])
