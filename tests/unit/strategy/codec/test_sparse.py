"""Which gradients travel and what becomes of the others, against Algorithm 4 of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from dtd.strategy.codec.api import FlatLayout, TensorPlace
from dtd.strategy.codec.sparse import (
    Unsent,
    density_at,
    drawn,
    largest,
    selected_count,
    travels_whole,
    whole_places,
)

CPU = torch.device("cpu")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- how many ---------------------------------------------------------------------------------


def test_the_share_falls_by_four_in_equal_stages() -> None:
    shares = [density_at(step, density=0.01, warmup_steps=30) for step in range(32)]
    assert shares == [1 / 4] * 10 + [1 / 16] * 10 + [1 / 64] * 10 + [0.01] * 2


# --- which ------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 5000, 16384, 40000])
@pytest.mark.parametrize("density", [0.001, 0.25, 0.6, 1.0])
def test_the_largest_are_those_of_a_sort(elements, density) -> None:
    values, count = noise(elements, seed=elements), selected_count(elements, density)
    places = largest(values, count)
    assert torch.equal(places, places.unique())
    expected = values.abs().sort(descending=True).values[:count]
    assert torch.equal(values.abs()[places].sort(descending=True).values, expected)


def test_a_sample_that_says_nothing_is_not_relied_on() -> None:
    """All that is sampled is large, and hardly anything else; and the other way round."""
    values = noise(40_960).abs() * 1e-3
    values[::10] = 1.0
    assert len(largest(values, 400)) == 400
    assert values[largest(values, 400)].eq(1.0).all()
    few = torch.zeros(40_960)
    few[1:6] = 1.0
    assert set(range(1, 6)) <= set(largest(few, 40).tolist())


def test_a_nan_and_an_infinity_are_larger_than_any_number() -> None:
    values = noise(30_000)
    values[17], values[29_999] = math.nan, -math.inf
    assert {17, 29_999} <= set(largest(values, 30).tolist())
    values.fill_(math.nan)
    assert len(largest(values, 30)) == 30


def test_draws_are_one_from_each_part_and_follow_from_their_key() -> None:
    places = drawn(1000, 90, 1, 2, 3)
    edges = [index * 1000 // 90 for index in range(91)]
    for place, start, stop in zip(places.tolist(), edges[:-1], edges[1:], strict=True):
        assert start <= place < stop
    assert torch.equal(places, drawn(1000, 90, 1, 2, 3))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (12, 3)):
        assert not torch.equal(places, drawn(1000, 90, *other))
    assert drawn(5, 5, 0).tolist() == [0, 1, 2, 3, 4]


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


def test_no_velocity_outlives_its_sending_but_that_of_whole_tensors() -> None:
    """All is selected: plain SGD.  All is whole: SGD with momentum, of torch."""
    gradients = noise(5, 8, seed=6)
    selected, whole = Unsent(8, CPU, 0.9), Unsent(8, CPU, 0.9)
    parameter = torch.zeros(8, requires_grad=True)
    sgd = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    moved, everything = torch.zeros(8), torch.arange(8)
    for gradient in gradients:
        torch.testing.assert_close(stepped(selected, gradient, lambda _: everything), gradient)
        moved -= stepped(whole, gradient, lambda _: everything, whole=8)
        parameter.grad = gradient
        sgd.step()
        torch.testing.assert_close(moved, parameter.detach())


# --- what travels whole -----------------------------------------------------------------------


def layout(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> FlatLayout:
    places, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        places.append(TensorPlace(start=start, stop=stop, shape=shape))
        start = stop
    return FlatLayout(dtype=dtype, tensors=tuple(places))


def test_vectors_and_small_matrices_travel_whole() -> None:
    mixed = layout((2,), (32, 32), (2000,), (3, 5), (4, 16, 4, 4))
    assert [travels_whole(one) for one in mixed.tensors] == [True, False, True, True, False]
    assert whole_places(mixed).tolist() == [0, 1, *range(1026, 3041)]
    assert whole_places(layout((64, 64))).tolist() == []
