"""State of one rank alone, such as an error-feedback residual, in two buffers.

A step writes the new value beside the old one, so a rollback needs no copy: a commit swaps the two,
a rollback drops the new one.  The value is zero at first, and again in a replica that has taken
over another state.  Memory is allocated at first use.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
