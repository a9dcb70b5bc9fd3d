"""Reads checkpoints, whole or in parts.

What stays in use is copied into memory of our own: an optimizer that lived in a mapped file would
keep its room on the disk from being freed, and the process would die with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from dtd.checkpoint.format import Manifest, Progress, no_progress, verify
from dtd.checkpoint.tensor_file import Range, placed
from dtd.errors import CheckpointError
from dtd.train.state.load import load_state, own_entries
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import MODEL, OPTIMIZER, digest_of

Pieces = dict[str, list[tuple[int, int, Tensor]]]
"""By name of a sharded tensor: (start, stop, values) of pieces of the flattened tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Content of a checkpoint, or of a part of one.

    Attributes:
        manifest: its manifest.
        tensors: its whole tensors: all of them, or the common part of a sharded state.
        pieces: a part's pieces of the sharded tensors.
    """

    manifest: Manifest
    tensors: dict[str, Tensor]
    pieces: Pieces

    def give(self, replica: Replica, progress: Progress = no_progress) -> None:
        """Make a replica hold this state, or this part of it.

        Raises:
            CheckpointError: it is not one of this model and optimizer, or is a part, and the
                replica's state is not sharded.
        """
        load_state(replica, self.tensors, self.manifest.state, progress)
        if self.manifest.part is not None:
            assert replica.shards is not None, "load_state refuses a part of another strategy"
            pieces = own_entries(replica, self.manifest.state, self.pieces)
            replica.shards.load(pieces, self.manifest.shards)


def read_stored(path: Path, progress: Progress = no_progress, *, mapped: bool = False) -> Stored:
    """Read a checkpoint or a part of one, verified: a whole one down to the state's digest.

    Args:
        path: its directory.
        progress: called as it is read.
        mapped: leave the model and the optimizer of a whole one in the mapped files, which take no
            memory that the kernel cannot take back: for a state that is divided, and copied then.
            The pieces of a part, which are copied when they are given, lie there in any case.

    Raises:
        CheckpointError: it is torn or damaged.
    """
    manifest = verify(path, progress)
    try:
        files = {file: safetensors.torch.load_file(path / file) for file in manifest.files}
        held = {} if manifest.part is None else manifest.part.tensors
        tensors = {}
        for listed in manifest.tensors:
            file, name = placed(listed)
            found = files[file][name]
            stays = mapped and listed.startswith((MODEL, OPTIMIZER))
            tensors[listed] = found if stays or listed in held else found.clone()
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    if manifest.part is not None:
        pieces = {name: _cut(tensors.pop(name), one.ranges) for name, one in held.items()}
        return Stored(manifest=manifest, tensors=tensors, pieces=pieces)
    if digest_of(tensors, manifest.state, progress).hex() != manifest.digest:
        raise CheckpointError(f"{path} does not match its digest")
    return Stored(manifest=manifest, tensors=tensors, pieces={})


def _cut(joined: Tensor, ranges: Sequence[Range]) -> list[tuple[int, int, Tensor]]:
    """The pieces of a tensor that a part stores one after another."""
    pieces, at = [], 0
    for start, stop in ranges:
        pieces.append((start, stop, joined[at : at + stop - start]))
        at += stop - start
    return pieces
