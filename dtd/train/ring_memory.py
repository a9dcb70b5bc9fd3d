"""The host memory in which a step's buckets lie while the ring works on them.

One file without a name for all of them (`dtd.lent_memory`), so that a neighbour on the same host
can read them where they lie.  Every bucket begins on a cache line.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dtd.lent_memory import HEAD_BYTES, LentMemory
from dtd.train.reduce import bucket_memory
from dtd.transport.api import BucketMemory, Home

_LINE_BYTES = 64


class RingMemory:
    """Zeroed flat tensors that may be lent.

    Args:
        sizes: (elements, dtype) of each.

    Attributes:
        flats: the tensors, one-dimensional, on the CPU.
        memories: the same as the ring sees them.
    """

    def __init__(self, sizes: Sequence[tuple[int, torch.dtype]]) -> None:
        self.flats: list[Tensor] = []
        self.memories: list[BucketMemory] = []
        offsets, end = [], 0
        for elements, dtype in sizes:
            offsets.append(end)
            end += -(-elements * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES
        self._lent = LentMemory(end)
        for (elements, dtype), offset in zip(sizes, offsets, strict=True):
            self._add(HEAD_BYTES + offset, elements, dtype)

    def _add(self, offset_bytes: int, elements: int, dtype: torch.dtype) -> None:
        view = self._lent.view(offset_bytes, elements * dtype.itemsize)
        flat = torch.frombuffer(view, dtype=dtype) if elements else torch.empty(0, dtype=dtype)
        self.flats.append(flat)
        home = Home(self._lent, offset_bytes) if self._lent.lendable else None
        self.memories.append(bucket_memory(flat, home))

    def recall(self) -> None:
        """Say, before writing to it, that nobody else's reading counts any more."""
        self._lent.recall()

    def close(self) -> None:
        """Lend no more; the tensors stay as long as somebody holds them."""
        self._lent.close()
