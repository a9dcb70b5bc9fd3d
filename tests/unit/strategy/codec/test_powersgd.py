"""PowerSGD's parts: what it compresses, its factors, and what is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dtd.strategy.codec.api import FlatLayout, TensorPlace, World
from dtd.strategy.codec.powersgd import PowerSGD, orthogonalised
from dtd.strategy.coded_buckets import CodedBuckets

CPU = torch.device("cpu")


def layout(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> FlatLayout:
    places, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        places.append(TensorPlace(start=start, stop=stop, shape=shape))
        start = stop
    return FlatLayout(dtype=dtype, tensors=tuple(places))


@pytest.fixture
def buckets():
    made: list[CodedBuckets] = []

    def make(codec: PowerSGD, *layouts: FlatLayout) -> CodedBuckets:
        made.append(CodedBuckets(layouts, CPU, codec))
        made[-1].regroup(World())
        return made[-1]

    yield make
    for one in made:
        one.close()


def result(buckets: CodedBuckets, values: torch.Tensor) -> torch.Tensor:
    """The result for one rank alone."""
    buckets.exchanges(0)
    buckets.begin(1.0)
    buckets.flats[0].copy_(values)
    buckets.send(0, lambda _, done: done())
    buckets.receive(0, lambda _: None)
    return buckets.flats[0]


@pytest.mark.parametrize(
    ("shape", "compressed"),
    [
        ((20, 20), True),  # (20 + 20) * 4 * 2 < 400
        ((16, 16), False),
        ((20, 2, 10), True),
        ((4000,), False),
        ((1, 4000), False),
        ((), False),
    ],
)
def test_matrices_are_compressed_whose_factors_are_small_enough(shape, compressed) -> None:
    assert (PowerSGD(rank=4).coder(layout(shape), 0, CPU) is not None) is compressed
    assert PowerSGD(rank=4).coder(layout(shape, dtype=torch.float64), 0, CPU) is None


def test_factors_are_orthonormal_and_nothing_is_made_of_what_depends() -> None:
    draw = np.random.default_rng(1)
    factor = draw.standard_normal((5, 37), dtype=np.float32)
    found = orthogonalised(factor)
    assert np.abs(found @ found.T - np.eye(5)).max() < 1e-6
    assert np.abs(factor @ found.T @ found - factor).max() < 1e-5
    factor[2] = factor[0]
    factor[4] = 0
    found = orthogonalised(factor)
    assert [np.abs(row).max() > 0 for row in found] == [True, True, False, True, False]
    assert np.linalg.norm(orthogonalised(factor * np.float32(1e-30))) == pytest.approx(3**0.5)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 777, 1600])
def test_what_is_not_finite_is_found_and_leaves_nothing_behind(buckets, spoilt, place) -> None:
    made = buckets(PowerSGD(rank=2), layout((40, 40), (3,)))
    values = torch.linspace(-1, 1, 1603)
    values[place] = spoilt
    assert not result(made, values).isfinite().all()
    made.rollback()
    made.commit()
    assert result(made, torch.linspace(-1, 1, 1603)).isfinite().all()
