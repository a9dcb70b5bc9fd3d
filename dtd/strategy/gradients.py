"""Gradients in flat buckets, handed over one by one while backward is still running.

Backward gives every parameter a fresh gradient; a hook copies it into its place in a bucket and
makes `parameter.grad` a view of that place, so later micro-batches accumulate into the bucket
itself and the optimizer reads the sums where they arrived.  In the last micro-batch a bucket is
handed over with its last gradient; what got no gradient counts as zero and goes at the end of
backward.  A parameter without a gradient on any rank keeps `grad` None, and the optimizer leaves
it alone.  Parameters that are shared count once, frozen ones not at all.

This file must not know about losses, steps or commits; those are `dtd.strategy.replicated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtd.core.ring.buckets import BucketPlan, ParameterShape
from dtd.strategy.codec.api import Codec
from dtd.strategy.staging import StartBucket, WaitForBucket, staging_for
from dtd.transport.api import BucketMemory

_WIDE = (torch.float32, torch.float64)


def parameter_shapes(named: Sequence[tuple[str, nn.Parameter]]) -> list[ParameterShape]:
    """What the bucket plan needs to know of trained parameters."""
    return [
        ParameterShape(
            name=name,
            elements=parameter.numel(),
            item_bytes=parameter.element_size(),
            dtype=str(parameter.dtype).removeprefix("torch."),
        )
        for name, parameter in named
    ]


class Gradients:
    """The buckets of one model and the hooks that fill them.

    Args:
        parameters: those that are trained, in the plan's order.
        plan: which gradient lies where.
        device: where the parameters are.
        codec: the form in which they travel; None for their own.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        device: torch.device,
        codec: Codec | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._views: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        self._bucket_of = [0] * len(self._parameters)
        self._staging = staging_for(
            [(b.elements, self._parameters[b.places[0].parameter].dtype) for b in plan.buckets],
            device,
            codec,
        )
        self._flats = self._staging.flats
        for index, (bucket, flat) in enumerate(zip(plan.buckets, self._flats, strict=True)):
            for place in bucket.places:
                shape = self._parameters[place.parameter].shape
                self._views[place.parameter] = flat[place.start : place.stop].view(shape)
                self._bucket_of[place.parameter] = index
        self._sizes = [len(bucket.places) for bucket in plan.buckets]
        self._missing = list(self._sizes)
        self._started = [False] * len(self._flats)
        self._start: StartBucket | None = None
        self._norms: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._check: Callable[[], None] = _nothing
        self.present = [False] * len(self._parameters)
        self._hooks: list[RemovableHandle] = [
            _hook(parameter, partial(self._on_gradient, index))
            for index, parameter in enumerate(self._parameters)
        ]

    @property
    def memories(self) -> list[BucketMemory]:
        """The buckets as the ring sees them."""
        return self._staging.memories

    @property
    def size_bytes(self) -> int:
        """What the buckets take of the device's memory."""
        return self._staging.size_bytes

    # --- filling ---------------------------------------------------------------------------

    def revoke(self) -> None:
        """A generation begins: whoever is left in an older one reads the buckets in vain.

        Not in `begin`, when the step is open and its loan has a number already.
        """
        self._staging.revoke()

    def begin(self, check: Callable[[], None]) -> None:
        """A new step: no parameter has a gradient.

        Args:
            check: called with every gradient; what it raises ends the backward.
        """
        self._check = check
        self._start = None
        self._missing = list(self._sizes)
        self._started = [False] * len(self._flats)
        self.present = [False] * len(self._parameters)
        self.release()

    def hand_over_when_full(self, start: StartBucket) -> None:
        """The next backward is the step's last: from now on full buckets leave."""
        self._start = start

    def finish(self, start: StartBucket) -> None:
        """Backward is over: what is missing is zero, and all buckets leave."""
        self._start = None
        for view, present in zip(self._views, self.present, strict=True):
            if not present:
                view.zero_()
        for index, started in enumerate(self._started):
            if not started:
                self._started[index] = True
                self._staging.send(index, start)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        self._check()
        gradient, view = parameter.grad, self._views[index]
        assert gradient is not None
        if gradient.layout is not torch.strided:
            view.copy_(gradient.to_dense())  # a bucket has a place for every element
            parameter.grad = view
            self.present[index] = True
        elif not (self.present[index] and gradient.data_ptr() == view.data_ptr()):
            view.copy_(gradient)
            parameter.grad = view
            self.present[index] = True
        if self._start is not None:
            self._count(self._bucket_of[index], self._start)

    def _count(self, bucket: int, start: StartBucket) -> None:
        self._missing[bucket] -= 1
        if self._missing[bucket] == 0:
            self._started[bucket] = True
            self._staging.send(bucket, start)

    # --- using -----------------------------------------------------------------------------

    def wait(self, wait: WaitForBucket) -> None:
        """Return when every bucket holds the sum over all ranks.

        The norm of each is taken while the next one is still on its way.
        """
        self._norms = []
        for index, flat in enumerate(self._flats):
            self._staging.receive(index, wait)
            self._staging.settle()
            dtype = flat.dtype if flat.dtype in _WIDE else torch.float32
            self._norms.append(torch.linalg.vector_norm(flat, dtype=dtype).double())

    def expose(self, present: Sequence[bool]) -> None:
        """Give every parameter that has a gradient on some rank the sum, and no other one.

        From here on sums may be changed in place, which no other rank must read any more.
        """
        self._staging.revoke()
        for parameter, view, there in zip(self._parameters, self._views, present, strict=True):
            parameter.grad = view if there else None

    def expose_copies(self, present: Sequence[bool]) -> None:
        """Like `expose`, but others may go on reading the sums: gradients are copies of them."""
        self._copies = []
        for parameter, view, there in zip(self._parameters, self._views, present, strict=True):
            parameter.grad = view.clone() if there else None
            if parameter.grad is not None:
                self._copies.append(parameter.grad)

    def norm(self) -> float:
        """Global norm of the sums that `wait` brought; not finite if any of them is not."""
        return math.hypot(*torch.stack(self._norms).tolist()) if self._norms else 0.0

    def scale(self, factor: float) -> None:
        """Multiply all sums, or the copies of them."""
        for flat in self._copies or self._flats:
            flat.mul_(factor)

    def release(self) -> None:
        """Let go of all gradients; the buckets' memory stays."""
        self._copies = []
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._staging.close()
        self.release()


def _nothing() -> None:
    """Checks nothing: no step has begun."""


def _hook(parameter: Any, on_gradient: Callable[[Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(on_gradient)
    return handle
