"""Float32 gradients that are sent as a narrower float and summed in float32.

This halves the bytes and loses precision: everything a rank sends is rounded to nearest even.
Beside its gradients a rank has a narrow wire buffer, which is what the ring sees.  Received
values are added to the float32 gradients, and the partial sum is rounded once for the next hop, so
N ranks round N times; with unit roundoff u the error of the sum is at most about N u sum|x|.  A
bucket that is passed around whole is summed in float32 from N rounded contributions and rounded
once.  All ranks then use the values in the wire buffer, including the rank that computed the last
sum, so all hold the same bytes.  The wire buffer is not part of the state: every step rewrites it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.codec.api import FlatLayout, Wire, World
from dtd.strategy.codec.local_state import LocalState

Widen = Callable[[memoryview], npt.NDArray[np.float32]]
"""Converts received elements to float32, with numpy: they may be read-only, and torch would make
a writable tensor of them."""


class NarrowCodec:
    """Rounds float32 to `dtype`; other types are sent unchanged.

    Only float32 is narrowed: float64 was chosen for its precision, and other types are narrow
    already.  See `dtd.strategy.codec.api.Codec`.

    Args:
        dtype: the type in which float32 is sent.
        widen: converts received elements to float32.
        risk: the codec's risk for a job, as a phrase for its user.
    """

    start_step = 0

    def __init__(self, dtype: torch.dtype, widen: Widen, risk: str) -> None:
        self._dtype = dtype
        self._widen = widen
        self.risk = risk

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> NarrowCoder:
        """Create the coder of a bucket, also of one that is sent unchanged."""
        del index
        return NarrowCoder(layout, self._dtype, self._widen, device)


class NarrowCoder:
    """Implement `dtd.strategy.codec.api.Coder`; keeps no state between steps.

    On a CPU the ring adds in the bucket itself.  On a GPU it adds to the rounded values, and torch
    adds two narrow ones in float32, then rounds.
    """

    local: Sequence[LocalState] = ()
    residual: LocalState | None = None

    def __init__(
        self, layout: FlatLayout, dtype: torch.dtype, widen: Widen, device: torch.device
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

    def restart(self, world: World) -> None:
        """Implement `Coder`; there is no state that must be equal on all ranks."""

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        """Implement `Coder`; one wire, of as many elements."""
        del world, step
        return self._wires

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Round; values beyond the range of the narrow type become infinite."""
        self._flat = flat
        wires[stage].copy_(flat, non_blocking=True)

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Widen; this is exact."""
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
