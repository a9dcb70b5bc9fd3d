"""A flat tensor to be summed, and how to see that it was."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dtd.errors import DtdError


def layout(size_bytes: int, dtype: str) -> tuple[int, torch.dtype]:
    """(elements, type) of a bucket of this size; `dtype` is the name of a torch type."""
    kind: torch.dtype = getattr(torch, dtype)
    return size_bytes // kind.itemsize, kind


class Bucket:
    """One dimension of zeros.

    Zeros stay zeros however often they are summed, so nothing overflows while time is taken.

    Args:
        flat: its memory.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.flat.fill_(0)  # now the pages are there

    def verify(self, rank: int, world: int, all_reduce: Callable[[], None]) -> None:
        """Sum rank + 1 over all ranks, which is exact in every type.

        Raises:
            DtdError: the sum is wrong.
        """
        self.flat.fill_(rank + 1)
        all_reduce()
        expected = world * (world + 1) // 2
        if not bool((self.flat == expected).all()):
            raise DtdError(f"the sum over {world} ranks is not {expected} everywhere")
        self.flat.fill_(0)
