"""The host memory of a step's buckets, which the ring reads as bytes and adds to.

All buckets share one anonymous file (`dtd.host.shared_memory`), so that a neighbour on the same
host can read them in place.  Every bucket begins on a cache line.  numpy adds float32 and float64:
one SIMD loop in the calling thread, without the GIL.  torch adds all other types.  The ring decides
which bytes are sent where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory, BufferLocation
from dtd.exchange.schedule.chunks import BucketShape
from dtd.host.shared_memory import HEAD_BYTES, OfferedMemory

_LINE_BYTES = 64
_NUMPY_ADDS = (torch.float32, torch.float64)


BATCH_BYTES: Final = 64 << 20
"""Most bytes of a state that travel at once: each rank has a buffer for them."""

T = TypeVar("T")


def batches(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in their order, as many at a time as fit in a batch, but at least one."""
    batch: list[T] = []
    total_bytes = 0
    for item in items:
        item_bytes = size_bytes(item)
        if batch and total_bytes + item_bytes > BATCH_BYTES:
            yield batch
            batch, total_bytes = [], 0
        batch.append(item)
        total_bytes += item_bytes
    if batch:
        yield batch


def line_bytes(size_bytes: int) -> int:
    """Return a size rounded up to whole cache lines."""
    return -(-size_bytes // _LINE_BYTES) * _LINE_BYTES


def laid_out(memory: Tensor, elements: int, dtype: torch.dtype) -> Tensor:
    """Return the beginning of some bytes as a tensor of so many elements."""
    return memory[: elements * dtype.itemsize].view(dtype)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor as bytes, without a copy."""
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def bucket_memory(flat: Tensor, home: BufferLocation | None = None) -> BucketMemory:
    """Return a one-dimensional contiguous CPU tensor as a bucket; `home` if it can be shared."""
    assert flat.dim() == 1
    assert flat.is_contiguous()
    assert flat.device.type == "cpu"
    add = _numpy_add(flat) if flat.dtype in _NUMPY_ADDS else _torch_add(flat)
    return BucketMemory(
        view=tensor_bytes(flat),
        shape=BucketShape(elements=flat.numel(), item_bytes=flat.element_size()),
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


class RingMemory:
    """Zeroed flat tensors that can be shared with neighbours.

    Args:
        sizes: (elements, dtype) of each tensor.
    """

    def __init__(self, sizes: Sequence[tuple[int, torch.dtype]]) -> None:
        self.flats: list[Tensor] = []
        self.memories: list[BucketMemory] = []
        offsets, end = [], 0
        for elements, dtype in sizes:
            offsets.append(end)
            end += line_bytes(elements * dtype.itemsize)
        self._offered = OfferedMemory(end)
        for (elements, dtype), offset in zip(sizes, offsets, strict=True):
            self._add(HEAD_BYTES + offset, elements, dtype)

    def _add(self, offset_bytes: int, elements: int, dtype: torch.dtype) -> None:
        view = self._offered.view(offset_bytes, elements * dtype.itemsize)
        flat = torch.frombuffer(view, dtype=dtype) if elements else torch.empty(0, dtype=dtype)
        self.flats.append(flat)
        home = BufferLocation(self._offered, offset_bytes) if self._offered.shareable else None
        self.memories.append(bucket_memory(flat, home))

    def revoke(self) -> None:
        """Invalidate concurrent reads by neighbours, before the memory is written to."""
        self._offered.revoke()

    def close(self) -> None:
        """Stop sharing; the tensors remain valid as long as they are referenced."""
        self._offered.close()
