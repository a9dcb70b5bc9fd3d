"""float16 on the wire: what is rounded, and where its range ends."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from dtd.strategy.codec.api import World
from dtd.strategy.codec.float16 import float16, widened
from dtd.strategy.wire_memory import tensor_bytes
from tests.unit.strategy.codec.narrowed import CPU, Encoded, flat_of

LARGEST = 65504.0
FINE = 1.0 + 2.0**-12
"""Lost by rounding to 11 significant bits."""


def narrow(*values: float) -> memoryview:
    """As it arrives from a neighbour's memory: float16, read-only."""
    return memoryview(bytes(tensor_bytes(torch.tensor(values, dtype=torch.float16))))


def staged(*values: float) -> Encoded:
    """A bucket with these gradients on its way to the ring."""
    return Encoded(float16(), *values)


def travelling(bucket: Encoded) -> list[float]:
    return widened(bucket.memory.view).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_only_float32_gets_narrower(dtype) -> None:
    for given, travels in ((torch.float32, torch.float16), (dtype, dtype)):
        (wire,) = float16().coder(flat_of(2, given), 0, CPU).wires(World(), 0)
        assert wire.dtype == travels


def test_what_is_read_is_what_was_sent_without_a_warning() -> None:
    values = [0.0, -0.0, 1.5, -LARGEST, 2.0**-24, math.inf, -math.inf]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = widened(narrow(*values, math.nan))
    assert read.tolist()[:-1] == values
    assert math.isnan(read[-1])
    assert widened(narrow()).tolist() == []


def test_a_gradient_is_rounded_to_eleven_digits() -> None:
    assert travelling(staged(FINE, 1.0 + 2.0**-10, 3e-5)) == [
        1.0,
        1.0 + 2.0**-10,
        torch.tensor(3e-5).half().item(),
    ]


def test_what_is_out_of_range_is_infinite_and_what_is_too_small_is_zero() -> None:
    assert travelling(staged(LARGEST, LARGEST + 16, -1e6, 2.0**-26)) == [
        LARGEST,
        math.inf,
        -math.inf,
        0.0,
    ]


def test_a_partial_sum_is_kept_in_float32_and_rounded_for_the_next_hop() -> None:
    bucket = staged(FINE, LARGEST)
    bucket.memory.add(0, 2, narrow(2.0**-11, LARGEST))
    assert bucket.flat.tolist() == [FINE + 2.0**-11, 2 * LARGEST]
    assert travelling(bucket) == [1.0 + 2.0**-10, math.inf]


def test_an_overflow_is_not_undone_by_what_is_added_later() -> None:
    bucket = staged(-LARGEST)
    bucket.memory.add(0, 1, narrow(math.inf))
    assert travelling(bucket) == [math.inf]
    assert bucket.memory.total is not None
    bucket.memory.total([narrow(LARGEST), narrow(LARGEST), narrow(1.0)])
    assert travelling(bucket) == [math.inf]


def test_every_rank_takes_what_travelled() -> None:
    assert staged(FINE, 1e6).decoded().tolist() == [1.0, math.inf]
