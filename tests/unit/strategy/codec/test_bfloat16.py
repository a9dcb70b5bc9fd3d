"""bfloat16 on the wire: what is rounded, when, and what is not."""

from __future__ import annotations

import math
import struct
import warnings

import numpy as np
import pytest
import torch

from dtd.strategy.codec.bfloat16 import bfloat16, widened
from dtd.strategy.staging import staging_for
from dtd.strategy.wire_memory import bucket_memory, tensor_bytes

CPU = torch.device("cpu")
FINE = 1.0 + 2.0**-10
"""Lost by rounding to 8 significant bits."""


def narrow(*values: float) -> memoryview:
    """As it arrives from a neighbour's memory: bfloat16, read-only."""
    return memoryview(bytes(tensor_bytes(torch.tensor(values, dtype=torch.bfloat16))))


def staged(*values: float):
    """A bucket with these gradients on its way to the ring."""
    staging = staging_for([(len(values), torch.float32)], CPU, bfloat16())
    staging.flats[0].copy_(torch.tensor(values))
    started: list[int] = []
    staging.send(0, started.append)
    assert started == [0]
    return staging


def travelling(staging) -> list[float]:
    return widened(staging.memories[0].view).tolist()


@pytest.mark.parametrize(
    ("dtype", "codec", "travels"),
    [
        (torch.float32, bfloat16(), torch.bfloat16),
        (torch.float64, bfloat16(), torch.float64),
        (torch.float16, bfloat16(), torch.float16),
        (torch.float32, None, torch.float32),
    ],
)
def test_only_float32_gets_narrower_and_only_if_asked(dtype, codec, travels) -> None:
    staging = staging_for([(3, dtype), (0, dtype)], CPU, codec)
    assert [flat.dtype for flat in staging.flats] == [dtype, dtype]
    memory = staging.memories[0]
    assert (memory.item_bytes, memory.elements) == (travels.itemsize, 3)
    assert memory.home is not None
    wire_bytes = 3 * travels.itemsize if travels != dtype else 0
    assert staging.size_bytes == 3 * dtype.itemsize + wire_bytes
    staging.close()


def test_what_is_not_narrowed_is_worked_on_where_it_lies() -> None:
    staging = staging_for([(2, torch.float64), (2, torch.float32)], CPU, bfloat16())
    staging.flats[0].copy_(torch.tensor([1.0, 2.0]))
    staging.send(0, lambda index: None)
    staging.memories[0].add(0, 2, memoryview(struct.pack("<2d", FINE, 1e-300)))
    staging.receive(0, lambda index: None)
    assert staging.flats[0].tolist() == [1.0 + FINE, 2.0]


def test_a_partial_sum_is_kept_in_float32_and_rounded_for_the_next_hop() -> None:
    staging = staged(FINE, FINE, 1.0)
    assert travelling(staging) == [1.0, 1.0, 1.0]
    memory = staging.memories[0]
    memory.add(1, 3, narrow(2.0**-8, 2.0**-8))
    # The middle one is above the tie only because its own digits are still there.
    assert travelling(staging) == [1.0, 1.0078125, 1.0]
    assert staging.flats[0].tolist() == [FINE, FINE + 2.0**-8, 1.0 + 2.0**-8]
    memory.add(3, 3, memoryview(b""))


def test_what_comes_back_is_what_travelled() -> None:
    staging = staged(FINE, 1.0)
    waited: list[int] = []
    staging.receive(0, waited.append)
    staging.settle()
    assert waited == [0]
    assert staging.flats[0].tolist() == [1.0, 1.0]


def test_a_bucket_that_goes_round_whole_is_rounded_once() -> None:
    staging = staged(0.0)
    parts = (1.0, 2.0**-9, 2.0**-9, 2.0**-9)
    total = staging.memories[0].total
    assert total is not None
    total([narrow(part) for part in parts])
    assert travelling(staging) == [1.0078125]
    one_by_one = torch.zeros(1, dtype=torch.bfloat16)
    for part in parts:
        one_by_one += part
    assert one_by_one.item() == 1.0


def test_a_wire_buffer_alone_adds_as_its_type_does_but_its_total_is_wide() -> None:
    wire = torch.ones(1, dtype=torch.bfloat16)
    memory = bfloat16().summed_alone(wire, bucket_memory(wire))
    memory.add(0, 1, memoryview(bytearray(narrow(2.0**-8))))
    assert wire.item() == 1.0
    assert memory.total is not None
    memory.total([narrow(1.0), narrow(2.0**-9), narrow(2.0**-9), narrow(2.0**-9)])
    assert wire.item() == 1.0078125


def test_lent_memory_is_read_without_a_warning() -> None:
    staging = staged(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staging.memories[0].add(0, 1, narrow(1.0))
    assert travelling(staging) == [2.0]


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
    staging = staged(math.inf, math.nan, -math.inf, math.inf, 1.0)
    assert [math.isfinite(value) for value in travelling(staging)] == [False] * 4 + [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staging.memories[0].add(3, 5, narrow(-math.inf, math.inf))
        staging.receive(0, lambda index: None)
    values = staging.flats[0].tolist()
    assert values[0] == math.inf
    assert values[2] == -math.inf
    assert values[4] == math.inf
    assert [math.isnan(value) for value in values] == [False, True, False, True, False]
