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
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan, ParameterShape
from dtd.strategy.codec.api import Codec, FlatLayout, TensorPlace, World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.coded_buckets import CodedBuckets
from dtd.strategy.staging import (
    Received,
    Staging,
    StartBucket,
    WaitForBucket,
    staging_for,
)


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


def parameter_shapes(named: Sequence[tuple[str, nn.Parameter]]) -> list[ParameterShape]:
    """Return the data about trained parameters that the bucket plan needs."""
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
        parameters: the trained parameters, in the plan's order.
        plan: layout of their gradients in buckets.
        device: device of the parameters.
        codec: encodes the gradients; None sends them unchanged.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        device: torch.device,
        codec: Codec | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._names = [shape.name for shape in plan.parameters]
        self._views: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        self._bucket_of = [0] * len(self._parameters)
        self._staging = staging_of(layouts_of(self._parameters, plan), device, codec)
        self._flats = self._staging.flats
        for index, (bucket, flat) in enumerate(zip(plan.buckets, self._flats, strict=True)):
            for place in bucket.places:
                shape = self._parameters[place.parameter].shape
                self._views[place.parameter] = flat[place.start : place.stop].view(shape)
                self._bucket_of[place.parameter] = index
        self._sizes = [len(bucket.places) for bucket in plan.buckets]
        self._missing = list(self._sizes)
        self._arrived: set[int] = set()  # in the pass that hands buckets over
        self._started = [False] * len(self._flats)
        self._start: StartBucket | None = None
        self._received = Received(self._staging)
        self._copies: list[Tensor] = []
        self._check: Callable[[], None] = _nothing
        self.present = [False] * len(self._parameters)
        self._hooks: list[RemovableHandle] = [
            _hook(parameter, partial(self._on_gradient, index))
            for index, parameter in enumerate(self._parameters)
        ]

    @property
    def size_bytes(self) -> int:
        """Memory of the buckets on the device."""
        return self._staging.size_bytes

    @property
    def flats(self) -> list[Tensor]:
        """The buckets, laid out as in the plan; sums after `wait` or `receive`."""
        return self._flats

    @property
    def fits(self) -> bool:
        """Whether there is a codec that applies to at least one bucket."""
        return self._staging.fits

    # --- filling ---------------------------------------------------------------------------

    def regroup(self, world: World) -> None:
        """A generation begins: revoke buckets that older ones may still be reading.

        This cannot be done in `begin`: the step is open then, and its loan already has a number.
        """
        self._staging.regroup(world)

    def revoke(self) -> None:
        """Invalidate any concurrent read of the buckets by another rank."""
        self._staging.revoke()

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of the step that follows `step` committed ones, in order."""
        return self._staging.exchanges(step)

    def begin(self, check: Callable[[], None], scale: float = 1.0) -> None:
        """Begin a new step: no parameter has a gradient.

        Args:
            check: called for every gradient; an exception that it raises ends backward.
            scale: factor by which losses are multiplied in this step.
        """
        self._staging.begin(scale)
        self._missing = list(self._sizes)
        self._arrived = set()
        self._started = [False] * len(self._flats)
        self.present = [False] * len(self._parameters)
        self.release()
        self._check = check

    def hand_over_when_full(self, start: StartBucket) -> None:
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
                self._staging.send(index, start)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        self._check()
        if self._start is not None and self._started[self._bucket_of[index]]:
            raise received_twice(self._names[index])
        gradient, view = parameter.grad, self._views[index]
        if gradient is None:
            raise cleared(self._names[index])
        if gradient.layout is not torch.strided:
            view.copy_(gradient.to_dense())  # a bucket is dense
            parameter.grad = view
            self.present[index] = True
        elif not (self.present[index] and gradient.data_ptr() == view.data_ptr()):
            view.copy_(gradient)
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
            self._staging.send(bucket, start)

    # --- using -----------------------------------------------------------------------------

    def wait(self, wait: WaitForBucket) -> None:
        """Block until every bucket holds the sum over all ranks.

        The norm of each bucket is computed while the next one is still being exchanged.
        """
        self._received.wait(wait)

    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Block until one bucket holds its result."""
        self._staging.receive(index, wait)
        self._staging.settle()

    def expose(self, present: Sequence[bool]) -> None:
        """Set the gradient of each parameter to the sum if any rank has one, otherwise to None.

        Afterwards sums may be changed in place, so no other rank may still read them.
        """
        self._staging.revoke()
        for parameter, view, there in zip(self._parameters, self._views, present, strict=True):
            parameter.grad = view if there else None

    def expose_copies(self, present: Sequence[bool]) -> None:
        """Like `expose`, but with copies of the sums, so that other ranks may still read them."""
        self._copies = []
        for parameter, view, there in zip(self._parameters, self._views, present, strict=True):
            parameter.grad = view.clone() if there else None
            if parameter.grad is not None:
                self._copies.append(parameter.grad)

    def norm(self) -> float:
        """Return the global norm of the sums after `wait`; not finite if any of them is not."""
        return self._received.norm()

    def scale(self, factor: float) -> None:
        """Multiply all sums, or their copies, by a factor."""
        for flat in self._copies or self._flats:
            flat.mul_(factor)

    def commit(self) -> None:
        """The step is committed: advance the local state."""
        self._staging.commit()

    def rollback(self) -> None:
        """The step is discarded or skipped: restore the local state."""
        self._staging.rollback()

    def unsent(self, step: int) -> list[LocalState]:
        """Return this rank's residuals of earlier steps; the same number on all ranks."""
        return self._staging.unsent(step)

    def reset(self) -> None:
        """Memory holds another state: reset the local state to zero."""
        self._staging.reset()

    def release(self) -> None:
        """Release all gradients; the buckets' memory is kept."""
        self._copies = []
        self._check, self._start = _nothing, None  # a task's metrics may run backward, too
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Remove the hooks, and stop all threads."""
        for hook in self._hooks:
            hook.remove()
        self._staging.close()
        self.release()


def layouts_of(parameters: Sequence[nn.Parameter], plan: BucketPlan) -> list[FlatLayout]:
    """Return the layout of each bucket."""
    return [
        FlatLayout(
            dtype=parameters[bucket.places[0].parameter].dtype,
            tensors=tuple(
                TensorPlace(
                    start=place.start,
                    stop=place.stop,
                    shape=tuple(parameters[place.parameter].shape),
                )
                for place in bucket.places
            ),
        )
        for bucket in plan.buckets
    ]


def staging_of(layouts: Sequence[FlatLayout], device: torch.device, codec: Codec | None) -> Staging:
    """Return the staging of flat buckets with these layouts; `codec` None means no codec."""
    if codec is None:
        return staging_for([(one.elements, one.dtype) for one in layouts], device)
    return CodedBuckets(layouts, device, codec)


def _nothing() -> None:
    """Do nothing: no step has begun."""


def _hook(parameter: Any, on_gradient: Callable[[Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(on_gradient)
    return handle
