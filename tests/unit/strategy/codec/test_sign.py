"""Signs and a scale a tensor, against Algorithm 1 of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from dtd.strategy.codec.sign import (
    add_signs,
    encode_signs,
    packed_bytes,
)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def encoded(values: torch.Tensor, tensors):
    """Scales, bits, and what is lost."""
    lost = values.clone()
    scales, bits = encode_signs(lost, tensors)
    assert len(bits) == packed_bytes(len(values))
    return scales, bits, lost


def read(scales, bits, tensors, elements: int) -> torch.Tensor:
    values = torch.zeros(elements)
    add_signs(scales, bits, tensors, values)
    return values


@pytest.mark.parametrize("elements", [1, 8, 1001])
def test_a_run_of_steps_is_that_of_the_paper(elements) -> None:
    """p = g + e;  D = (|p|_1 / d) sign(p);  e = p - D, with a learning rate of 1."""
    error, lost = torch.zeros(elements), torch.zeros(elements)
    for gradient in noise(10, elements, seed=1):
        p = gradient + error
        delta = p.abs().sum() / elements * p.sign()
        error = p - delta
        scales, bits, lost = encoded(gradient + lost, [(0, elements)])
        torch.testing.assert_close(read(scales, bits, [(0, elements)], elements), delta)
        torch.testing.assert_close(lost, error)


def test_a_negative_zero_is_read_as_it_was_sent() -> None:
    values = torch.tensor([-0.0, 0.0, 6.0])
    scales, bits, lost = encoded(values, [(0, 3)])
    assert torch.equal(read(scales, bits, [(0, 3)], 3) + lost, values.abs())


@pytest.mark.parametrize("odd", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_in_its_tensor(odd) -> None:
    values = torch.ones(20)
    values[2] = odd
    tensors = [(0, 9), (9, 20)]
    scales, bits, _ = encoded(values, tensors)
    got = read(scales, bits, tensors, 20)
    assert not got[:9].isfinite().any()
    assert got[9:].eq(1.0).all()
