"""State of one rank alone, such as an error-feedback residual, in two buffers.

A step writes the new value beside the old one, so a rollback needs no copy: a commit swaps the two,
a rollback drops the new one.  The value is zero at first, and again in a replica that has taken
over another state.  Memory is allocated at first use.

If a rank dies, its residual is lost; if it leaves after a committed step, it hands the residual
over (`ResidualHandoff`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dtd.strategy.wire_memory import bucket_memory


class LocalState:
    """A flat tensor that belongs to one rank.

    Args:
        elements: its length.
        device: its device.
        in_gradient_units: it is proportional to the loss scale, and rescaled when that changes.

    Attributes:
        elements: its length.
    """

    def __init__(
        self, elements: int, device: torch.device, *, in_gradient_units: bool = True
    ) -> None:
        self.elements = elements
        self._device = device
        self._in_gradient_units = in_gradient_units
        self._scale = 1.0
        self._current: Tensor | None = None
        self._spare: Tensor | None = None
        self._written = False

    @property
    def size_bytes(self) -> int:
        """Memory that is allocated."""
        return sum(t.nbytes for t in (self._current, self._spare) if t is not None)

    @property
    def current(self) -> Tensor:
        """The value after the last committed step, float32; must not be modified in a step."""
        if self._current is None:
            self._current = torch.zeros(self.elements, device=self._device)
        return self._current

    def new(self) -> Tensor:
        """Return the buffer for the next value, which the step writes entirely; uninitialised."""
        if self._spare is None:
            self._spare = torch.empty(self.elements, device=self._device)
        self._written = True
        return self._spare

    def begin(self, scale: float) -> None:
        """A step begins; its gradients are multiplied by `scale`."""
        if self._in_gradient_units and scale != self._scale and self._current is not None:
            self._current.mul_(scale / self._scale)
        self._scale = scale

    def unscaled(self) -> Tensor:
        """Return the value divided by the loss scale."""
        return self.current / self._scale

    def add(self, unscaled: Tensor) -> None:
        """Add to the value, between two steps."""
        self.current.add_(unscaled.to(self._device), alpha=self._scale)

    def commit(self) -> None:
        """Make the new value current, if one was written."""
        if self._written:
            self._current, self._spare = self._spare, self._current
        self._written = False

    def rollback(self) -> None:
        """Drop the new value."""
        self._written = False

    def reset(self) -> None:
        """Set the value to zero, as at first."""
        self._written = False
        if self._current is not None:
            self._current.zero_()


class ResidualHandoff:
    """The transfer of the unsent residuals of leaving ranks to the ranks that stay.

    After the last common step all ranks sum the residuals of the leaving ranks, without a codec,
    and the remaining ranks divide the sum equally.  Each adds its part to its own residual, from
    which later steps apply it to the model.

        handoff = ResidualHandoff(residuals, leaves=...)
        ring.open_step(step, handoff.memories); start and wait for all
        handoff.finish()

    If the generation breaks in between, the residual is lost: it is not part of the state.

    Args:
        residuals: this rank's residuals; equally many on all ranks, and of the same sizes.
        leaves: whether this rank leaves.

    Attributes:
        memories: the buckets to exchange, float32: a residual, followed by the number of ranks that
            stay.
    """

    def __init__(self, residuals: Sequence[LocalState], *, leaves: bool) -> None:
        self._residuals = residuals
        self._leaves = leaves
        self._flats = [torch.zeros(one.elements + 1) for one in residuals]
        for one, flat in zip(residuals, self._flats, strict=True):
            if leaves:
                flat[:-1].copy_(one.unscaled())
            flat[-1] = float(not leaves)
        self.memories = [bucket_memory(flat) for flat in self._flats]

    def finish(self) -> None:
        """After every sum has arrived: add this rank's part; a leaving rank is reset to zero."""
        for one, flat in zip(self._residuals, self._flats, strict=True):
            if self._leaves:
                one.reset()
            else:
                one.add(flat[:-1].div_(flat[-1].item()))
