"""Float32 as signs: one bit for each element and, for each tensor, its mean magnitude.

    p = g + e          send D = (|p|_1 / d) sign(p), for d elements          e <- p - D

S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other
Gradient Compression Schemes", arXiv:1901.09847.  In the paper g is multiplied by the learning rate
before it is compressed.  Here it is not, since any optimizer may follow, so an error is applied at
the learning rate of the step that sends it.  The signs of all ranks are gathered, and each rank
adds them in rank order.  For N ranks, a float32 sum takes 64 / N times as many bytes.

Tensors of one dimension or few elements (`dtd.strategy.codec.sparse.travels_whole`) are sent
unchanged.  A tensor with a NaN or an infinity has a scale that is not finite, so every rank reads
all of it as not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.codec.api import Coder, FlatLayout, LocalState, Wire, World
from dtd.strategy.codec.sparse import travels_whole, whole_places

Range = tuple[int, int]
"""Elements [start, stop) of a bucket."""


class Sign:
    """The codec; leaves other types than float32, and buckets of whole tensors, as they are."""

    start_step = 0
    passes = 30.0
    risk = "leaves the sign of each element; check the loss"

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> SignCoder | None:
        del index
        if layout.dtype != torch.float32 or all(map(travels_whole, layout.tensors)):
            return None
        return SignCoder(layout, device)


class SignCoder(Coder):
    """The coder of one bucket.

    A rank's segment has the scales and the elements of whole tensors as float32, then the bits of
    the bucket.
    """

    def __init__(self, layout: FlatLayout, device: torch.device) -> None:
        self._residual = LocalState(layout.elements, device)
        self.residual = self._residual
        self.local = (self._residual,)
        self._tensors = [(one.start, one.stop) for one in layout.tensors if not travels_whole(one)]
        self._whole = whole_places(layout).to(device)
        self._floats = len(self._tensors) + len(self._whole)
        self._words = self._floats + -(-packed_bytes(layout.elements) // 4)
        self._bytes = packed_bytes(layout.elements)
        self._world = World()

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        del step
        self._world = world
        elements = world.size * self._words
        return [Wire(elements=elements, dtype=torch.int32, operation=Operation.ALL_GATHER)]

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        del stage
        start, stop = self._world.own_segment(len(wires[0]))
        lost = torch.add(flat, self._residual.current, out=self._residual.new())
        scales, bits = encode_signs(lost, self._tensors)
        floats = wires[0][start:stop].view(torch.float32)[: self._floats]
        floats.copy_(torch.cat([scales, lost[self._whole]]))
        lost[self._whole] = 0.0
        wires[0][start + self._floats : stop].view(torch.uint8)[: self._bytes].copy_(bits)

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        flat.zero_()
        for start, stop in self._world.segments(len(wires[0])):
            floats = wires[0][start:stop].view(torch.float32)[: self._floats]
            scales, whole = floats[: len(self._tensors)], floats[len(self._tensors) :]
            bits = wires[0][start + self._floats : stop].view(torch.uint8)[: self._bytes]
            add_signs(scales, bits.to(flat.device), self._tensors, flat)
            flat.index_add_(0, self._whole, whole.to(flat.device))


# --- signs -------------------------------------------------------------------------------------


def packed_bytes(elements: int) -> int:
    """Return the number of bytes for so many signs."""
    return -(-elements // 8)


def encode_signs(values: Tensor, tensors: Sequence[Range]) -> tuple[Tensor, Tensor]:
    """Encode values as signs and scales; the tensors in `values` become the encoding's error.

    Args:
        values: (elements,) float32.
        tensors: their ranges in `values`.

    Returns:
        (tensors,) float32 scales, and (packed_bytes(elements),) uint8 with a set bit for each plus.
    """
    bits = pack(~torch.signbit(values))
    scales = values.new_zeros(len(tensors))
    for index, (start, stop) in enumerate(tensors):
        part = values[start:stop]
        scales[index] = part.abs().mean()
        part.sub_(torch.copysign(scales[index], part))  # not finite if the scale is not
    return scales, bits


def add_signs(scales: Tensor, bits: Tensor, tensors: Sequence[Range], values: Tensor) -> None:
    """Add one rank's contribution to values.

    Args:
        scales: as returned by `encode_signs`, on the host.
        bits: as returned by `encode_signs`, on the device of the values.
        tensors: their ranges in `values`.
        values: (elements,) float32.
    """
    signs = unpack(bits, len(values)).float().mul_(2.0).sub_(1.0)
    for (start, stop), scale in zip(tensors, scales.tolist(), strict=True):
        values[start:stop].add_(signs[start:stop], alpha=scale)


def pack(flags: Tensor) -> Tensor:
    """Pack eight flags into a byte, the first one highest; uses numpy on the CPU, for speed."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.packbits(flags.numpy()))
    return pack_on_device(flags)


def pack_on_device(flags: Tensor) -> Tensor:
    """The same for a tensor on a GPU."""
    padded = F.pad(flags.to(torch.uint8), (0, -len(flags) % 8)).view(-1, 8)
    return (padded << _shifts(flags.device)).sum(dim=1, dtype=torch.uint8)


def unpack(packed: Tensor, elements: int) -> Tensor:
    """Unpack flags to zeros and ones, uint8."""
    if packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=elements))
    return unpack_on_device(packed, elements)


def unpack_on_device(packed: Tensor, elements: int) -> Tensor:
    """The same for a tensor on a GPU."""
    return (packed[:, None] >> _shifts(packed.device) & 1).flatten()[:elements]


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=device)
