"""What a codec is: the form in which gradients leave a rank, and how sums come back.

A codec is made for the buckets of one update.  What it gives back after an exchange must be the
same bytes on every rank, so every rank decodes what travelled, its own part included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from dtd.transport.api import BucketMemory


class Codec(Protocol):
    """The way of flat gradient buckets to what travels, and back.

    Attributes:
        local: what this rank alone keeps from step to step, such as an error that is fed back; on
            any device, and zero at first.  It goes forward with a commit, is put back when a step
            is redone or skipped, and is zero again in a replica that has taken another state over.
            Tensors may be added to it while a bucket is encoded.
    """

    local: Sequence[Tensor]

    def travels_as(self, dtype: torch.dtype) -> torch.dtype:
        """The element type of a bucket's wire buffer; `dtype` itself if the codec leaves it."""
        ...

    def encode(self, index: int, flat: Tensor, wire: Tensor) -> None:
        """Write what travels; may only queue the work if one of the two is on a GPU.

        Args:
            index: of the bucket.
            flat: the gradients, one-dimensional, where the model is.
            wire: the wire buffer, of the same length, on the host.
        """
        ...

    def decode(self, index: int, wire: Tensor, flat: Tensor) -> None:
        """Write the gradients from the sum that came back; may only queue the work, too."""
        ...

    def summed_at_home(self, wire: Tensor, flat: Tensor, memory: BucketMemory) -> BucketMemory:
        """A wire buffer as the ring sees it, where the gradients are on the host as well."""
        ...

    def summed_alone(self, wire: Tensor, memory: BucketMemory) -> BucketMemory:
        """A wire buffer as the ring sees it, where the gradients are out of reach, on a GPU."""
        ...
