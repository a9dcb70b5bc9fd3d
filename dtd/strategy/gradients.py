"""Gradients in flat buckets, submitted one by one while backward is still running.

Backward gives every parameter a new gradient.  A hook copies it into a bucket and makes
`parameter.grad` a view of the bucket, so later micro-batches accumulate into the bucket itself, and
the optimizer reads the sums in place.  In the last micro-batch a bucket is submitted with its last
gradient.  Parameters without a gradient count as zero, and their buckets are submitted at the end
of backward.  A parameter without a gradient on any rank keeps `grad` None, so that the optimizer
skips it.  Shared parameters count once, frozen ones not at all.

This file is independent of losses, steps and commits; see `dtd.strategy.replicated` for those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtd.errors import TaskError
from dtd.exchange.ring.buckets import BucketPlan
from dtd.strategy.buckets import Buckets, StartBucket, bucket_of_each, views_of


def received_twice(name: str) -> TaskError:
    """Return the error of a backward that adds to a gradient after it was sent."""
    return TaskError(
        f"{name} has received a gradient twice in one backward, after its bucket had been sent",
        remedy="use torch.utils.checkpoint with use_reentrant=False",
    )


def cleared(name: str) -> TaskError:
    """Return the error of a gradient that is gone before it could be sent."""
    return TaskError(
        f"the gradient of {name} is cleared during backward, before it is summed over the workers",
        remedy="leave updates to the optimizer that build_optimizer() returns, and gradients in"
        " .grad: dtd clears them after each step",
    )


def on_gradients(
    parameters: Sequence[nn.Parameter], on_gradient: Callable[[int, Tensor], None]
) -> list[RemovableHandle]:
    """Have this called, with index and parameter, whenever backward has added to a gradient."""
    handles: list[RemovableHandle] = []
    for index, parameter in enumerate(parameters):
        hook: Any = parameter.register_post_accumulate_grad_hook
        handles.append(hook(partial(on_gradient, index)))
    return handles


class Gradients:
    """The hooks that fill the buckets of one model with gradients.

    Args:
        parameters: the trained parameters, in the plan's order.
        plan: layout of their gradients in buckets.
        buckets: laid out so; committed, rolled back and closed by their owner.

    Attributes:
        present: for each parameter, whether this rank has a gradient in this step.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], plan: BucketPlan, buckets: Buckets
    ) -> None:
        self._parameters = list(parameters)
        self._names = [shape.name for shape in plan.parameters]
        self._buckets = buckets
        self._views = views_of(parameters, plan, buckets.flats)
        self._bucket_of = bucket_of_each(plan)
        self._sizes = [len(bucket.places) for bucket in plan.buckets]
        self._missing = list(self._sizes)
        self._arrived: set[int] = set()  # in the pass that submits buckets
        self._started = [False] * len(self._sizes)
        self._start: StartBucket | None = None
        self._copies: list[Tensor] = []
        self._check: Callable[[], None] = _nothing
        self.present = [False] * len(self._parameters)
        self._hooks = on_gradients(self._parameters, self._on_gradient)

    # --- filling ---------------------------------------------------------------------------

    def begin(self, check: Callable[[], None]) -> None:
        """Begin a new step: no parameter has a gradient.

        Args:
            check: called for every gradient; an exception that it raises ends backward.
        """
        self._missing = list(self._sizes)
        self._arrived = set()
        self._started = [False] * len(self._sizes)
        self.present = [False] * len(self._parameters)
        self.release()
        self._check = check

    def submit_when_full(self, start: StartBucket) -> None:
        """The next backward is the step's last one: submit buckets as they fill."""
        self._start = start

    def finish(self, start: StartBucket) -> None:
        """Backward has ended: set missing gradients to zero, and submit all remaining buckets."""
        self._start = None
        for view, present in zip(self._views, self.present, strict=True):
            if not present:
                view.zero_()
        for index, started in enumerate(self._started):
            if not started:
                self._started[index] = True
                self._buckets.send(index, start)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        self._check()
        if self._start is not None and self._started[self._bucket_of[index]]:
            raise received_twice(self._names[index])
        gradient, view = parameter.grad, self._views[index]
        if gradient is None:
            raise cleared(self._names[index])
        dense = gradient.layout is torch.strided
        if not (self.present[index] and dense and gradient.data_ptr() == view.data_ptr()):
            view.copy_(as_dense(gradient))
            parameter.grad = view
            self.present[index] = True
        if self._start is not None:
            self._count(index, self._start)

    def _count(self, index: int, start: StartBucket) -> None:
        if index in self._arrived:
            return  # a block that is recomputed several times in one backward
        self._arrived.add(index)
        bucket = self._bucket_of[index]
        self._missing[bucket] -= 1
        if self._missing[bucket] == 0:
            self._started[bucket] = True
            self._buckets.send(bucket, start)

    # --- using -----------------------------------------------------------------------------

    def expose(self, present: Sequence[bool]) -> None:
        """Set the gradient of each parameter to the sum if any rank has one, otherwise to None.

        Afterwards sums may be changed in place, so no other rank may still read them.
        """
        self._buckets.revoke()
        for parameter, view, there in zip(self._parameters, self._views, present, strict=True):
            parameter.grad = view if there else None

    def expose_copies(self, present: Sequence[bool]) -> None:
        """Like `expose`, but with copies of the sums, so that other ranks may still read them."""
        self._copies = []
        for parameter, view, there in zip(self._parameters, self._views, present, strict=True):
            parameter.grad = view.clone() if there else None
            if parameter.grad is not None:
                self._copies.append(parameter.grad)

    def scale(self, factor: float) -> None:
        """Multiply all sums, or their copies, by a factor."""
        for flat in self._copies or self._buckets.flats:
            flat.mul_(factor)

    def release(self) -> None:
        """Release all gradients; the buckets' memory is kept."""
        self._copies = []
        self._check, self._start = _nothing, None  # a task's metrics may run backward, too
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self.release()


def as_dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor: a bucket is dense, and optimizers require it."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def _nothing() -> None:
    """Do nothing: no step has begun."""
