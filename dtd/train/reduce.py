"""A flat CPU tensor as the bytes that travel, and how received bytes are added to it.

numpy adds float32 and float64: one SIMD loop in the calling thread that lets other threads run.
Types that numpy lacks are added by torch.  Which bytes go where is the ring's business.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dtd.transport.api import BucketMemory, Home

_NUMPY_ADDS = (torch.float32, torch.float64)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor as bytes, not copied."""
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def bucket_memory(flat: Tensor, home: Home | None = None) -> BucketMemory:
    """A one-dimensional contiguous CPU tensor as a bucket, with its home if it may be lent."""
    assert flat.dim() == 1
    assert flat.is_contiguous()
    assert flat.device.type == "cpu"
    add = _numpy_add(flat) if flat.dtype in _NUMPY_ADDS else _torch_add(flat)
    return BucketMemory(
        view=tensor_bytes(flat),
        item_bytes=flat.element_size(),
        add=add,
        home=home,
        dtype=str(flat.dtype).removeprefix("torch."),
    )


def _numpy_add(flat: Tensor) -> Any:
    own = flat.numpy()

    def add(start: int, stop: int, received: memoryview) -> None:
        target = own[start:stop]
        with np.errstate(all="ignore"):  # sums that are not finite are found after the vote
            np.add(target, np.frombuffer(received, dtype=own.dtype), out=target)

    return add


def _torch_add(flat: Tensor) -> Any:
    def add(start: int, stop: int, received: memoryview) -> None:
        if stop > start:
            flat[start:stop].add_(torch.frombuffer(received, dtype=flat.dtype))

    return add
