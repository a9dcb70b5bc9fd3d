"""Float32 in blocks of 256 as int8: one float32 scale and 256 small integers, with error feedback.

    block of x       scale s = max|x| / 127        q_i = round(x_i / s)        x_i is read as s q_i

The blocks are those of T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, "8-bit Optimizers via
Block-wise Quantization", arXiv:2110.02861, but with uniform quantization levels.  The error of an
element is at most s/2, which is 1/254 of the largest magnitude in its block.  A block takes 260
bytes instead of 1024.

A block is one item of the ring, and the bucket an ordinary sum: a received block is dequantised,
added to the float32 sum so far, and quantised again with a new scale.  Each rank quantises each
element once, as its contribution or as a partial sum.  The error of that is this rank's *residual*,
which it adds to its gradients in the next step, so what all ranks have sent and what they still
hold add up to all gradients.  With one common scale, sums could remain integers, but the scale
would have to be agreed on first, and each of N ranks could use only 127 / N of the 127 levels; here
every rank uses all of them.

A block with a NaN or an infinity has NaN as its scale and is read as NaN throughout, so values that
are not finite are noticed on every rank.  A block of values below 2^-100 is read as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.codec.api import Coder, FlatLayout, LocalState, Wire, World

BLOCK: Final = 256
"""Number of elements that share a scale."""
ITEM_BYTES: Final = 4 + BLOCK
"""Size of a block: its scale, followed by its integers."""

_LARGEST: Final = 127.0
_SMALLEST: Final = 2.0**-100
"""The reciprocal of a smaller scale might overflow."""
_BLOCKS_AT_ONCE: Final = 512
"""Half a MiB of float32: intermediate results stay in the processor's cache."""


class Int8:
    """The codec; applies to all float32 buckets."""

    start_step = 0
    passes = 13.0
    risk = "rounds to 8 bits, in blocks of 256 with a scale each"

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> Int8Coder | None:
        del index
        return Int8Coder(layout.elements, device) if layout.dtype == torch.float32 else None


class Int8Coder(Coder):
    """The coder of one bucket.

    If the gradients are on a GPU, they are quantised there, but the ring adds on the host.  It adds
    to this rank's contribution as quantised, and the error of its partial sums is added to the
    residual when the result is decoded.
    """

    def __init__(self, elements: int, device: torch.device) -> None:
        self._residual = LocalState(elements, device)
        self.residual = self._residual
        self.local = (self._residual,)
        self._blocks = block_count(elements)
        self._wires = [
            Wire(
                elements=self._blocks * ITEM_BYTES,
                dtype=torch.int8,
                item_elements=ITEM_BYTES,
                arithmetic=self._arithmetic,
            )
        ]
        self._sums = torch.empty(0)
        self._lost = torch.empty(0)
        self._at_home = True
        self._summed = False

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        del world, step
        return self._wires

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        del stage
        flat.add_(self._residual.current)
        self._at_home = flat.device.type == "cpu"
        lost, items = self._residual.new(), wires[0].view(-1, ITEM_BYTES)
        self._summed = False
        if self._at_home:
            quantise(flat, items, lost)
            self._sums, self._lost = flat, lost
        else:
            there = torch.empty_like(items, device=flat.device)
            quantise(flat, there, lost)
            items.copy_(there, non_blocking=True)
            self._sums, self._lost = torch.empty(len(flat)), torch.zeros(len(flat))

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        if self._at_home:
            if not self._summed:
                dequantise(wires[0].view(-1, ITEM_BYTES), flat)
            return
        self._residual.new().add_(self._lost.to(flat.device))
        if self._summed:
            flat.copy_(self._sums)
        else:
            dequantise(wires[0].to(flat.device).view(-1, ITEM_BYTES), flat)

    def _arithmetic(self, wire: Tensor, memory: BucketMemory) -> BucketMemory:
        items = wire.view(-1, ITEM_BYTES)

        def add(start: int, stop: int, received: memoryview) -> None:
            if stop == start:
                return
            part = slice(start * BLOCK, stop * BLOCK)
            sums = self._sums[part]
            if not self._at_home:
                dequantise(items[start:stop], sums)
            add_dequantised(_items(received), sums)
            quantise(sums, items[start:stop], self._lost[part])

        def total(contributions: Sequence[memoryview]) -> None:
            dequantise(_items(contributions[0]), self._sums)
            for contribution in contributions[1:]:
                add_dequantised(_items(contribution), self._sums)
            self._summed = True

        return replace(memory, add=add, total=total)


def _items(received: memoryview) -> Tensor:
    """Received blocks as a copy: mapped memory is read-only, and torch's tensors are writable."""
    return torch.frombuffer(bytearray(received), dtype=torch.int8).view(-1, ITEM_BYTES)


# --- blocks ------------------------------------------------------------------------------------


def block_count(elements: int) -> int:
    """Return the number of blocks for so many elements; the last one may be partly filled."""
    return -(-elements // BLOCK)


def quantise(values: Tensor, items: Tensor, lost: Tensor) -> None:
    """Quantise values to blocks, and write the error.

    Args:
        values: (elements,) float32, contiguous.
        items: (blocks, ITEM_BYTES) int8, contiguous, on the same device.
        lost: (elements,) float32, receives the values minus the dequantised ones; may be `values`
            itself.
    """
    whole = len(values) // BLOCK
    for start in range(0, whole, _BLOCKS_AT_ONCE):
        stop = min(start + _BLOCKS_AT_ONCE, whole)
        part = slice(start * BLOCK, stop * BLOCK)
        _quantise(values[part].view(-1, BLOCK), items[start:stop], lost[part].view(-1, BLOCK))
    rest = len(values) - whole * BLOCK
    if rest:
        padded = values.new_zeros(1, BLOCK)
        padded[0, :rest] = values[-rest:]
        _quantise(padded, items[whole:], padded)
        lost[-rest:] = padded[0, :rest]


def _quantise(blocks: Tensor, items: Tensor, lost: Tensor) -> None:
    largest = blocks.abs().amax(dim=1, keepdim=True)
    kept = largest >= _SMALLEST
    scales = torch.where(kept, largest / _LARGEST, 0.0)
    factors = torch.where(kept, _LARGEST / largest, 0.0)
    levels = torch.mul(blocks, factors).round_()
    finite = largest.isfinite()
    if not bool(finite.all()):
        scales = torch.where(finite, scales, torch.nan)
        levels = torch.where(finite, levels, 0.0)
    items[:, :4].view(torch.float32).copy_(scales)
    items[:, 4:].copy_(levels)
    torch.sub(blocks, levels.mul_(scales), out=lost)  # exact: s q is close to x, or zero


def dequantise(items: Tensor, values: Tensor) -> None:
    """Dequantise blocks.

    Args:
        items: (blocks, ITEM_BYTES) int8, contiguous.
        values: (elements,) float32, contiguous, on the same device; overwritten.
    """
    whole = len(values) // BLOCK
    _dequantise(items[:whole], values[: whole * BLOCK].view(-1, BLOCK))
    rest = len(values) - whole * BLOCK
    if rest:
        padded = values.new_empty(1, BLOCK)
        _dequantise(items[whole:], padded)
        values[-rest:] = padded[0, :rest]


def _dequantise(items: Tensor, blocks: Tensor) -> None:
    torch.mul(items[:, 4:], items[:, :4].view(torch.float32), out=blocks)


def add_dequantised(items: Tensor, values: Tensor) -> None:
    """Add dequantised blocks to values; see `dequantise`."""
    for start in range(0, len(items), _BLOCKS_AT_ONCE):
        part = values[start * BLOCK : (start + _BLOCKS_AT_ONCE) * BLOCK]
        read = torch.empty_like(part)
        dequantise(items[start : start + _BLOCKS_AT_ONCE], read)
        part.add_(read)
