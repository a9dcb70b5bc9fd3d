"""Gradients that travel narrower than they are summed: float32 here, bfloat16 on the wire.

Half of the bytes travel, and something is lost: whatever leaves a rank is rounded to 8 significant
bits, to nearest even.  Beside its own gradients a rank has a narrow *twin* of them, which is what
the ring sees.  What arrives is added to the float32 gradients, and the partial sum is rounded once
for the next hop, so N ranks round N times, and the sum is off by at most about N 2^-8 sum|x|.  A
bucket that goes round whole is summed in float32 from N rounded contributions and rounded once.
All ranks then take the twin's value, the one that made the last sum included (`dtd.train.staging`),
so all hold the same bytes.

bfloat16 has the range of float32, so gradients need no scaling for the way.  The twin is no part of
the state: it is written anew in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dtd.transport.api import BucketMemory

_WIRE_TYPES: Final[dict[str, torch.dtype | None]] = {"": None, "bfloat16": torch.bfloat16}
_SHIFT_BITS: Final = 16


def wire_type(dtype: torch.dtype, wire_dtype: str) -> torch.dtype:
    """The type in which gradients of a type travel where the job asks for `sync.wire_dtype`.

    Only float32 gets narrower: float64 was chosen for its digits, and the rest is narrow already.
    """
    asked = _WIRE_TYPES[wire_dtype]
    return asked if asked is not None and dtype == torch.float32 else dtype


def summed_at_home(twin: Tensor, flat: Tensor, memory: BucketMemory) -> BucketMemory:
    """A twin's memory, to which is added by way of the float32 gradients.

    Args:
        twin: bfloat16, on the CPU.
        flat: the gradients, on the CPU; the ring's own while the bucket is.
        memory: the twin as a bucket.
    """
    own = flat.numpy()

    def add(start: int, stop: int, received: memoryview) -> None:
        target = own[start:stop]
        with np.errstate(all="ignore"):  # sums that are not finite are found after the vote
            np.add(target, widened(received), out=target)
        twin[start:stop].copy_(flat[start:stop])

    return replace(memory, add=add, total=_total(twin))


def summed_wide(twin: Tensor, memory: BucketMemory) -> BucketMemory:
    """A twin's memory where the gradients are out of reach, on a GPU.

    What is added to has been rounded already; torch adds two bfloat16 in float32 and rounds once.
    """
    return replace(memory, total=_total(twin))


def widened(received: memoryview) -> npt.NDArray[np.float32]:
    """bfloat16 as float32, of which it is the upper half.

    By numpy, since lent memory cannot be written to, and torch would make a tensor of it that can.
    """
    halves = np.frombuffer(received, dtype=np.uint16)
    return np.left_shift(halves, _SHIFT_BITS, dtype=np.uint32).view(np.float32)


def _total(twin: Tensor) -> Any:
    def total(contributions: Sequence[memoryview]) -> None:
        wide = widened(contributions[0])
        with np.errstate(all="ignore"):
            for contribution in contributions[1:]:
                wide += widened(contribution)
        twin.copy_(torch.from_numpy(wide))

    return total
