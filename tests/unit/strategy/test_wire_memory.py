"""Tensors as buckets, in memory that a neighbour may be let read."""

from __future__ import annotations

import warnings

import pytest
import torch

from dtd.lent_memory import HEAD_BYTES, borrow
from dtd.strategy.wire_memory import RingMemory, bucket_memory, tensor_bytes

LAYOUT = [(3, torch.float32), (0, torch.float64), (17, torch.float64), (1, torch.bfloat16)]


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
    return borrow(lent.descriptor, nonce=lent.nonce, size_bytes=lent.size_bytes)


def test_every_bucket_is_zero_and_as_long_as_asked(make) -> None:
    memory = make(LAYOUT)
    assert [(flat.numel(), flat.dtype) for flat in memory.flats] == LAYOUT
    assert [(one.elements, one.item_bytes) for one in memory.memories] == [
        (count, dtype.itemsize) for count, dtype in LAYOUT
    ]
    assert not any(flat.any() for flat in memory.flats)


def test_tensor_bucket_and_file_are_the_same_memory(make) -> None:
    memory = make(LAYOUT)
    for index, flat in enumerate(memory.flats):
        flat.fill_(index + 1)
    theirs = borrowed(memory)
    for one in memory.memories:
        read = theirs.view(one.home.offset_bytes, len(one.view))
        assert bytes(read) == bytes(one.view)
        assert any(read) == (one.elements > 0)
    memory.memories[0].view[:] = bytes(12)
    assert memory.flats[0].tolist() == [0, 0, 0]


def test_buckets_begin_on_cache_lines_behind_the_head(make) -> None:
    memory = make(LAYOUT)
    offsets = [one.home.offset_bytes for one in memory.memories]
    assert offsets == [HEAD_BYTES, HEAD_BYTES + 64, HEAD_BYTES + 64, HEAD_BYTES + 64 + 192]
    assert {one.home.memory for one in memory.memories} == {memory.memories[0].home.memory}
    assert memory.memories[0].home.memory.size_bytes == offsets[-1] + 64


def test_a_model_without_buckets(make) -> None:
    memory = make([])
    memory.revoke()
    assert memory.flats == memory.memories == []


def test_a_recall_is_seen_by_those_who_read(make) -> None:
    memory = make(LAYOUT)
    theirs = borrowed(memory)
    before = theirs.loan
    assert before == memory.memories[0].home.memory.loan
    memory.revoke()
    assert theirs.loan == memory.memories[0].home.memory.loan == before + 1


def test_tensors_stay_when_nothing_is_lent_any_more(make) -> None:
    memory = make(LAYOUT)
    flats, views = memory.flats, [one.view for one in memory.memories]
    flats[2].fill_(7)
    memory.close()
    del memory
    assert flats[2].tolist() == [7.0] * 17
    views[2][:8] = bytes(8)
    assert flats[2].tolist() == [0.0] + [7.0] * 16


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


# --- tensors as buckets ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_bytes_are_the_tensor_and_adding_is_partial(dtype) -> None:
    flat = torch.arange(6, dtype=dtype)
    memory = bucket_memory(flat)
    assert (memory.elements, memory.item_bytes) == (6, dtype.itemsize)
    received = bytearray(tensor_bytes(torch.tensor([10, 20], dtype=dtype)))
    memory.add(2, 4, memoryview(received))
    memory.add(5, 5, memoryview(b""))
    assert flat.tolist() == [0, 1, 12, 23, 4, 5]
    memory.view[:] = bytes(len(memory.view))
    assert flat.tolist() == [0] * 6


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_bytes_of_any_shape(shape) -> None:
    tensor = torch.full(shape, 7, dtype=torch.int64)
    assert len(tensor_bytes(tensor)) == tensor.numel() * 8
