"""A bucket of gradients while it fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dtd.exchange.ring.buckets import Place


@dataclass(slots=True)
class Filling:
    """One bucket in one pass.

    Attributes:
        flat: its memory; None before it has any, and after it has left.
        arrived: parameters whose gradients backward has computed.
        packed: those whose gradients are in the bucket.
    """

    flat: Tensor | None = None
    arrived: set[int] = field(default_factory=set)
    packed: set[int] = field(default_factory=set)

    def pack(self, places: Sequence[Place], parameters: Sequence[nn.Parameter]) -> None:
        """Copy the gradients that have arrived into the bucket, and release them."""
        assert self.flat is not None, "the bucket has no memory"
        for place in places:
            parameter = parameters[place.parameter]
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                continue
            view = self.flat[place.start : place.stop].view(parameter.shape)
            if place.parameter in self.packed:
                view.add_(gradient)
            else:
                view.copy_(gradient if gradient.layout is torch.strided else gradient.to_dense())
                self.packed.add(place.parameter)

    def complete(self, places: Sequence[Place], parameters: Sequence[nn.Parameter]) -> None:
        """Pack the gradients that have arrived, with zeros for missing ones: the bucket leaves."""
        self.pack(places, parameters)
        assert self.flat is not None
        for place in places:
            if place.parameter not in self.packed:
                self.flat[place.start : place.stop].zero_()
        self.flat = None
