"""The test whether two tensors have memory in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dtd.strategy.sharded.storages import identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The memory of a strided tensor, as long as its storage exists.

    Attributes:
        storage: tells it from all others.
        dtype: the tensor's element type.
        shape, strides, offset: the tensor's, in elements.
    """

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Region:
        """Return where a tensor lies now."""
        return cls(
            storage=identity(tensor),
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
        )

    @property
    def start(self) -> int:
        """The first byte in the storage."""
        return self.offset * self.dtype.itemsize

    @property
    def stop(self) -> int:
        """The byte after the last one; not all between must belong to the tensor."""
        if 0 in self.shape:
            return self.start
        steps = zip(self.strides, self.shape, strict=True)
        last = sum(stride * (size - 1) for stride, size in steps)
        return self.start + (last + 1) * self.dtype.itemsize


def overlap(one: Region, other: Region) -> bool:
    """Whether an element is a part of both; so are bytes, if the element types differ."""
    if one.storage != other.storage or one.stop <= other.start or other.stop <= one.start:
        return False
    if one.dtype != other.dtype:
        return True
    first = min(one.offset, other.offset)
    stop = max(one.stop, other.stop) // one.dtype.itemsize
    marks = torch.zeros(stop - first, dtype=torch.bool)

    def marked(region: Region) -> Tensor:
        return marks.as_strided(region.shape, region.strides, region.offset - first)

    marked(one).fill_(value=True)
    return bool(marked(other).any())
