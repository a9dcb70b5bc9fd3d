"""Copies and hashes of large tensors, piece by piece."""

from __future__ import annotations

import pytest
import torch
import xxhash

import dtd.train.bulk as bulk
from dtd.strategy.wire_memory import tensor_bytes

PIECES = 5


@pytest.fixture
def large(monkeypatch):
    """A tensor of so many pieces."""
    monkeypatch.setattr(bulk, "PIECE_BYTES", 64)
    return torch.arange(16 * PIECES - 3, dtype=torch.float32)


@pytest.fixture
def marks():
    return []


@pytest.fixture
def progress(marks):
    return lambda: marks.append(1)


def test_a_hash_is_that_of_the_whole_and_is_seen_to_get_on(large, marks, progress):
    content = xxhash.xxh3_128()
    bulk.add_to_hash(content, large, progress)
    assert content.digest() == xxhash.xxh3_128(tensor_bytes(large)).digest()
    assert len(marks) == PIECES


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(3.0), torch.empty(0, 7), torch.arange(12).reshape(3, 4).T, torch.ones(2) > 0],
    ids=["scalar", "empty", "transposed", "bool"],
)
def test_any_tensor_can_be_hashed_and_copied(tensor, progress):
    content = xxhash.xxh3_128()
    bulk.add_to_hash(content, tensor, progress)
    assert content.digest() == xxhash.xxh3_128(tensor_bytes(tensor.contiguous())).digest()
    copy = bulk.copied_to_host(tensor, progress)
    assert copy.is_contiguous()
    assert (copy.shape, copy.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(copy, tensor)


def test_a_copy_has_memory_of_its_own_and_is_seen_to_get_on(large, marks, progress):
    copy = bulk.copied_to_host(large, progress)
    assert len(marks) == PIECES
    large.zero_()
    assert copy[5] == 5.0


def test_content_goes_into_tensors_that_do_not_lie_in_a_row(large, marks, progress):
    target = torch.zeros(len(large), 2)[:, 0]
    bulk.copy_into(target, large, progress)
    assert torch.equal(target, large)
    assert len(marks) == 1


def test_who_watches_may_give_up(large):
    with pytest.raises(ZeroDivisionError):
        bulk.add_to_hash(xxhash.xxh3_128(), large, lambda: 1 // 0)
