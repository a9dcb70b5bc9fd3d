"""Float32 gradients that travel as a narrower float, and are summed in float32.

Half of the bytes travel, and something is lost: whatever leaves a rank is rounded to nearest even.
Beside its gradients a rank has a narrow *wire buffer* of them, which is what the ring sees.  What
arrives is added to the float32 gradients, and the partial sum is rounded once for the next hop, so
N ranks round N times; with unit roundoff u the sum is off by at most about N u sum|x|.  A bucket
that goes round whole is summed in float32 from N rounded contributions and rounded once.  All ranks
then take the wire buffer's value, the one that made the last sum included, so all hold the same
bytes.  The wire buffer is no part of the state: it is written anew in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dtd.transport.api import BucketMemory

Widen = Callable[[memoryview], npt.NDArray[np.float32]]
"""Received elements as float32; by numpy, since lent memory is read-only and torch would make a
tensor of it that is not."""


class NarrowCodec:
    """Rounds float32 to `dtype`; other types travel as they are.

    Only float32 gets narrower: float64 was chosen for its digits, and the rest is narrow already.

    Args:
        dtype: in which float32 travels.
        widen: reads it.
    """

    def __init__(self, dtype: torch.dtype, widen: Widen) -> None:
        self.local: Sequence[Tensor] = ()
        self._dtype = dtype
        self._widen = widen

    def travels_as(self, dtype: torch.dtype) -> torch.dtype:
        """See `Codec`."""
        return self._dtype if dtype == torch.float32 else dtype

    def encode(self, index: int, flat: Tensor, wire: Tensor) -> None:
        """Round; beyond the range of the narrow type this gives infinity."""
        wire.copy_(flat, non_blocking=True)

    def decode(self, index: int, wire: Tensor, flat: Tensor) -> None:
        """Widen, which is exact."""
        flat.copy_(wire, non_blocking=True)

    def summed_at_home(self, wire: Tensor, flat: Tensor, memory: BucketMemory) -> BucketMemory:
        """To the wire buffer is added by way of the float32 gradients.

        Args:
            wire: the wire buffer.
            flat: the gradients; the ring's own while the bucket is.
            memory: the wire buffer as a bucket.
        """
        own, widen = flat.numpy(), self._widen

        def add(start: int, stop: int, received: memoryview) -> None:
            target = own[start:stop]
            with np.errstate(all="ignore"):  # sums that are not finite are found after the vote
                np.add(target, widen(received), out=target)
            wire[start:stop].copy_(flat[start:stop])

        return replace(memory, add=add, total=self._total(wire))

    def summed_alone(self, wire: Tensor, memory: BucketMemory) -> BucketMemory:
        """What is added to has been rounded; torch adds two narrow ones in float32, then rounds."""
        return replace(memory, total=self._total(wire))

    def _total(self, wire: Tensor) -> Any:
        def total(contributions: Sequence[memoryview]) -> None:
            wide = self._widen(contributions[0])
            with np.errstate(all="ignore"):
                for contribution in contributions[1:]:
                    wide += self._widen(contribution)
            wire.copy_(torch.from_numpy(wide))

        return total
