"""The form in which a state is transferred between workers: one JSON text and tensor bytes.

The donor exports views of live memory, nothing is copied on a CPU; the joiner allocates what the
text announces, lets the bytes be received into it and takes the state over when all are there.
How bytes travel is `dtd.worker` and `dtd.net`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from dtd.checkpoint.format import Progress, canonical_json, no_progress
from dtd.checkpoint.tensor_file import checked_shape
from dtd.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.record import StateImage
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    DTYPES,
    digest_of,
    dtype_name,
    load_state,
    metadata,
    named_tensors,
    on_host,
)


def export_image(
    replica: Replica, *, key: StateKey, progress: Progress = no_progress
) -> StateImage:
    """The live state; valid until the next step begins."""
    tensors = {name: on_host(tensor) for name, tensor in named_tensors(replica).items()}
    about = metadata(replica)
    listing = [[n, dtype_name(n, t.dtype), list(t.shape)] for n, t in tensors.items()]
    manifest = {
        "generation": key.generation,
        "state": about,
        "tensors": listing,
        "digest": digest_of(tensors, about, progress).hex(),
    }
    blobs = [tensor_bytes(tensor) for tensor in tensors.values()]
    return StateImage(manifest=canonical_json(manifest), blobs=blobs)


class IncomingImage:
    """A state that is being received.

    Args:
        manifest: the donor's JSON text.
        limit_bytes: refuse to allocate more than this.

    Raises:
        CheckpointError: the text is not one, or announces too much.
    """

    def __init__(self, manifest: bytes, *, limit_bytes: int) -> None:
        try:
            self._manifest: dict[str, Any] = json.loads(manifest)
            generation, about = int(self._manifest["generation"]), self._manifest["state"]
            self.key = StateKey(generation, int(about["step"]))
            self._digest = str(self._manifest["digest"])
            announced = [
                (str(name), DTYPES[dtype], checked_shape(shape))
                for name, dtype, shape in self._manifest["tensors"]
            ]
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"the manifest of a received state is broken: {error}") from error
        total_bytes = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in announced)
        if total_bytes > limit_bytes:
            raise CheckpointError(
                f"a received state announces {total_bytes} bytes; this model needs at most"
                f" {limit_bytes}"
            )
        self._tensors: dict[str, Tensor] = {
            name: torch.empty(shape, dtype=dtype) for name, dtype, shape in announced
        }

    def blobs(self) -> list[memoryview]:
        """Memory to receive into, in the manifest's order."""
        return [tensor_bytes(tensor) for tensor in self._tensors.values()]

    def check(self, progress: Progress = no_progress) -> None:
        """Compare the received state with its digest.

        Raises:
            CheckpointError: bytes were damaged on the way.
        """
        digest = digest_of(self._tensors, self._manifest["state"], progress)
        if digest.hex() != self._digest:
            raise CheckpointError("a received state does not match its digest")

    def apply(self, replica: Replica, progress: Progress = no_progress) -> None:
        """Take the state over.

        Raises:
            CheckpointError: it is another model's.
        """
        load_state(replica, self._tensors, self._manifest["state"], progress)
