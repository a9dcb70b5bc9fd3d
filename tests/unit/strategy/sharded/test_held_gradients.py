"""The memory of the gradients that a rank holds: what is put where, and how much of it there is."""

from __future__ import annotations

import torch

from dtd.engine.shards import NOTHING, ShardSet
from dtd.strategy.codec.api import FlatLayout, TensorPlace
from dtd.strategy.sharded.held_gradients import HeldGradients

LENGTHS = (7, 130, 33)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def held() -> HeldGradients:
    return HeldGradients(
        [
            FlatLayout(dtype=dtype, tensors=(TensorPlace(start=0, stop=length, shape=(length,)),))
            for length, dtype in zip(LENGTHS, DTYPES, strict=True)
        ]
    )


def sums(bucket: int) -> torch.Tensor:
    return torch.arange(LENGTHS[bucket]).add(100 * bucket).to(DTYPES[bucket])


def test_each_part_has_its_own_elements_whatever_lies_beside_it() -> None:
    gradients = held()
    shards = ShardSet.segments([0, 2], 4)
    gradients.hold(shards)
    for first in (True, False):
        for bucket in (2, 0, 1):
            gradients.take(bucket, sums(bucket), first=first)
    gradients.scale(0.5)
    for bucket, length in enumerate(LENGTHS):
        for start, stop in shards.ranges(length):
            part = gradients.part(bucket, start, stop)
            assert part.dtype == DTYPES[bucket]
            assert torch.equal(part, sums(bucket)[start:stop])


def test_all_parts_share_one_block_on_lines_of_their_own() -> None:
    gradients = held()
    shards = ShardSet.segments([1, 3], 4)
    gradients.hold(shards)
    parts = [
        gradients.part(bucket, start, stop)
        for bucket, length in enumerate(LENGTHS)
        for start, stop in shards.ranges(length)
    ]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(part.data_ptr() % 64 == 0 for part in parts)
    assert gradients.size_bytes == sum(part.nbytes for part in parts)
    gradients.hold(NOTHING)
    assert gradients.size_bytes == 0
