"""The bucket that a tensor is a view of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

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
