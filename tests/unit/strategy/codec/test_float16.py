"""float16 on the wire: what is rounded, and where its range ends."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from dtd.strategy.codec.float16 import float16, widened
from dtd.strategy.staging import staging_for
from dtd.strategy.wire_memory import tensor_bytes

CPU = torch.device("cpu")
LARGEST = 65504.0
FINE = 1.0 + 2.0**-12
"""Lost by rounding to 11 significant bits."""


def narrow(*values: float) -> memoryview:
    """As it arrives from a neighbour's memory: float16, read-only."""
    return memoryview(bytes(tensor_bytes(torch.tensor(values, dtype=torch.float16))))


@pytest.fixture
def staged():
    """Makes a bucket with these gradients that is on its way to the ring."""
    made = []

    def stage(*values: float):
        staging = staging_for([(len(values), torch.float32)], CPU, float16())
        made.append(staging)
        staging.flats[0].copy_(torch.tensor(values))
        staging.send(0, lambda index: None)
        return staging

    yield stage
    for staging in made:
        staging.close()


def travelling(staging) -> list[float]:
    return widened(staging.memories[0].view).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_only_float32_gets_narrower(dtype) -> None:
    assert float16().travels_as(torch.float32) == torch.float16
    assert float16().travels_as(dtype) == dtype


def test_what_is_read_is_what_was_sent_without_a_warning() -> None:
    values = [0.0, -0.0, 1.5, -LARGEST, 2.0**-24, math.inf, -math.inf]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = widened(narrow(*values, math.nan))
    assert read.tolist()[:-1] == values
    assert math.isnan(read[-1])
    assert widened(narrow()).tolist() == []


def test_a_gradient_is_rounded_to_eleven_digits(staged) -> None:
    assert travelling(staged(FINE, 1.0 + 2.0**-10, 3e-5)) == [
        1.0,
        1.0 + 2.0**-10,
        torch.tensor(3e-5).half().item(),
    ]


def test_what_is_out_of_range_is_infinite_and_what_is_too_small_is_zero(staged) -> None:
    assert travelling(staged(LARGEST, LARGEST + 16, -1e6, 2.0**-26)) == [
        LARGEST,
        math.inf,
        -math.inf,
        0.0,
    ]


def test_a_partial_sum_is_kept_in_float32_and_rounded_for_the_next_hop(staged) -> None:
    staging = staged(FINE, LARGEST)
    staging.memories[0].add(0, 2, narrow(2.0**-11, LARGEST))
    assert staging.flats[0].tolist() == [FINE + 2.0**-11, 2 * LARGEST]
    assert travelling(staging) == [1.0 + 2.0**-10, math.inf]


def test_an_overflow_is_not_undone_by_what_is_added_later(staged) -> None:
    staging = staged(-LARGEST)
    staging.memories[0].add(0, 1, narrow(math.inf))
    assert travelling(staging) == [math.inf]
    assert staging.memories[0].total is not None
    staging.memories[0].total([narrow(LARGEST), narrow(LARGEST), narrow(1.0)])
    assert travelling(staging) == [math.inf]


def test_every_rank_takes_what_travelled(staged) -> None:
    staging = staged(FINE, 1e6)
    staging.receive(0, lambda index: None)
    assert staging.flats[0].tolist() == [1.0, math.inf]
