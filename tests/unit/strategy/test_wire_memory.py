"""Tensors as buckets, in memory that a neighbour may be let read."""

from __future__ import annotations

import warnings

import pytest
import torch

from dtd.host.shared_memory import map_memory
from dtd.strategy.wire_memory import RingMemory


@pytest.fixture
def make():
    """Makes ring memory of a layout; its file is closed in the end."""
    made: list[RingMemory] = []

    def new(layout) -> RingMemory:
        made.append(RingMemory(layout))
        return made[-1]

    yield new
    for one in made:
        one.close()


def borrowed(memory: RingMemory):
    lent = memory.memories[0].home.memory
    return map_memory(lent.descriptor, nonce=lent.nonce, size_bytes=lent.size_bytes)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]
)
def test_what_is_lent_can_be_added_in_any_type_without_a_warning(make, dtype) -> None:
    theirs, ours = make([(5, dtype)]), make([(5, dtype)])
    theirs.flats[0].copy_(torch.arange(5))
    ours.flats[0].fill_(1)
    home = theirs.memories[0].home
    view = borrowed(theirs).view(home.offset_bytes + 2 * dtype.itemsize, 2 * dtype.itemsize)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.memories[0].add(2, 4, view)
    assert ours.flats[0].tolist() == [1, 1, 3, 4, 1]
