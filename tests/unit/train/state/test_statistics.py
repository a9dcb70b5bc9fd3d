"""BatchNorm's statistics, estimated anew."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.train.state.buffers import estimated_anew, layers_with_statistics


def batches(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randn(6, 3, generator=draw, dtype=torch.float64) + n for n in range(count)]


def trained(momentum: float | None) -> nn.BatchNorm1d:
    """A layer that has seen four other batches."""
    layer = nn.BatchNorm1d(3, momentum=momentum).double()
    for batch in batches(4):
        layer(batch * 7)
    return layer


@pytest.mark.parametrize(
    ("momentum", "weights"),
    [(0.1, [0.81, 0.9, 1.0]), (0.5, [0.25, 0.5, 1.0]), (1.0, [0, 0, 1]), (None, [1, 1, 1])],
)
def test_they_are_a_weighted_mean_over_the_batches(momentum, weights) -> None:
    layer = trained(momentum)
    with estimated_anew(nn.Sequential(layer)):
        for batch in batches(3):
            layer(batch)
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    mean = sum(share * b.mean(0) for share, b in zip(shares, batches(3), strict=True))
    variance = sum(share * b.var(0) for share, b in zip(shares, batches(3), strict=True))
    torch.testing.assert_close(layer.running_mean, mean)
    torch.testing.assert_close(layer.running_var, variance)
    assert int(layer.num_batches_tracked) == 4
    assert layer.momentum == momentum


def test_a_layer_without_a_forward_keeps_what_it_had() -> None:
    layer = trained(0.1)
    before = [buffer.clone() for buffer in layer.buffers()]
    with estimated_anew(layer):
        pass
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


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
