"""Float32 gradients that are sent as bfloat16 or float16, and summed in float32.

This halves the bytes and loses precision: everything a rank sends is rounded to nearest even.
Beside its gradients a rank has a narrow wire buffer, which is what the ring sees.  Received
values are added to the float32 gradients, and the partial sum is rounded once for the next hop, so
N ranks round N times; with unit roundoff u the error of the sum is at most about N u sum|x|.  A
bucket that is passed around whole is summed in float32 from N rounded contributions and rounded
once.  All ranks then use the values in the wire buffer, including the rank that computed the last
sum, so all hold the same bytes.  The wire buffer is not part of the state: every step rewrites it.

bfloat16 has 8 significant bits (u = 2^-8) and the range of float32, so gradients need no scaling.

float16 has 11 (u = 2^-11), in a small range, as in torch's `fp16_compress_hook`:

- Contributions are divided before they are summed: each rank's loss is scaled by its share of the
  global batch, so the sum is the mean and does not grow with the ranks.
- Values beyond 65504, in a contribution or a sum, become infinite on all ranks.  All ranks skip the
  step, like every step with gradients that are not finite; with `train.precision = "float16"` the
  loss scale is halved.  `train.max_skipped_steps` skipped steps in a row end the job.
- Values below 2^-24 become zero, and those below 2^-14 lose digits.  If such small gradients
  matter, use bfloat16 or a larger loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.codec.api import Coder, FlatLayout, Wire, World

_SHIFT_BITS: Final = 16


def wide_bfloat16(received: memoryview) -> npt.NDArray[np.float32]:
    """Return received bfloat16 as float32, of which it is the upper half.

    With numpy, since the memory may be read-only, and torch would make a writable tensor of it.
    """
    halves = np.frombuffer(received, dtype=np.uint16)
    return np.left_shift(halves, _SHIFT_BITS, dtype=np.uint32).view(np.float32)


def wide_float16(received: memoryview) -> npt.NDArray[np.float32]:
    """Return received float16 as float32; converted by torch, which uses SIMD instructions."""
    halves: npt.NDArray[np.float16] = np.array(np.frombuffer(received, dtype=np.float16))
    wide: npt.NDArray[np.float32] = torch.from_numpy(halves).float().numpy()
    return wide


_Widen = Callable[[memoryview], npt.NDArray[np.float32]]


class NarrowCodec:
    """Rounds float32 to a narrower type; other types are sent unchanged.

    Only float32 is narrowed: float64 was chosen for its precision, and other types are narrow
    already.
    """

    start_step = 0
    passes = 2.0

    def __init__(self, dtype: torch.dtype, widen: _Widen, risk: str) -> None:
        self._dtype = dtype
        self._widen = widen
        self.risk = risk

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> NarrowCoder:
        del index
        return NarrowCoder(layout, self._dtype, self._widen, device)


def bfloat16() -> NarrowCodec:
    """Send float32 gradients as bfloat16."""
    return NarrowCodec(torch.bfloat16, wide_bfloat16, "rounds to 8 significant bits at every hop")


def float16() -> NarrowCodec:
    """Send float32 gradients as float16."""
    risk = "rounds to 11 significant bits at every hop; skips steps with values beyond 65504"
    return NarrowCodec(torch.float16, wide_float16, risk)


class NarrowCoder(Coder):
    """The coder of one bucket; keeps no state between steps.

    On a CPU the ring adds in the bucket itself.  On a GPU it adds to the rounded values, and torch
    adds two narrow ones in float32, then rounds.
    """

    def __init__(
        self, layout: FlatLayout, dtype: torch.dtype, widen: _Widen, device: torch.device
    ) -> None:
        self._widen = widen
        self._adds_in_flat = device.type == "cpu"
        self._flat = torch.empty(0)
        is_narrowed = layout.dtype == torch.float32
        self._wires = [
            Wire(
                elements=layout.elements,
                dtype=dtype if is_narrowed else layout.dtype,
                arithmetic=self._arithmetic if is_narrowed else None,
            )
        ]

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        del world, step
        return self._wires

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        self._flat = flat
        wires[stage].copy_(flat, non_blocking=True)

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        flat.copy_(wires[0], non_blocking=True)

    def _arithmetic(self, wire: Tensor, memory: BucketMemory) -> BucketMemory:
        """Add as described above; `dtype` is kept, since a process group adds as well."""
        if self._adds_in_flat:
            return replace(memory, add=self._add_in_flat(wire), total=self._total(wire))
        return replace(memory, total=self._total(wire))

    def _add_in_flat(self, wire: Tensor) -> Any:
        def add(start: int, stop: int, received: memoryview) -> None:
            flat = self._flat[start:stop]  # it belongs to the ring as long as its wire does
            target = flat.numpy()
            with np.errstate(all="ignore"):  # sums that are not finite are found after the vote
                np.add(target, self._widen(received), out=target)
            wire[start:stop].copy_(flat)

        return add

    def _total(self, wire: Tensor) -> Any:
        def total(contributions: Sequence[memoryview]) -> None:
            wide = self._widen(contributions[0])
            with np.errstate(all="ignore"):
                for contribution in contributions[1:]:
                    wide += self._widen(contribution)
            wire.copy_(torch.from_numpy(wide))

        return total
