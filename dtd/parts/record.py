"""The record of a part of a checkpoint: the shards it has, and the ranges of each tensor.

Where the state is sharded, each rank writes a part: the ranges of elements that it holds of the
sharded tensors, its own ones and mirrors of others', and all tensors of the common part.  A part
has the files of a whole checkpoint.  In them a sharded tensor is one-dimensional: the ranges that
are held, one after another.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from dtd.engine.shards import ShardSet
from dtd.errors import CheckpointError, ProtocolError
from dtd.parts.tensor_file import ITEM_BYTES, TensorInfo, checked_shape, checked_size
from dtd.shown import shown

MAX_TENSOR_RANGES: Final = 1024
"""Most ranges of one tensor in a part: far more than a rank's shards cut out of a bucket."""

MAX_RANGES: Final = 1 << 18
"""Most ranges of all tensors in a part."""

Range = tuple[int, int]
"""Elements [start, stop) of a flattened tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """A sharded tensor, as far as a part has it.

    Attributes:
        dtype: its element type, as safetensors names it.
        shape: of the whole tensor.
        ranges: the part's ranges of the flattened tensor, ascending and disjoint.
    """

    dtype: str
    shape: tuple[int, ...]
    ranges: tuple[Range, ...]

    @property
    def elements(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def held_elements(self) -> int:
        """Number of elements in the part."""
        return sum(stop - start for start, stop in self.ranges)

    def stored_as(self, name: str) -> TensorInfo:
        """The tensor in the part's file, under the name that it has there."""
        return TensorInfo(name=name, dtype=self.dtype, shape=(self.held_elements,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The entry `part` of a manifest.

    Attributes:
        shards: the part's shards of the sharded tensors.
        mirrors: further holders of each shard in the generation that wrote it.
        tensors: the sharded tensors by their name in the manifest; others are there as a whole.
    """

    shards: ShardSet
    mirrors: int
    tensors: Mapping[str, HeldTensor]

    def to_mapping(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "shards": self.shards.to_wire(),
            "mirrors": self.mirrors,
            "tensors": {
                name: {
                    "dtype": one.dtype,
                    "shape": [*one.shape],
                    "ranges": [*map(list, one.ranges)],
                }
                for name, one in self.tensors.items()
            },
        }

    @classmethod
    def from_mapping(cls, content: Any) -> Part:
        """Return what JSON describes.

        Raises:
            CheckpointError: it describes no part, or one that contradicts itself.
        """
        try:
            part = cls(
                shards=ShardSet.from_wire([checked_size(one) for one in content["shards"]]),
                mirrors=checked_size(content["mirrors"]),
                tensors={name: _tensor(name, one) for name, one in content["tensors"].items()},
            )
            if sum(len(one.ranges) for one in part.tensors.values()) > MAX_RANGES:
                raise ValueError(f"its tensors have more than {MAX_RANGES} ranges")
            if content.keys() != {"shards", "mirrors", "tensors"}:
                raise ValueError("it has other entries than a part")
        except ProtocolError as error:
            raise CheckpointError(f"the part of a checkpoint is broken: {error.message}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the part of a checkpoint is broken: {error}") from error
        part._check_share()
        return part

    def _check_share(self) -> None:
        """Check that the ranges make up the shards.

        Each interval is cut out of every bucket to the element, and a bucket has at least one
        tensor; so the ranges differ from the exact share by less than an element in each.
        """
        share = sum((stop - start for start, stop in self.shards.intervals), Fraction(0))
        total = sum(one.elements for one in self.tensors.values())
        held = sum(one.held_elements for one in self.tensors.values())
        slack = 0 if self.shards.is_whole else len(self.shards.intervals) * len(self.tensors)
        if not self.shards or abs(held - total * share) > slack:
            raise CheckpointError(
                f"a part of a checkpoint says that it has {self.shards} of the shards, and has"
                f" {held} of {total} elements"
            )


def _tensor(name: str, content: Mapping[str, Any]) -> HeldTensor:
    if content.keys() != {"dtype", "shape", "ranges"} or content["dtype"] not in ITEM_BYTES:
        raise ValueError(f"{shown(name)} is no description of a tensor")
    if len(content["ranges"]) > MAX_TENSOR_RANGES:
        count = len(content["ranges"])
        raise ValueError(f"{shown(name)} has {count} ranges: over {MAX_TENSOR_RANGES}")
    ranges = tuple((checked_size(start), checked_size(stop)) for start, stop in content["ranges"])
    tensor = HeldTensor(
        dtype=content["dtype"], shape=checked_shape(content["shape"]), ranges=ranges
    )
    bounds = [bound for one in ranges for bound in one]
    # Two that touch may belong to two buckets' segments; nothing may be there twice.
    if (
        any(start >= stop for start, stop in ranges)
        or any(before > after for before, after in pairwise(bounds))
        or bounds[-1:] > [tensor.elements]
    ):
        raise ValueError(f"{shown(name)}: its ranges do not ascend within its elements")
    return tensor
