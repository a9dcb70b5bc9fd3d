"""Top-k: the largest gradients of each rank are gathered (Deep Gradient Compression).

The fraction `density` of every tensor is sent: the elements with the largest magnitudes among what
has not been sent yet; `dtd.strategy.codec.sparse` handles the others.  The indices and values of
all ranks are gathered, and each rank adds them in rank order.  A rank receives 8 (N - 1) bytes for
each element that one rank selects; a float32 sum takes 8 (N - 1) / N for each element.  So N ranks
need 1 / (N density) times fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.ring.chunks import Operation
from dtd.strategy.codec.api import FlatLayout, Wire, World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.codec.sparse import (
    Unsent,
    check_layout,
    density_at,
    largest,
    selected_count,
    travels_whole,
    whole_places,
)


class TopK:
    """Implement `dtd.strategy.codec.api.Codec`.

    Args:
        density: fraction of a tensor's elements that is sent after the warm-up.
        momentum: momentum of the velocity that each rank keeps.
        warmup_steps: number of steps in which more is sent.
    """

    def __init__(self, *, density: float, momentum: float, warmup_steps: int) -> None:
        self.start_step = 0
        self._density = density
        self._momentum = momentum
        self._warmup_steps = warmup_steps

    @property
    def risk(self) -> str:
        """Implement `Codec`."""
        return f"sends the largest {self._density:.2%} of a gradient in a step; check the loss"

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> TopKCoder | None:
        """Implement `Codec`; None for a bucket that is sent unchanged.

        Raises:
            TaskError: see `check_layout`.
        """
        del index
        check_layout(layout, "top_k", self._momentum)
        whole = all(map(travels_whole, layout.tensors)) and not self._momentum
        if whole or layout.dtype != torch.float32:
            return None
        return TopKCoder(layout, device, self._momentum, self.density_at)

    def density_at(self, step: int) -> float:
        """Return the fraction of elements that is sent in a step."""
        return density_at(step, density=self._density, warmup_steps=self._warmup_steps)


class TopKCoder:
    """Implement `dtd.strategy.codec.api.Coder`.

    A rank's segment has the indices of the selected elements as int32, their values, and the values
    of whole tensors.

    Args:
        layout: layout of the bucket.
        device: its device.
        momentum: momentum of the velocity.
        density_at: returns the fraction that is sent in a step.
    """

    def __init__(
        self,
        layout: FlatLayout,
        device: torch.device,
        momentum: float,
        density_at: Callable[[int], float],
    ) -> None:
        self._unsent = Unsent(layout.elements, device, momentum)
        self.residual: LocalState | None = self._unsent.residual
        self.local: Sequence[LocalState] = self._unsent.local
        self._density_at = density_at
        self._tensors = [(one.start, one.stop) for one in layout.tensors if not travels_whole(one)]
        self._whole = whole_places(layout).to(device)
        self._counts: list[int] = []
        self._world = World()

    def restart(self, world: World) -> None:
        """Implement `Coder`; there is no state that must be equal on all ranks."""

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        """Implement `Coder`; one wire, with a segment for each rank."""
        self._world = world
        density = self._density_at(step)
        self._counts = [selected_count(stop - start, density) for start, stop in self._tensors]
        elements = world.size * (2 * self._selected + len(self._whole))
        return [Wire(elements=elements, dtype=torch.int32, operation=Operation.ALL_GATHER)]

    @property
    def _selected(self) -> int:
        return sum(self._counts)

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Select elements, and write their indices and values."""
        del stage
        unsent, selected = self._unsent.accumulate(flat), self._selected
        places = torch.cat(
            [
                *(
                    largest(unsent[start:stop], count) + start
                    for (start, stop), count in zip(self._tensors, self._counts, strict=True)
                ),
                self._whole,
            ]
        )
        start, stop = self._world.own_segment(len(wires[0]))
        own = wires[0][start:stop]
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
