"""Copies of a state, or of the part of it that a rank holds, to be written as a checkpoint.

Training continues while a copy is written, so the copy has memory of its own, as much as the state
or the part.  Where a worker has no room for a copy of its part, the live memory is written,
and training waits until it has been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtd.checkpoint.format import Progress
from dtd.checkpoint.tensor_file import HeldTensor, Part
from dtd.strategy.sharded.state import ShardedState
from dtd.train.bulk import copied_to_host
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    MODEL,
    OPTIMIZER,
    digest_of,
    dtype_name,
    metadata,
    named_tensors,
    on_host,
    optimizer_place,
)
from dtd.train.state.weights import model_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor that is written: `pieces`, in host memory, one after another."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state as it is written.

    Attributes:
        names: of all tensors of the state, in the order of its digest.
        tensors: what is written, by name: a sharded tensor as the pieces that are held, as if they
            were one tensor of one dimension.
        about: the part of the state that is not tensors.
        digest: of the whole state; empty if this rank cannot know it.
        part: the held part of a sharded state; None for a whole one.
    """

    names: tuple[str, ...]
    tensors: Mapping[str, SavedTensor]
    about: Mapping[str, Any]
    digest: bytes
    part: Part | None = None

    @property
    def size_bytes(self) -> int:
        """Size of all tensors."""
        return sum(piece.nbytes for one in self.tensors.values() for piece in one.pieces)


def whole_snapshot(replica: Replica, progress: Progress) -> Snapshot:
    """Copy a state of which this rank has all."""
    live = named_tensors(replica)
    tensors = {name: copied_to_host(tensor, progress) for name, tensor in live.items()}
    about = metadata(replica)
    digest = digest_of(tensors, about, progress)
    saved = {name: _whole(tensor) for name, tensor in tensors.items()}
    return Snapshot(names=tuple(tensors), tensors=saved, about=about, digest=digest)


def part_bytes(replica: Replica, shards: ShardedState) -> int:
    """Return the memory of a copy of this rank's part."""
    held = sum(piece.values.nbytes for one in shards.tensors() for piece in one.pieces)
    return held + sum(tensor.nbytes for tensor in named_tensors(replica).values())


def part_snapshot(
    replica: Replica, shards: ShardedState, *, mirrors: int, copies: bool, progress: Progress
) -> Snapshot:
    """Copy the common part of a sharded state, and this rank's pieces of the sharded tensors.

    Args:
        replica: the state.
        shards: its pieces of the sharded tensors.
        mirrors: of the job.
        copies: into memory of their own; else they are valid while the state does not change.
        progress: called as copying progresses.
    """

    def taken(tensor: Tensor) -> Tensor:
        return copied_to_host(tensor, progress) if copies else on_host(tensor)

    sharded = {one.name: one for one in shards.tensors()}
    saved = {name: _whole(taken(tensor)) for name, tensor in named_tensors(replica).items()}
    for name, one in sharded.items():
        pieces = tuple(taken(piece.values) for piece in one.pieces)
        size = sum(piece.numel() for piece in pieces)
        saved[name] = SavedTensor(dtype=one.dtype, shape=(size,), pieces=pieces)
    names = whole_order([MODEL + name for name in model_tensors(replica.model)], [*saved])
    held = {
        name: HeldTensor(
            dtype=dtype_name(name, one.dtype),
            shape=one.shape,
            ranges=tuple((piece.start, piece.stop) for piece in one.pieces),
        )
        for name, one in sharded.items()
    }
    return Snapshot(
        names=names,
        tensors={name: saved[name] for name in names},
        about=metadata(replica),
        digest=b"",
        part=Part(shards=shards.sliced, mirrors=mirrors, tensors=held),
    )


def whole_order(model: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The order that these tensors have in the state of a process that holds it whole.

    Args:
        model: the names of the model's tensors in order.
        names: all names, those of the model among them; tensors that are neither the model's nor
            the optimizer's are in order.
    """
    optimizer = sorted((n for n in names if n.startswith(OPTIMIZER)), key=optimizer_place)
    there, ordered = set(names), {*model, *optimizer}
    rest = [name for name in names if name not in ordered]
    return (*(name for name in model if name in there), *optimizer, *rest)


def _whole(tensor: Tensor) -> SavedTensor:
    return SavedTensor(dtype=tensor.dtype, shape=tuple(tensor.shape), pieces=(tensor,))
