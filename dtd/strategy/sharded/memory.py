"""Where tensors lie: of which bucket one is a view, and whether two have memory in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

BucketOf = Callable[[Tensor], int | None]
"""Returns the bucket of which a tensor is a view; None if it is something else."""


def bucket_finder(flats: Sequence[Tensor]) -> BucketOf:
    """Return a function for these buckets; it works also while they have no memory."""
    by_storage = {identity(flat): number for number, flat in enumerate(flats)}

    def bucket_of(tensor: Tensor) -> int | None:
        return by_storage.get(identity(tensor)) if tensor.layout is torch.strided else None

    return bucket_of


def identity(tensor: Tensor) -> int:
    """Return what tells the storage of a tensor from all others, whether it has memory or not."""
    cdata: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - torch has no other name
    return cdata


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


class FormerMemory:
    """The memory in which parameters lie now, before they move to their buckets.

    It is freed with its last tensor.  If a model keeps one, such as a view of a weight in an
    attribute, that does not follow the parameter any more, and only its use shows it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        watched: Any = StorageWeakRef  # torch has not annotated it
        self._regions = [
            (watched(one.untyped_storage()), index, Region.of(one))
            for index, one in enumerate(parameters)
        ]
        self._left: dict[int, list[tuple[int, Region]]] = {}

    def scan(self) -> None:
        """Find the former memory that still exists, for `owner`."""
        self._left = {}
        for storage, index, region in self._regions:
            if not storage.expired():
                self._left.setdefault(region.storage, []).append((index, region))

    def owner(self, tensor: Tensor) -> int | None:
        """Return the index of a parameter that lay where a tensor lies; None if there is none."""
        if not self._left:
            return None
        there = self._left.get(identity(tensor), ())
        return next((i for i, region in there if overlap(region, Region.of(tensor))), None)
