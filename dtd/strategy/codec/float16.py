"""float16: 11 significant bits in a small range, as torch's `fp16_compress_hook` sends gradients.

The unit roundoff is 2^-11, an eighth of bfloat16's; `dtd.strategy.codec.narrow` describes which
values are rounded when.  The limited range has these consequences:

- Contributions are divided before they are summed, as in torch's hook: each rank's loss is scaled
  by its share of the global batch, so the sum is the mean and does not grow with the ranks.
- Values beyond 65504, in a contribution or a sum, become infinite on all ranks.  All ranks skip the
  step, like every step with gradients that are not finite; with `train.precision = "float16"` the
  loss scale is halved.  `train.max_skipped_steps` skipped steps in a row end the job.
- Values below 2^-24 become zero, and those below 2^-14 lose digits.  If such small gradients
  matter, use bfloat16 or a larger loss.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dtd.strategy.codec.narrow import NarrowCodec


def widened(received: memoryview) -> npt.NDArray[np.float32]:
    """float16 as float32; converted by torch, which uses SIMD instructions."""
    halves: npt.NDArray[np.float16] = np.array(np.frombuffer(received, dtype=np.float16))
    wide: npt.NDArray[np.float32] = torch.from_numpy(halves).float().numpy()
    return wide


def float16() -> NarrowCodec:
    """Send float32 gradients as float16."""
    risk = "rounds to 11 significant bits at every hop; skips steps with values beyond 65504"
    return NarrowCodec(torch.float16, widened, risk)
