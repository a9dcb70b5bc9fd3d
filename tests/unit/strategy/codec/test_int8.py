"""Blocks of int8: what is lost, what is kept, and what is not finite."""

from __future__ import annotations

import math

import pytest
import torch

from dtd.strategy.codec.int8 import (
    BLOCK,
    ITEM_BYTES,
    add_dequantised,
    block_count,
    dequantise,
    quantise,
)


def there_and_back(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The decoded values, the loss, and the bytes between."""
    items = torch.full((block_count(len(values)), ITEM_BYTES), 99, dtype=torch.int8)
    lost, read = torch.full_like(values, 7.0), torch.full_like(values, 7.0)
    quantise(values, items, lost)
    dequantise(items, read)
    return read, lost, items


def plainly(values: list[float]) -> list[float]:
    """One block, an element at a time."""
    scale = torch.tensor(max(map(abs, values))) / 127
    return [float(torch.round(torch.tensor(value) / scale) * scale) for value in values]


@pytest.mark.parametrize("elements", [1, 256, 257, 700])
def test_values_are_read_as_steps_of_their_block(elements) -> None:
    values = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
    values[: elements // 2] *= 1e-3
    read, _, _ = there_and_back(values)
    expected = [value for block in values.split(BLOCK) for value in plainly(block.tolist())]
    torch.testing.assert_close(read, torch.tensor(expected), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [3, 258])
def test_what_is_not_finite_is_seen_in_its_block_and_there_only(odd, place) -> None:
    values = torch.ones(300)
    values[place] = odd
    read, _, items = there_and_back(values)
    block = slice(0, 256) if place < 256 else slice(256, 300)
    assert read[block].isnan().all()
    assert read.isnan().sum() == block.stop - block.start
    assert not items[place // BLOCK, 4:].any(), "the same bytes everywhere"
    add_dequantised(items, read)
    assert read[block].isnan().all()


@pytest.mark.parametrize("exponent", [-149, -130, -126, -101, -100, -99, 127])
def test_no_magnitude_is_too_small_or_too_large(exponent) -> None:
    values = torch.tensor([1.0, -0.75, 0.0, 0.01]).double().mul(2.0**exponent).float()
    read, lost, items = there_and_back(values)
    assert torch.equal(read.double() + lost.double(), values.double())
    assert items[0, 4:8].tolist() == ([0] * 4 if exponent < -100 else [127, -95, 0, 1])
