"""float16: 11 significant bits in a small range, as torch's `fp16_compress_hook` sends gradients.

Unit roundoff is 2^-11, an eighth of bfloat16's; see `dtd.strategy.codec.narrow` for what is rounded
when.  The range is what there is to know:

- Contributions are divided before they are summed, as torch's hook does: each rank's loss is scaled
  by its share of the global batch, so the sum is the mean and grows with no number of ranks.
- What is beyond 65504 becomes infinite, here or in a sum, on all ranks alike.  The step is skipped
  by all, as every step is whose gradients are not finite; with `train.precision = "float16"` the
  loss scale is halved.  `train.max_skipped_steps` in a row end the job.
- What is below 2^-24 becomes zero, and below 2^-14 digits are lost: gradients that are that small
  and matter need bfloat16, or a larger loss.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dtd.strategy.codec.narrow import NarrowCodec


def widened(received: memoryview) -> npt.NDArray[np.float32]:
    """float16 as float32; by torch, which does it several elements at a time."""
    halves: npt.NDArray[np.float16] = np.array(np.frombuffer(received, dtype=np.float16))
    wide: npt.NDArray[np.float32] = torch.from_numpy(halves).float().numpy()
    return wide


def float16() -> NarrowCodec:
    """Float32 gradients travel as float16."""
    return NarrowCodec(torch.float16, widened)
