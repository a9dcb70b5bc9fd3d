"""Transfers the unsent residual of a leaving rank to the ranks that stay.

A codec with error feedback keeps on each rank what it could not send.  If a rank dies, its residual
is lost; if it leaves after a committed step, it transfers the residual.  After the last common step
all ranks sum the residuals of the leaving ranks in one exchange, without a codec, and the remaining
ranks divide the sum equally.  Each adds its part to its own residual, from which later steps apply
it to the model.

    hand_on = HandOn(residuals, leaves=...)
    ring.open_step(step, hand_on.memories); start and wait for all
    hand_on.finish()

If the generation breaks in between, the residual is lost: it is not part of the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.wire_memory import bucket_memory


class HandOn:
    """One exchange for each residual.

    Args:
        residuals: this rank's residuals; equally many on all ranks, and of the same sizes.
        leaves: whether this rank leaves.

    Attributes:
        memories: the buckets to exchange, float32: a residual, followed by the number of ranks that
            stay.
    """

    def __init__(self, residuals: Sequence[LocalState], *, leaves: bool) -> None:
        self._residuals = residuals
        self._leaves = leaves
        self._flats = [torch.zeros(one.elements + 1) for one in residuals]
        for one, flat in zip(residuals, self._flats, strict=True):
            if leaves:
                flat[:-1].copy_(one.unscaled())
            flat[-1] = float(not leaves)
        self.memories = [bucket_memory(flat) for flat in self._flats]

    def finish(self) -> None:
        """After every sum has arrived: add this rank's part; a leaving rank is reset to zero."""
        for one, flat in zip(self._residuals, self._flats, strict=True):
            if self._leaves:
                one.reset()
            else:
                one.add(flat[:-1].div_(flat[-1].item()))
