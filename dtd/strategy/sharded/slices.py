"""The parts of a state: slices of parameters, pieces of tensors, and columns of buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dtd.errors import CheckpointError

Received = Mapping[str, Sequence[tuple[int, int, Tensor]]]
"""By name of a tensor of the state: (start, stop, values) of pieces of the flattened tensor."""


@dataclass(slots=True)
class Slice:
    """Elements [start, stop) of a flattened parameter; `state` only while no optimizer has it."""

    start: int
    stop: int
    values: nn.Parameter
    state: dict[str, Any] = field(default_factory=dict)


def overlaid(entries: Sequence[tuple[Slice, Tensor]], start: int, stop: int) -> Tensor:
    """Return elements [start, stop) of what slices have; zero where they do not have them."""
    target = torch.zeros(stop - start, dtype=entries[0][1].dtype)
    for other, entry in entries:
        a, b = max(start, other.start), min(stop, other.stop)
        if a < b:
            target[a - start : b - start].copy_(entry.detach()[a - other.start : b - other.start])
    return target


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of a flattened tensor of the state; `values` is live memory."""

    start: int
    stop: int
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a trained parameter: elements [start, stop) of a bucket."""

    bucket: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTensor:
    """A tensor of the state and the parts of it that this rank holds.

    Attributes:
        name: its name in the whole state.
        dtype: its element type.
        shape: shape of the whole tensor.
        place: where it lies, or the parameter that it is about.
        pieces: in ascending order.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    place: Place
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Values of one bucket's elements under one name, as far as this rank holds them.

    Attributes:
        dtype: the element type.
        pieces: (first element in the bucket, values), in ascending order.
    """

    dtype: torch.dtype
    pieces: Sequence[tuple[int, Tensor]]

    def parts(self, start: int, stop: int) -> list[tuple[int, Tensor]]:
        """Return the held pieces of elements [start, stop): (first element, values)."""
        found = []
        for first, values in self.pieces:
            a, b = max(start, first), min(stop, first + values.numel())
            if a < b:
                found.append((a, values[a - first : b - first]))
        return found


def fill(tensor: ShardedTensor, piece: Piece, given: Sequence[tuple[int, int, Tensor]]) -> None:
    """Set a piece to the values that are given for its elements, which may be more."""
    missing = piece.stop - piece.start
    for start, stop, values in given:
        if values.dtype != tensor.dtype or values.numel() != stop - start:
            raise CheckpointError(f"a part of the state has another {tensor.name}")
        a, b = max(start, piece.start), min(stop, piece.stop)
        if a < b:
            piece.values[a - piece.start : b - piece.start].copy_(values[a - start : b - start])
            missing -= b - a
    if missing:
        raise CheckpointError(
            f"a part of the state lacks elements of [{piece.start}, {piece.stop}) of {tensor.name}"
        )
