"""Sparse gradients: the number of elements sent in a step, their selection, and the unsent rest.

Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression: Reducing the Communication
Bandwidth for Distributed Training", arXiv:1712.01887.  For each element of a rank's own gradient g,
with momentum m:

    u <- m u + g            momentum correction: the velocity is local to the rank
    v <- v + u              accumulates unsent elements
    send the selected elements of v;  for these  v <- 0  and  u <- 0        momentum factor masking

The sum of what all ranks send is the step's update, without any further momentum.  With m = 0 this
is plain error feedback (S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory",
arXiv:1809.07599).  In the warm-up the fraction that is sent falls by a factor of 4 in each stage.

Tensors of one dimension or few elements are sent whole: u is sent, and kept.

`dtd.strategy.codec.top_k` and `dtd.strategy.codec.random_k` select and send.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dtd.errors import TaskError
from dtd.strategy.codec.api import FlatLayout, TensorPlace
from dtd.strategy.codec.local_state import LocalState

_FEWEST_DIMENSIONS: Final = 2
_FEWEST_ELEMENTS: Final = 1024
_STAGE_FACTOR: Final = 4
_SAMPLED: Final = 4096
"""Size of the sample from which the threshold is estimated."""
_SMALLEST_SAMPLED: Final = 4 * _SAMPLED
"""With fewer elements no sample is used."""
_MARGIN: Final = 1.3
"""The threshold admits more elements than needed, so that a second pass is rarely necessary."""


def density_at(step: int, *, density: float, warmup_steps: int) -> float:
    """Return the fraction of elements sent in a step: 1/4, 1/16, ... and then `density`.

    It depends on the step's number alone, so it is equal on all ranks and when a step is redone.

    Args:
        step: number of the step, from 0.
        density: the fraction after the warm-up.
        warmup_steps: length of the warm-up, divided equally among the fractions before `density`.
    """
    if step >= warmup_steps:
        return density
    stages = math.ceil(math.log(1 / density, _STAGE_FACTOR)) - 1
    if stages < 1:
        return density
    return max(density, float(_STAGE_FACTOR) ** -(1 + step * stages // warmup_steps))


def travels_whole(tensor: TensorPlace) -> bool:
    """Whether all of a tensor is sent: biases, norms and small matrices matter and cost little."""
    return len(tensor.shape) < _FEWEST_DIMENSIONS or tensor.stop - tensor.start < _FEWEST_ELEMENTS


def whole_places(layout: FlatLayout) -> Tensor:
    """Return the indices in a bucket of all elements of whole tensors, ascending, int64."""
    ranges = [torch.arange(one.start, one.stop) for one in layout.tensors if travels_whole(one)]
    return torch.cat([torch.empty(0, dtype=torch.int64), *ranges])


def check_layout(layout: FlatLayout, codec: str, momentum: float) -> None:
    """Check that momentum is kept for all elements or for none.

    Raises:
        TaskError: the codec keeps momentum, but could not for a bucket of this type.
    """
    if momentum and layout.dtype != torch.float32:
        raise TaskError(
            f'[strategy] codec = "{codec}" takes float32 parameters only, and the model has some'
            f" of {str(layout.dtype).removeprefix('torch.')}, which would go without momentum",
            remedy="make them float32, or set [strategy] momentum = 0",
        )


def selected_count(elements: int, density: float) -> int:
    """Return how many of a tensor's elements are sent: at least one if there are any."""
    return min(elements, math.ceil(elements * density))


class Unsent:
    """The part of one bucket's gradients that has not been sent yet; see the module docstring.

    Args:
        elements: number of elements in the bucket.
        device: device of the bucket.
        momentum: m; if it is 0, no velocity is kept.

    Attributes:
        residual: v.
        local: v and, with momentum, u.
    """

    def __init__(self, elements: int, device: torch.device, momentum: float) -> None:
        self._momentum = momentum
        self.residual = LocalState(elements, device)
        self._velocity = LocalState(elements, device) if momentum else None
        self.local = (self.residual,) if self._velocity is None else (self.residual, self._velocity)

    def accumulate(self, gradient: Tensor) -> Tensor:
        """Add a step's gradient; returns v, which must not be modified."""
        if self._velocity is not None:
            before, velocity = self._velocity.current, self._velocity.new()
            gradient = torch.mul(before, self._momentum, out=velocity).add_(gradient)
        return torch.add(self.residual.current, gradient, out=self.residual.new())

    def take(self, places: Tensor, selected: int) -> Tensor:
        """Return the values to send, and mark them as sent.

        Args:
            places: (count,) int64, indices without duplicates: the selected ones, then those of
                whole tensors, whose velocity is kept as in SGD with momentum.
            selected: number of the selected ones.
        """
        unsent = self.residual.new()
        taken = unsent[places]
        unsent[places] = 0.0
        if self._velocity is not None:
            self._velocity.new()[places[:selected]] = 0.0
        return taken


def largest(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest magnitudes, ascending; NaN exceeds any number.

    Equal bytes give equal results.  For a long tensor, a sample determines which elements are
    candidates, and only these are compared: a fraction of the time of `torch.topk` over all.

    Args:
        values: (elements,) float32.
        count: at most `elements`.

    Returns:
        (count,) int64.
    """
    magnitudes = values.abs()
    if len(values) >= _SMALLEST_SAMPLED and count < len(values) // 2:
        candidates = _above(magnitudes, count)
        if len(candidates) >= count:
            chosen = torch.topk(magnitudes[candidates], count, sorted=False).indices
            return candidates[chosen].sort().values
    return torch.topk(magnitudes, count, sorted=False).indices.sort().values


def _above(magnitudes: Tensor, count: int) -> Tensor:
    """Return the indices above a threshold that slightly more than `count` should exceed."""
    sample = magnitudes[:: len(magnitudes) // _SAMPLED]
    share = count / len(magnitudes)
    above = math.ceil(len(sample) * share * _MARGIN + 3 * math.sqrt(len(sample) * share))
    threshold = torch.topk(sample, min(above, len(sample))).values[-1]
    return (~(magnitudes <= threshold)).nonzero().flatten()  # a NaN is not below anything


def drawn(elements: int, count: int, *key: int) -> Tensor:
    """Draw random indices, ascending, equal on all ranks: one from each of `count` equal parts.

    Within its part, each index is equally likely.  None is drawn twice, and the cost does not
    depend on the number of elements that are not drawn.

    Args:
        elements: number of elements to draw from.
        count: at most `elements`.
        key: determines the draw, such as seed, step and number of the tensor.

    Returns:
        (count,) int64.
    """
    stream = hashlib.shake_128(" ".join(map(str, key)).encode())
    bits = np.frombuffer(stream.digest(4 * count), dtype="<u4").astype(np.int64)
    edges = np.arange(count + 1, dtype=np.int64) * elements // count
    return torch.from_numpy(edges[:-1] + bits % np.diff(edges))
