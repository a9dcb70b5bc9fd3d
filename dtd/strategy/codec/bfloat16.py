"""bfloat16: 8 significant bits and the range of float32, so gradients need no scaling.

The unit roundoff is 2^-8; `dtd.strategy.codec.narrow` describes which values are rounded when.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from dtd.strategy.codec.narrow import NarrowCodec

_SHIFT_BITS: Final = 16


def widened(received: memoryview) -> npt.NDArray[np.float32]:
    """bfloat16 as float32, of which it is the upper half."""
    halves = np.frombuffer(received, dtype=np.uint16)
    return np.left_shift(halves, _SHIFT_BITS, dtype=np.uint32).view(np.float32)


def bfloat16() -> NarrowCodec:
    """Send float32 gradients as bfloat16."""
    return NarrowCodec(torch.bfloat16, widened, "rounds to 8 significant bits at every hop")
