"""The memory of a model's parameters in stage 3, which they have only while they are needed.

The parameters of a bucket are views of one flat tensor.  Its storage is given memory and released
by `resize_`; tensors that autograd has saved refer to the same storage, and find the same values
there when it is filled again.  As in PyTorch FSDP (Zhao et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dtd.exchange.ring.buckets import BucketPlan
from dtd.strategy.sharded.storages import BucketOf, bucket_finder


class GatheredParameters:
    """The flat tensors of one model; full at first.

    Args:
        parameters: the trained parameters, in the plan's order; they become views.
        plan: their places in buckets.

    Attributes:
        flats: a flat tensor for each bucket; without memory while it is empty.
        bucket_of: tells of which of them a tensor is a view.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], plan: BucketPlan) -> None:
        self.flats: list[Tensor] = []
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        self._shown = True
        for bucket in plan.buckets:
            flat = torch.empty(bucket.elements, dtype=parameters[bucket.places[0].parameter].dtype)
            for place in bucket.places:
                parameter = parameters[place.parameter]
                view = flat[place.start : place.stop].view(parameter.shape)
                view.copy_(parameter.detach())
                parameter.data = view
                self._views.append((parameter, view))
            self.flats.append(flat)
        self.bucket_of: BucketOf = bucket_finder(self.flats)
        self._sizes = [flat.untyped_storage().nbytes() for flat in self.flats]

    @property
    def size_bytes(self) -> int:
        """Memory that they have now."""
        return sum(flat.untyped_storage().nbytes() for flat in self.flats)

    def is_full(self, bucket: int) -> bool:
        """Whether a bucket has memory."""
        return self.flats[bucket].untyped_storage().nbytes() == self._sizes[bucket]

    def allocate(self, bucket: int) -> Tensor:
        """Give a bucket memory, with any contents; returns it."""
        flat = self.flats[bucket]
        if not self.is_full(bucket):
            flat.untyped_storage().resize_(self._sizes[bucket])
        return flat

    def fill(self, bucket: int, values: Tensor) -> None:
        """Give a bucket memory and these values; autograd sees no change."""
        flat = self.allocate(bucket)
        with torch.no_grad():  # parameters count their changes apart from the flat tensor
            flat.copy_(values)

    def empty(self, bucket: int) -> None:
        """Release the memory of a bucket."""
        self.flats[bucket].untyped_storage().resize_(0)

    def show(self) -> None:
        """Let the parameters be views of the buckets again."""
        if not self._shown:
            self._shown = True
            for parameter, view in self._views:
                parameter.data = view

    def hide(self) -> None:
        """Show NaN as parameters between steps: there is no memory behind them."""
        if self._shown:
            self._shown = False
            for parameter, view in self._views:
                parameter.data = view.new_full((), math.nan).expand(view.shape)
