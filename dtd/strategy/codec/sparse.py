"""Sparse gradients: `top_k` sends the largest elements of each tensor, `random_k` random ones.

Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression: Reducing the Communication
Bandwidth for Distributed Training", arXiv:1712.01887.  For each element of a rank's own gradient g,
with momentum m:

    u <- m u + g            momentum correction: the velocity is local to the rank
    v <- v + u              accumulates unsent elements
    send the selected elements of v;  for these  v <- 0  and  u <- 0        momentum factor masking

The sum of what all ranks send is the step's update, without any further momentum.  With m = 0 this
is plain error feedback (S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory",
arXiv:1809.07599, which describes both selections).  In the warm-up the fraction that is sent falls
by a factor of 4 in each stage.  Tensors of one dimension or few elements are sent whole: u is sent,
and kept.

`top_k` selects the elements with the largest magnitudes among what has not been sent yet.  The
indices and values of all ranks are gathered, and each rank adds them in rank order.  A rank
receives 8 (N - 1) bytes for each element that one rank selects; a float32 sum takes 8 (N - 1) / N
for each element.  So N ranks need 1 / (N density) times fewer bytes.

`random_k` draws elements from (seed, step, tensor), so no indices need to be sent and the values
are summed directly.  A gradient waits 1 / density steps on average before it is sent, however large
it is: convergence is slower than with `top_k`, but the bytes do not grow with the number of ranks.
A gradient that is not finite is reported immediately, drawn or not; otherwise it would corrupt
later steps on one rank alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from dtd.errors import ErrorCode, ProtocolError, TaskError
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.codec.api import Coder, FlatLayout, LocalState, TensorPlace, Wire, World

_FEWEST_DIMENSIONS: Final = 2
_FEWEST_ELEMENTS: Final = 1024
_STAGE_FACTOR: Final = 4
_SAMPLED: Final = 4096
"""Size of the sample from which the threshold is estimated."""
_SMALLEST_SAMPLED: Final = 4 * _SAMPLED
"""With fewer elements no sample is used."""
_MARGIN: Final = 1.3
"""The threshold admits more elements than needed, so that a second pass is rarely necessary."""


class _Sparse:
    """Options of both codecs: fraction that is sent after the warm-up, momentum, warm-up steps."""

    start_step = 0

    def __init__(self, *, density: float, momentum: float, warmup_steps: int) -> None:
        self.density = density
        self.momentum = momentum
        self._warmup_steps = warmup_steps

    def counts(self, tensors: Sequence[TensorPlace], step: int) -> list[int]:
        """Return how many elements of each tensor are sent in a step."""
        share = density_at(step, density=self.density, warmup_steps=self._warmup_steps)
        return [selected_count(one.stop - one.start, share) for one in tensors]

    def _applies(self, layout: FlatLayout, name: str) -> bool:
        """Whether a bucket is coded; momentum is kept for all elements or for none."""
        if self.momentum and layout.dtype != torch.float32:
            raise TaskError(
                f'[strategy] codec = "{name}" takes float32 parameters only, and the model has some'
                f" of {str(layout.dtype).removeprefix('torch.')}, which would go without momentum",
                remedy="make them float32, or set [strategy] momentum = 0",
            )
        whole = all(map(travels_whole, layout.tensors)) and not self.momentum
        return not whole and layout.dtype == torch.float32


class TopK(_Sparse):
    """The codec `top_k`."""

    passes = 25.0

    @property
    def risk(self) -> str:
        return f"sends the largest {self.density:.2%} of a gradient in a step; check the loss"

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> TopKCoder | None:
        del index
        return TopKCoder(self, layout, device) if self._applies(layout, "top_k") else None


class RandomK(_Sparse):
    """The codec `random_k`; its seed is equal on all ranks."""

    passes = 5.0

    def __init__(self, *, density: float, momentum: float, warmup_steps: int, seed: int) -> None:
        super().__init__(density=density, momentum=momentum, warmup_steps=warmup_steps)
        self.seed = seed

    @property
    def risk(self) -> str:
        return f"sends a random {self.density:.2%} of a gradient in a step; check the loss"

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> RandomKCoder | None:
        if not self._applies(layout, "random_k"):
            return None
        return RandomKCoder(self, layout, index, device)


class _SparseCoder(Coder):
    """The local state of the coders of both codecs."""

    def __init__(self, codec: _Sparse, layout: FlatLayout, device: torch.device) -> None:
        self._unsent = Unsent(layout.elements, device, codec.momentum)
        self.residual = self._unsent.residual
        self.local = self._unsent.local
        self._tensors = [one for one in layout.tensors if not travels_whole(one)]
        self._whole = whole_places(layout).to(device)


class TopKCoder(_SparseCoder):
    """A rank's segment: int32 indices of the selected elements, their values, whole tensors."""

    def __init__(self, codec: TopK, layout: FlatLayout, device: torch.device) -> None:
        super().__init__(codec, layout, device)
        self._codec = codec
        self._counts: list[int] = []
        self._world = World()

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        self._world = world
        self._counts = self._codec.counts(self._tensors, step)
        elements = world.size * (2 * self._selected + len(self._whole))
        return [Wire(elements=elements, dtype=torch.int32, operation=Operation.ALL_GATHER)]

    @property
    def _selected(self) -> int:
        return sum(self._counts)

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        unsent, selected = self._unsent.accumulate(flat), self._selected
        chosen = [
            largest(unsent[one.start : one.stop], count) + one.start
            for one, count in zip(self._tensors, self._counts, strict=True)
        ]
        places = torch.cat([*chosen, self._whole])
        start, stop = self._world.own_segment(len(wires[stage]))
        own = wires[stage][start:stop]
        own[:selected].copy_(places[:selected])
        own[selected:].view(torch.float32).copy_(self._unsent.take(places, selected))

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Add the ranks' contributions in rank order.

        Raises:
            ProtocolError: a rank has sent an index outside of the bucket.
        """
        flat.zero_()
        selected = self._selected
        for rank, (start, stop) in enumerate(self._world.segments(len(wires[0]))):
            segment = wires[0][start:stop]
            places = segment[:selected].long()
            if selected and not 0 <= int(places.min()) <= int(places.max()) < len(flat):
                raise ProtocolError(
                    ErrorCode.BAD_PAYLOAD, f"rank {rank} selected what is outside of a bucket"
                )
            everywhere = torch.cat([places.to(flat.device), self._whole])
            flat.index_add_(0, everywhere, segment[selected:].view(torch.float32).to(flat.device))


class RandomKCoder(_SparseCoder):
    """The values at the drawn places, then those of whole tensors."""

    def __init__(
        self, codec: RandomK, layout: FlatLayout, index: int, device: torch.device
    ) -> None:
        super().__init__(codec, layout, device)
        self._codec = codec
        self._index = index
        self._places = self._whole

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        del world
        drawn_ones = [
            drawn(one.stop - one.start, count, self._codec.seed, step, self._index, one.start)
            + one.start
            for one, count in zip(
                self._tensors, self._codec.counts(self._tensors, step), strict=True
            )
        ]
        places = [one.to(self._whole.device) for one in drawn_ones]
        self._places = torch.cat([*places, self._whole])
        return [Wire(elements=len(self._places), dtype=torch.float32)]

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        extremes = torch.aminmax(self._unsent.accumulate(flat))
        finite = bool(torch.stack(extremes).isfinite().all())
        selected = len(self._places) - len(self._whole)
        values = self._unsent.take(self._places, selected)
        wires[stage].copy_(values if finite else values.fill_(torch.nan))

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        flat.zero_()
        flat[self._places] = wires[0].to(flat.device)


def density_at(step: int, *, density: float, warmup_steps: int) -> float:
    """Return the fraction of elements sent in a step: 1/4, 1/16, ... and then `density`.

    It depends on the step's number alone, so it is equal on all ranks and when a step is redone.
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


def selected_count(elements: int, density: float) -> int:
    """Return how many of a tensor's elements are sent: at least one if there are any."""
    return min(elements, math.ceil(elements * density))


class Unsent:
    """The part of one bucket's gradients that has not been sent yet; see the module docstring.

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
