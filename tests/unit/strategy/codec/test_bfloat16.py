"""bfloat16 on the wire: what is rounded, when, and what is not."""

from __future__ import annotations

import math
import struct
import warnings

import numpy as np
import pytest
import torch

from dtd.strategy.codec.api import World
from dtd.strategy.codec.bfloat16 import bfloat16, widened
from dtd.strategy.wire_memory import bucket_memory, tensor_bytes
from tests.unit.strategy.codec.narrowed import CPU, Encoded, flat_of

FINE = 1.0 + 2.0**-10
"""Lost by rounding to 8 significant bits."""


def narrow(*values: float) -> memoryview:
    """As it arrives from a neighbour's memory: bfloat16, read-only."""
    return memoryview(bytes(tensor_bytes(torch.tensor(values, dtype=torch.bfloat16))))


def staged(*values: float) -> Encoded:
    """A bucket with these gradients on its way to the ring."""
    return Encoded(bfloat16(), *values)


def travelling(bucket: Encoded) -> list[float]:
    return widened(bucket.memory.view).tolist()


@pytest.mark.parametrize(
    ("dtype", "travels"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float64),
        (torch.float16, torch.float16),
    ],
)
def test_only_float32_gets_narrower(dtype, travels) -> None:
    for elements in (3, 0):
        coder = bfloat16().coder(flat_of(elements, dtype), 0, CPU)
        (wire,) = coder.wires(World(size=3), 7)
        assert (wire.elements, wire.dtype) == (elements, travels)


def test_what_is_not_narrowed_is_added_in_its_own_type() -> None:
    bucket = Encoded(bfloat16(), 1.0, 2.0, dtype=torch.float64)
    bucket.memory.add(0, 2, memoryview(struct.pack("<2d", FINE, 1e-300)))
    assert bucket.decoded().tolist() == [1.0 + FINE, 2.0]


def test_a_partial_sum_is_kept_in_float32_and_rounded_for_the_next_hop() -> None:
    bucket = staged(FINE, FINE, 1.0)
    assert travelling(bucket) == [1.0, 1.0, 1.0]
    memory = bucket.memory
    memory.add(1, 3, narrow(2.0**-8, 2.0**-8))
    # The middle one is above the tie only because its own digits are still there.
    assert travelling(bucket) == [1.0, 1.0078125, 1.0]
    assert bucket.flat.tolist() == [FINE, FINE + 2.0**-8, 1.0 + 2.0**-8]
    memory.add(3, 3, memoryview(b""))


def test_what_comes_back_is_what_travelled() -> None:
    assert staged(FINE, 1.0).decoded().tolist() == [1.0, 1.0]


def test_a_bucket_that_goes_round_whole_is_rounded_once() -> None:
    bucket = staged(0.0)
    parts = (1.0, 2.0**-9, 2.0**-9, 2.0**-9)
    total = bucket.memory.total
    assert total is not None
    total([narrow(part) for part in parts])
    assert travelling(bucket) == [1.0078125]
    one_by_one = torch.zeros(1, dtype=torch.bfloat16)
    for part in parts:
        one_by_one += part
    assert one_by_one.item() == 1.0


def test_on_a_gpu_the_wire_adds_as_its_type_does_but_its_total_is_wide() -> None:
    coder = bfloat16().coder(flat_of(1), 0, torch.device("cuda"))
    (one,) = coder.wires(World(), 0)
    wire = torch.ones(1, dtype=torch.bfloat16)
    memory = one.arithmetic(wire, bucket_memory(wire))
    memory.add(0, 1, memoryview(bytearray(narrow(2.0**-8))))
    assert wire.item() == 1.0
    assert memory.total is not None
    memory.total([narrow(1.0), narrow(2.0**-9), narrow(2.0**-9), narrow(2.0**-9)])
    assert wire.item() == 1.0078125


def test_lent_memory_is_read_without_a_warning() -> None:
    bucket = staged(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bucket.memory.add(0, 1, narrow(1.0))
    assert travelling(bucket) == [2.0]


def rounded(value: float) -> float:
    """To 8 significant bits, ties to even, in integers."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def test_rounding_is_to_nearest_even_on_this_processor_down_to_subnormals() -> None:
    draw = np.random.default_rng(5)
    bits = draw.integers(0, 0x7F000000, size=4099, dtype=np.uint32)
    bits[:64] = np.arange(64) << 12  # subnormals, and zero
    bits[64:128] = 0x3F800000 + (np.arange(64) << 13)  # ties, and what is next to them
    values = bits.view(np.float32) * draw.choice([-1.0, 1.0], size=4099).astype(np.float32)
    assert travelling(staged(*values.tolist())) == [rounded(value) for value in values.tolist()]


def test_what_is_not_finite_stays_so() -> None:
    bucket = staged(math.inf, math.nan, -math.inf, math.inf, 1.0)
    assert [math.isfinite(value) for value in travelling(bucket)] == [False] * 4 + [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bucket.memory.add(3, 5, narrow(-math.inf, math.inf))
        values = bucket.decoded().tolist()
    assert values[0] == math.inf
    assert values[2] == -math.inf
    assert values[4] == math.inf
    assert [math.isnan(value) for value in values] == [False, True, False, True, False]
