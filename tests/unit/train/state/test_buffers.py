"""Running buffers: snapshot, combine, restore, and statistics that are estimated anew."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dtd.strategy.scalars import StepScalars
from dtd.train.state.buffers import RunningBuffers, estimated_anew, layers_with_statistics

MANY = 2**53 + 1
"""No float64 holds it."""


class Buffered(nn.Module):
    """One buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("constant", torch.tensor([float("-inf"), 1 / 3]))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("derived", torch.tensor([9.0]), persistent=False)


def holding(**values: torch.Tensor) -> nn.Module:
    model = nn.Module()
    for name, value in values.items():
        model.register_buffer(name, value.clone())
    return model


def tail_of(buffers: RunningBuffers) -> StepScalars:
    return StepScalars(parameters=3, buffer_elements=buffers.elements, buffer_words=buffers.words)


def exchange(models, shares, change) -> None:
    """A step: each rank with rows changes its own model, then all combine."""
    buffers = [RunningBuffers(model) for model in models]
    tails = [tail_of(own) for own in buffers]
    for rank, (own, tail, share) in enumerate(zip(buffers, tails, shares, strict=True)):
        own.take_snapshot()
        if share:
            change(rank, models[rank])
        follows = rank == max(r for r, other in enumerate(shares) if other)
        own.write(tail.buffer_elements, tail.buffer_words, share=share, follows=follows)
    for tail in tails[1:]:
        tails[0].memory.add(0, tails[0].memory.shape.elements, tail.memory.view)
    for own in buffers:
        own.apply(tails[0].buffer_elements, tails[0].buffer_words)


def bits(value: torch.Tensor) -> bytes:
    return value.contiguous().view(torch.uint8).numpy().tobytes()


def test_floats_are_averaged_and_integers_follow_the_last_rank() -> None:
    def change(rank, model) -> None:
        model.mean.add_(float(rank + 1))
        model.count.add_(rank + 1)
        model.mask.copy_(torch.tensor([False, rank == 2]))

    models = [Buffered() for _ in range(3)]
    exchange(models, [0.25, 0.25, 0.5], change)
    for model in models:
        assert model.mean.tolist() == [3.25, 4.25]
        assert int(model.count) == 8
        assert model.count.dtype == torch.int64
        assert model.mask.tolist() == [False, True]
        assert torch.equal(model.constant, Buffered().constant)


HARD = {
    "int64": torch.tensor([MANY, -MANY, 2**63 - 1, -(2**63), 0]),
    "int32": torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32),
    "uint8": torch.tensor([255, 0], dtype=torch.uint8),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "bool": torch.tensor([True, False]),
    "float64": torch.tensor(
        [1 / 3, -0.0, 5e-324, 1.7e308, math.inf, -math.inf, 1e300, 1.0], dtype=torch.float64
    ),
    "float32": torch.tensor([1 / 3, -0.0, 1e-45, 3.4e38, math.inf, -math.inf, 1.0]),
    "float16": torch.tensor([1 / 3, -0.0, 6e-8, 65504.0, math.inf]).half(),
    "bfloat16": torch.tensor([1 / 3, -0.0, 1e-40, 3e38, -math.inf]).bfloat16(),
}


@pytest.mark.parametrize("shares", [[1.0], [1 / 3, 2 / 3], [0.1, 0.2, 0.7], [0.0, 0.3, 0.7, 0.0]])
@pytest.mark.parametrize("kind", HARD)
def test_values_that_ranks_agree_on_are_taken_as_they_are(kind, shares) -> None:
    """From a start that makes the change itself a number that cannot be written down."""
    value = HARD[kind]
    low = torch.finfo(value.dtype).min if value.is_floating_point() else 0
    for begun in (torch.zeros_like(value), torch.full_like(value, low), value.flip(0)):
        models = [holding(own=begun) for _ in shares]
        exchange(models, shares, lambda _rank, model: model.own.copy_(value))
        assert {bits(model.own) for model in models} == {bits(value)}


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3).eval(),
        nn.BatchNorm1d(3, momentum=0.0),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.LayerNorm(3),
    ],
)
def test_layers_whose_statistics_do_not_change_are_left_alone(layer) -> None:
    assert layers_with_statistics(nn.Sequential(nn.Linear(3, 3), layer)) == []
    assert layers_with_statistics(nn.Sequential(layer, nn.BatchNorm2d(3))) != []
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    with estimated_anew(layer):
        layer(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
    names = [name for name, _ in layer.named_buffers() if name != "num_batches_tracked"]
    kept = dict(layer.named_buffers())
    assert all(torch.equal(before[name], kept[name]) for name in names)
