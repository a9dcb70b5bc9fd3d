"""bfloat16 and float16 on the wire: what is rounded, when, and where the range ends."""

from __future__ import annotations

import struct
import warnings

import numpy as np
import torch

from dtd.strategy.codec.narrow import bfloat16, wide_bfloat16, wide_float16
from dtd.strategy.wire_memory import tensor_bytes
from tests.unit.strategy.codec.narrowed import Encoded

WIDEN = {torch.bfloat16: wide_bfloat16, torch.float16: wide_float16}
"""Lost by rounding to 11 significant bits, and to 8."""


def narrow(*values: float, dtype: torch.dtype = torch.bfloat16) -> memoryview:
    """As it arrives from a neighbour's memory: read-only."""
    return memoryview(bytes(tensor_bytes(torch.tensor(values, dtype=dtype))))


def on_the_wire(bucket: Encoded) -> list[float]:
    return WIDEN[bucket.wire.dtype](bucket.memory.view).tolist()


def test_a_partial_sum_is_kept_in_float32_and_rounded_for_the_next_hop() -> None:
    fine = 1.0 + 2.0**-10
    bucket = Encoded(bfloat16(), fine, fine, 1.0)
    assert on_the_wire(bucket) == [1.0, 1.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a tensor over read-only memory
        bucket.memory.add(1, 3, narrow(2.0**-8, 2.0**-8))
    # The middle one is above the tie only because its own digits are still there.
    assert on_the_wire(bucket) == [1.0, 1.0078125, 1.0]
    assert bucket.flat.tolist() == [fine, fine + 2.0**-8, 1.0 + 2.0**-8]
    assert bucket.decoded().tolist() == [1.0, 1.0078125, 1.0]


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
    sent = on_the_wire(Encoded(bfloat16(), *values.tolist()))
    assert sent == [rounded(value) for value in values.tolist()]
