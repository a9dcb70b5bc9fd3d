"""Copies and hashes of whole states, in pieces, so that progress is visible.

Processing a large state may exceed any fixed time limit, so `progress` is called after each piece.
`dtd.train.state.tensors` and `dtd.train.saver` decide what is copied or hashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import torch
from torch import Tensor

from dtd.checkpoint.format import Progress
from dtd.strategy.wire_memory import tensor_bytes

PIECE_BYTES: Final = 64 << 20


class Hash(Protocol):
    """A hash to which content is added."""

    def update(self, content: memoryview, /) -> None:
        """Add content."""
        ...


def add_to_hash(content: Hash, tensor: Tensor, progress: Progress) -> None:
    """Add the elements of a tensor on any device, as the bytes of a contiguous one."""
    for piece in _pieces(tensor.detach().reshape(-1)):
        content.update(tensor_bytes(piece.cpu().contiguous()))
        progress()


def copied_to_host(tensor: Tensor, progress: Progress) -> Tensor:
    """Return a contiguous copy in newly allocated host memory; same shape and dtype."""
    source = tensor.detach()
    if not source.is_contiguous():
        source = source.contiguous()
    copy = torch.empty(source.shape, dtype=source.dtype, device="cpu")
    copy_into(copy, source, progress)
    return copy


def copy_into(target: Tensor, source: Tensor, progress: Progress) -> None:
    """Copy elements between tensors of the same shape, on any devices."""
    if not (target.is_contiguous() and source.is_contiguous()):
        target.copy_(source)
        progress()
        return
    into, pieces = _pieces(target.view(-1)), _pieces(source.view(-1))
    for to, piece in zip(into, pieces, strict=True):
        to.copy_(piece)
        progress()


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    """Yield contiguous parts of a one-dimensional tensor; at least one."""
    length = max(1, PIECE_BYTES // flat.element_size())
    for start in range(0, max(1, flat.numel()), length):
        yield flat[start : start + length]
