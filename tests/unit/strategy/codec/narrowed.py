"""One bucket and its coder, without a ring: encoded, added to, and decoded by the test."""

from __future__ import annotations

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.codec.api import Codec, FlatLayout, TensorPlace, World
from dtd.strategy.wire_memory import bucket_memory

CPU = torch.device("cpu")


def flat_of(elements: int, dtype: torch.dtype = torch.float32) -> FlatLayout:
    """The layout of a bucket with one vector."""
    places = (TensorPlace(start=0, stop=elements, shape=(elements,)),) if elements else ()
    return FlatLayout(dtype=dtype, tensors=places)


class Encoded:
    """A bucket with these values that has been encoded.

    Attributes:
        flat: the bucket.
        wire: what travels.
        memory: the same as the ring sees it.
    """

    def __init__(self, codec: Codec, *values: float, dtype: torch.dtype = torch.float32) -> None:
        self.flat = torch.tensor(values, dtype=dtype)
        self._coder = codec.coder(flat_of(len(values), dtype), 0, CPU)
        assert self._coder is not None
        (wire,) = self._coder.wires(World(), 0)
        self.wire = torch.empty(wire.elements, dtype=wire.dtype)
        self.memory: BucketMemory = bucket_memory(self.wire).shaped(operation=wire.operation)
        if wire.arithmetic is not None:
            self.memory = wire.arithmetic(self.wire, self.memory)
        self._coder.encode(0, self.flat, [self.wire])

    def decoded(self) -> Tensor:
        """The bucket once the wire holds the result."""
        assert self._coder is not None
        self._coder.decode(self.flat, [self.wire])
        return self.flat
