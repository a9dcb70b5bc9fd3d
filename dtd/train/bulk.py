"""Copies and hashes of whole states, piece by piece, so that whoever watches sees them get on.

A state may take longer than anybody is patient: nothing may depend on how large it is.  After each
piece `got_on` is called.  What is copied or hashed, and why, is decided in
`dtd.train.state.tensors` and `dtd.train.checkpoint.saver`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import torch
from torch import Tensor

from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.record import GotOn

PIECE_BYTES: Final = 64 << 20


class Hash(Protocol):
    """What content is added to."""

    def update(self, content: memoryview, /) -> None:
        """Add some."""
        ...


def add_to_hash(content: Hash, tensor: Tensor, got_on: GotOn) -> None:
    """Add the elements of a tensor, on whatever device, as the bytes of a contiguous one."""
    for piece in _pieces(tensor.detach().reshape(-1)):
        content.update(tensor_bytes(piece.cpu()))
        got_on()


def copied_to_host(tensor: Tensor, got_on: GotOn) -> Tensor:
    """A contiguous copy in host memory of its own; same shape and dtype."""
    source = tensor.detach()
    if not source.is_contiguous():
        source = source.contiguous()
    copy = torch.empty(source.shape, dtype=source.dtype, device="cpu")
    copy_into(copy, source, got_on)
    return copy


def copy_into(target: Tensor, source: Tensor, got_on: GotOn) -> None:
    """Copy elements between tensors of one shape, on whatever devices."""
    if not (target.is_contiguous() and source.is_contiguous()):
        target.copy_(source)
        got_on()
        return
    into, pieces = _pieces(target.view(-1)), _pieces(source.view(-1))
    for to, piece in zip(into, pieces, strict=True):
        to.copy_(piece)
        got_on()


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    """Contiguous parts of a one-dimensional tensor; at least one."""
    length = max(1, PIECE_BYTES // flat.element_size())
    for start in range(0, max(1, flat.numel()), length):
        yield flat[start : start + length]
