"""Division of a bucket into N segments, one per rank, and of each into chunks; or not at all.

Pure arithmetic over element indices, shared by the ring, the simulation and protocol.md ("Two ways
round", "Segments and chunks").  Every segment has at least one chunk, possibly empty, so that even
a bucket without elements travels and still proves that every rank took part.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dtd.errors import LocalProtocolError

MAX_EXCHANGED: Final = 16
"""Most buckets of a step that travel whole: each needs memory for all N contributions."""


class Operation(enum.Enum):
    """The operation of an exchange on a bucket, and the ranks that get its result.

    SUM and MAXIMUM travel alike: the bucket's own addition combines two contributions.

    In segments there is one schedule of 2 (N - 1) hops, and an operation is a window of it
    (`BucketShape.window`).  After N - 1 hops each rank has the complete sum of its own segment.
    Each later hop takes the segments one rank further.  The halves always travel in segments.  A
    reduce-scatter and then an all-gather of the same bucket, with equal copies, are a sum: they
    take the same hops and send the same bytes.
    """

    SUM = "sum"
    """Every rank ends with the sum of all contributions."""
    MAXIMUM = "maximum"
    """Every rank ends with the largest contribution to each element."""
    REDUCE_SCATTER = "reduce_scatter"
    """Every rank ends with the sums of its own segment and, with copies, of those of as many ranks
    before it; the rest is undefined."""
    ALL_GATHER = "all_gather"
    """Every rank contributes its own segment, and ends with those of all ranks, or of as many ranks
    before it as there are hops.  With copies it has the segments of that many ranks before it
    already."""

    @property
    def is_half(self) -> bool:
        """Whether it is a part of a sum: it always travels in segments."""
        return self in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShape:
    """The properties of a bucket that the ring needs; equal on all ranks.

    Attributes:
        elements: number of elements; may be zero or smaller than the world.
        item_bytes: size of one element in bytes.
        operation: the operation on it.
        copies: of a half: ranks after the owner of a segment that receive its sum in the
            reduce-scatter, and have it before the all-gather
            (`dtd.engine.shards.Division.held`).  From N - 1 on, these are all ranks: the
            reduce-scatter is a sum, and the all-gather sends nothing.
        hops: of an all-gather: ranks after the owner of a segment that have it in the end; None
            for all ranks.
        bounds: of a half: where its segments begin, and where the last one ends, N + 1 ascending
            element indices; empty for segments of equal size.
    """

    elements: int
    item_bytes: int
    operation: Operation = Operation.SUM
    copies: int = 0
    hops: int | None = None
    bounds: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.elements * self.item_bytes

    def window(self, world_size: int) -> range:
        """Return the hops of the schedule that the operation takes, of 0 to 2 (N - 1) - 1."""
        summed, last = world_size - 1, 2 * (world_size - 1)
        copied = min(summed + self.copies, last)
        if self.operation is Operation.REDUCE_SCATTER:
            return range(copied)
        if self.operation is Operation.ALL_GATHER:
            return range(copied, last if self.hops is None else min(summed + self.hops, last))
        return range(last)


@dataclass(frozen=True, slots=True)
class Segments:
    """The division of one bucket for one world size."""

    elements: int
    world_size: int
    chunk_elements: int
    bounds: tuple[int, ...] = ()

    def segment(self, index: int) -> tuple[int, int]:
        if self.bounds:
            return self.bounds[index], self.bounds[index + 1]
        return (
            self.elements * index // self.world_size,
            self.elements * (index + 1) // self.world_size,
        )

    def own(self, rank: int) -> tuple[int, int]:
        """Element range of a rank's own segment: its sum is complete there and sent from there."""
        return self.segment((rank + 1) % self.world_size)

    def chunk_count(self, index: int) -> int:
        """Number of chunks in a segment, at least one."""
        start, stop = self.segment(index)
        return max(1, -(-(stop - start) // self.chunk_elements))

    def chunk(self, index: int, chunk: int) -> tuple[int, int]:
        start, stop = self.segment(index)
        begin = start + chunk * self.chunk_elements
        return begin, min(begin + self.chunk_elements, stop)


def cut(shape: BucketShape, *, world_size: int, chunk_bytes: int) -> Segments:
    """Divide a bucket for a world size; a chunk never splits an element.

    Raises:
        LocalProtocolError: the bucket is divided already, for another world size.
    """
    if shape.bounds and len(shape.bounds) != world_size + 1:
        raise LocalProtocolError(
            f"a bucket has {len(shape.bounds) - 1} segments in a ring of {world_size} ranks"
        )
    chunk_elements = max(1, chunk_bytes // shape.item_bytes)
    return Segments(shape.elements, world_size, chunk_elements, shape.bounds)


def exchanged(
    shapes: Sequence[BucketShape], *, world_size: int, chunk_bytes: int, whole_bytes: int
) -> frozenset[int]:
    """The indices of a step's buckets that travel whole (`dtd.exchange.schedule.schedules`).

    These have at most `whole_bytes` (`dtd.exchange.schedule.crossover`) and fit in one chunk.  If
    there are many, only the last few: earlier ones travel during backward, while the step may have
    to wait for the last ones.
    """
    if world_size == 1:
        return frozenset()
    limit_bytes = min(chunk_bytes, whole_bytes)
    small = [
        index
        for index, shape in enumerate(shapes)
        if shape.size_bytes <= limit_bytes and not shape.operation.is_half
    ]
    return frozenset(small[-MAX_EXCHANGED:])
