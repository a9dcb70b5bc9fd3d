"""Random-k: random elements of the gradients, at the same places on all ranks, summed.

The fraction `density` of every tensor is sent.  The elements are drawn from (seed, step, tensor),
so no indices need to be sent and the values are summed directly; `dtd.strategy.codec.sparse`
handles the others.  A gradient waits 1 / density steps on average before it is sent, however large
it is.  So convergence is slower than with `dtd.strategy.codec.top_k`, but the bytes do not grow
with the number of ranks.  A gradient that is not finite is reported immediately, drawn or not;
otherwise it would corrupt later steps on one rank alone.

S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", arXiv:1809.07599, describe
both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dtd.strategy.codec.api import FlatLayout, Wire, World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.codec.sparse import (
    Unsent,
    check_layout,
    density_at,
    drawn,
    selected_count,
    travels_whole,
    whole_places,
)


class RandomK:
    """Implement `dtd.strategy.codec.api.Codec`.

    Args:
        density: fraction of a tensor's elements that is sent after the warm-up.
        momentum: momentum of the velocity that each rank keeps.
        warmup_steps: number of steps in which more is sent.
        seed: seed of the draws; equal on all ranks.
    """

    def __init__(self, *, density: float, momentum: float, warmup_steps: int, seed: int) -> None:
        self.start_step = 0
        self._density = density
        self._momentum = momentum
        self._warmup_steps = warmup_steps
        self._seed = seed

    @property
    def risk(self) -> str:
        """Implement `Codec`."""
        return f"sends a random {self._density:.2%} of a gradient in a step; check the loss"

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> RandomKCoder | None:
        """Implement `Codec`; None for a bucket that is sent unchanged.

        Raises:
            TaskError: see `check_layout`.
        """
        check_layout(layout, "random_k", self._momentum)
        whole = all(map(travels_whole, layout.tensors)) and not self._momentum
        if whole or layout.dtype != torch.float32:
            return None

        def draw(start: int, stop: int, step: int) -> Tensor:
            share = density_at(step, density=self._density, warmup_steps=self._warmup_steps)
            count = selected_count(stop - start, share)
            return drawn(stop - start, count, self._seed, step, index, start) + start

        return RandomKCoder(layout, device, self._momentum, draw)


class RandomKCoder:
    """Implement `dtd.strategy.codec.api.Coder`.

    Args:
        layout: layout of the bucket.
        device: its device.
        momentum: momentum of the velocity.
        draw: `draw(start, stop, step)` returns the indices, among a tensor's elements [start,
            stop), that are sent in a step.
    """

    def __init__(
        self,
        layout: FlatLayout,
        device: torch.device,
        momentum: float,
        draw: Callable[[int, int, int], Tensor],
    ) -> None:
        self._unsent = Unsent(layout.elements, device, momentum)
        self.residual: LocalState | None = self._unsent.residual
        self.local: Sequence[LocalState] = self._unsent.local
        self._device = device
        self._draw = draw
        self._tensors = [(one.start, one.stop) for one in layout.tensors if not travels_whole(one)]
        self._whole = whole_places(layout)
        self._places = self._whole

    def restart(self, world: World) -> None:
        """Implement `Coder`; draws depend on the step alone."""

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        """Implement `Coder`; one wire, of values."""
        del world
        drawn_ones = [self._draw(start, stop, step) for start, stop in self._tensors]
        self._places = torch.cat([*drawn_ones, self._whole]).to(self._device)
        return [Wire(elements=len(self._places), dtype=torch.float32)]

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Write the values that were drawn, or NaN where any element is not finite."""
        extremes = torch.aminmax(self._unsent.accumulate(flat))
        finite = bool(torch.stack(extremes).isfinite().all())
        selected = len(self._places) - len(self._whole)
        values = self._unsent.take(self._places, selected)
        wires[stage].copy_(values if finite else values.fill_(torch.nan))

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Write the sums to their indices; all other elements are zero."""
        flat.zero_()
        flat[self._places] = wires[0].to(flat.device)
