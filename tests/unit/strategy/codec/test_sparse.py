"""Which gradients travel and what becomes of the others, against Algorithm 4 of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from dtd.strategy.codec.sparse import (
    Unsent,
    largest,
    selected_count,
)

CPU = torch.device("cpu")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- which ------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 5000, 16384, 40000])
@pytest.mark.parametrize("density", [0.001, 0.25, 0.6, 1.0])
def test_the_largest_are_those_of_a_sort(elements, density) -> None:
    values, count = noise(elements, seed=elements), selected_count(elements, density)
    places = largest(values, count)
    assert torch.equal(places, places.unique())
    expected = values.abs().sort(descending=True).values[:count]
    assert torch.equal(values.abs()[places].sort(descending=True).values, expected)


def test_a_nan_and_an_infinity_are_larger_than_any_number() -> None:
    values = noise(30_000)
    values[17], values[29_999] = math.nan, -math.inf
    assert {17, 29_999} <= set(largest(values, 30).tolist())
    values.fill_(math.nan)
    assert len(largest(values, 30)) == 30


# --- what becomes of the others ---------------------------------------------------------------


def published(gradients, momentum, select):
    """Algorithm 4 of arXiv:1712.01887 for one node, line by line, without clipping."""
    u = v = torch.zeros_like(gradients[0])
    sent = []
    for gradient in gradients:
        u = momentum * u + gradient
        v = v + u
        mask = torch.zeros_like(v, dtype=torch.bool)
        mask[select(v)] = True
        sent.append(v * mask)
        v = v * ~mask
        u = u * ~mask
    return sent, u, v


def stepped(unsent, gradient, select, whole=0):
    """One committed step; what is sent, in its places."""
    before, sent = gradient.clone(), torch.zeros_like(gradient)
    v = unsent.accumulate(gradient)
    assert torch.equal(gradient, before)
    places = select(v)
    sent[places] = unsent.take(places, len(places) - whole)
    for one in unsent.local:
        one.commit()
    return sent


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_run_of_steps_is_that_of_the_paper(momentum) -> None:
    gradients = list(noise(20, 50, seed=4))
    expected, last_u, last_v = published(gradients, momentum, lambda v: v.abs().topk(5).indices)
    unsent = Unsent(50, CPU, momentum)
    for gradient, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(stepped(unsent, gradient, lambda v: largest(v, 5)), want)
    torch.testing.assert_close(unsent.residual.current, last_v)
    assert len(unsent.local) == (2 if momentum else 1)
    if momentum:
        torch.testing.assert_close(unsent.local[1].current, last_u)
