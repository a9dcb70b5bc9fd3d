"""Tensors as buckets."""

from __future__ import annotations

import pytest
import torch

from dtd.train.reduce import bucket_memory, tensor_bytes


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
