"""Random crop and flip for 32x32 images, drawn from a row's key and nothing else.

The same row in the same epoch gets the same crop on every worker and in every redo of a step.
Whole batches are done in one gather; global random state is neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dtd.core.data.sampler import row_key

_PADDING = 4


def crop_and_flip(
    images: npt.NDArray[np.uint8], row_ids: Sequence[int], *, epoch: int, seed: int
) -> npt.NDArray[np.uint8]:
    """Shift each image by up to 4 pixels each way (black comes in) and mirror half of them.

    Args:
        images: (rows, height, width, 3), in the order of `row_ids`.
        row_ids: the dataset's row numbers, which key the draws.
        epoch: keys the draws.
        seed: keys the draws.
    """
    keys = np.array([row_key(seed, epoch, row) for row in row_ids], dtype=np.uint64)
    down, right, flip = _draws(keys)
    rows, height, width, _ = images.shape
    border = (_PADDING, _PADDING)
    padded = np.pad(images, ((0, 0), border, border, (0, 0)))
    ys = down[:, None] + np.arange(height)
    columns = np.arange(width)
    xs = np.where(flip[:, None], columns[::-1], columns) + right[:, None]
    row = np.arange(rows)[:, None, None]
    moved: npt.NDArray[np.uint8] = padded[row, ys[:, :, None], xs[:, None, :]]
    return moved


def _draws(
    keys: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    shifts = np.uint64(2 * _PADDING + 1)
    down = ((keys & np.uint64(0xFFFF)) % shifts).astype(np.int64)
    right = ((keys >> np.uint64(16) & np.uint64(0xFFFF)) % shifts).astype(np.int64)
    flip = (keys >> np.uint64(32) & np.uint64(1)).astype(np.bool_)
    return down, right, flip
