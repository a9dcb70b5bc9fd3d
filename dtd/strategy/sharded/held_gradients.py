"""Gradients of this rank's segments: its own and those that it mirrors.

Of each bucket only these elements are kept, (1 + mirrors) / N of all; the sums of several
micro-batches are added up here.  As in ZeRO-2 (Rajbhandari et al. 2020, section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtd.engine.shards import NOTHING, ShardSet
from dtd.strategy.codec.api import FlatLayout
from dtd.strategy.wire_memory import laid_out, line_bytes


@dataclass(frozen=True, slots=True)
class _Range:
    """Elements [start, stop) of a bucket."""

    start: int
    stop: int
    values: Tensor


class HeldGradients:
    """Memory for a part of each bucket, in one block: hundreds would each end in half a page.

    Args:
        layouts: of the buckets.
    """

    def __init__(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = list(layouts)
        self._holds = NOTHING
        self._ranges: list[list[_Range]] = [[] for _ in layouts]

    @property
    def size_bytes(self) -> int:
        """Memory of all parts."""
        return sum(one.values.nbytes for ranges in self._ranges for one in ranges)

    def hold(self, shards: ShardSet) -> None:
        """Have memory for these shards, with any contents."""
        if shards == self._holds:
            return
        self._holds, self._ranges = shards, []  # the old memory goes before the new one comes
        sizes = [
            line_bytes((stop - start) * layout.dtype.itemsize)
            for layout in self._layouts
            for start, stop in shards.ranges(layout.elements)
        ]
        parts = iter(torch.split(torch.empty(sum(sizes), dtype=torch.uint8), sizes))
        self._ranges = [
            [
                _Range(start, stop, laid_out(next(parts), stop - start, layout.dtype))
                for start, stop in shards.ranges(layout.elements)
            ]
            for layout in self._layouts
        ]

    def take(self, bucket: int, sums: Tensor, *, first: bool) -> None:
        """Take over the sums of a bucket.

        Args:
            bucket: its number.
            sums: all of the bucket; correct in this rank's segments.
            first: replace earlier sums rather than add to them.
        """
        for one in self._ranges[bucket]:
            if first:
                one.values.copy_(sums[one.start : one.stop])
            else:
                one.values.add_(sums[one.start : one.stop])

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        """Return elements [start, stop) of a bucket, which are part of one held range."""
        for one in self._ranges[bucket]:
            if one.start <= start and stop <= one.stop:
                return one.values[start - one.start : stop - one.start]
        assert start == stop, f"elements [{start}, {stop}) of bucket {bucket} are not held"
        return torch.empty(0, dtype=self._layouts[bucket].dtype)

    def scale(self, factor: float) -> None:
        """Multiply all of it."""
        for one in (one for ranges in self._ranges for one in ranges):
            one.values.mul_(factor)


class CopiedSums:
    """A `ShardGradients` whose sums are copied to memory of their own, and that keeps no state.

    Args:
        held: that memory.
    """

    def __init__(self, held: HeldGradients) -> None:
        self._held = held

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        """Implement `ShardGradients`."""
        return self._held.part(bucket, start, stop)

    def scale(self, factor: float) -> None:
        """Implement `ShardGradients`."""
        if factor != 1.0:
            self._held.scale(factor)

    def reset(self) -> None:
        """Implement `ShardGradients`; there is no local state."""

    def revoke(self) -> None:
        """Implement `ShardGradients`; no other rank reads the copies."""

    def commit(self) -> None:
        """Implement `ShardGradients`; there is no local state."""

    def rollback(self) -> None:
        """Implement `ShardGradients`; there is no local state."""
