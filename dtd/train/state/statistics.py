"""BatchNorm statistics of weights that no training forward has seen.

An outer optimizer (`dtd.strategy.diloco`) moves the weights to where none of the ranks has been, so
the statistics of the ranks' own weights, and their mean, do not belong to them.  As after any other
averaging of weights, they are then estimated again by forwards with the new weights: P. Izmailov et
al., "Averaging Weights Leads to Wider Optima and Better Generalization" (arXiv:1803.05407), and
Y. Wu, J. Johnson, "Rethinking 'Batch' in BatchNorm" (arXiv:2105.07576).

The moving averages begin at zero and are corrected for that, as Adam's are:

    r <- (1 - m) r + m b        m: the layer's momentum, b: a batch's mean or variance
    r / (1 - (1 - m)^n)         after n batches

so no attribute of a layer is changed, which would make a compiled model compile again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def layers_with_statistics(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers of a model whose statistics change in training."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm)
        and layer.training
        and layer.running_mean is not None
        and layer.momentum != 0.0
    ]


@contextlib.contextmanager
def estimated_anew(model: nn.Module) -> Iterator[None]:
    """Make the statistics those of the training forwards within this context.

    A layer without one keeps what it had.  The counts of batches stay as they were.  If an
    exception leaves the context, the statistics are undefined.
    """
    layers = layers_with_statistics(model)
    before = [[tensor.clone() for tensor in _statistics(layer)] for layer in layers]
    for layer in layers:
        for tensor in _statistics(layer):
            tensor.zero_()
    yield
    for layer, saved in zip(layers, before, strict=True):
        _finish(layer, saved)


def _statistics(layer: _BatchNorm) -> list[Tensor]:
    """Mean, variance and the count of batches."""
    mean, variance, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert count is not None
    return [mean, variance, count]


def _finish(layer: _BatchNorm, saved: list[Tensor]) -> None:
    """Correct the averages of one layer for their begin at zero; restore its count."""
    mean, variance, count = _statistics(layer)
    batches = int(count)
    with torch.no_grad():
        count.copy_(saved[2])
        if not batches:
            mean.copy_(saved[0])
            variance.copy_(saved[1])
        elif layer.momentum is not None:  # None: a plain mean, which needs no correction
            seen = 1.0 - (1.0 - layer.momentum) ** batches
            mean.div_(seen)
            variance.div_(seen)
