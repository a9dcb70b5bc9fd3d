"""Flat buckets on their way to the ring and back, whatever they are filled with.

    buckets = make_buckets(layouts, device, codec)       # `dtd.strategy.coded_buckets`
    buckets.regroup(world)                         # a generation begins
    memories = buckets.exchanges(step)             # the exchanges of the step, in this order
    buckets.begin(scale)
    fill buckets.flats[i]; buckets.send(i, start)  # each one when it is full; does not block
    buckets.wait(wait)                             # every flat holds its result, equal on all ranks
    buckets.commit() or buckets.rollback()         # advance the local state, or restore it

`Gradients` fills them from hooks in backward, `dtd.strategy.local_sgd` with the changes of a
round.  On a CPU and without a codec the ring works on the flats themselves
(`HostBuckets`); otherwise they are encoded into memory of their own
(`dtd.strategy.coded_buckets.CodedBuckets`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtd.errors import TaskError
from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.buckets import BucketPlan, ParameterShape
from dtd.strategy.codec.api import FlatLayout, LocalState, TensorPlace, World
from dtd.strategy.wire_memory import RingMemory

_WIDE = (torch.float32, torch.float64)

StartBucket = Callable[..., None]
"""Submits the bucket of this index; the second, optional argument is that of `Collective.start`."""
WaitForBucket = Callable[[int], None]
"""Blocks until the bucket of this index holds its sum."""


class Buckets(ABC):
    """The buckets of one optimizer's parameters, without local state.

    Attributes:
        flats: a flat tensor for each bucket, on the model's device; zero at first.
        memories: the exchanges of the current step, as the ring sees them.
        fits: False if there is a codec and it applies to none of the buckets.
    """

    flats: list[Tensor]
    memories: list[BucketMemory]
    fits = True

    def __init__(self) -> None:
        self._norms: list[Tensor] = []

    @property
    def size_bytes(self) -> int:
        return sum(flat.nbytes for flat in self.flats)

    def regroup(self, world: World) -> None:
        """A generation begins: revoke buckets that older ones may still be reading.

        This cannot be done in `begin`: the step is open then, and its loan already has a number.
        """
        del world
        self.revoke()

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of the step that follows `step` committed ones, in order."""
        del step
        return self.memories

    def begin(self, scale: float) -> None:
        """A step begins; what is summed is multiplied by the loss scale `scale`."""

    @abstractmethod
    def send(self, index: int, start: StartBucket) -> None:
        """A bucket is full: arrange for its exchanges to be submitted; returns immediately."""

    @abstractmethod
    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Block until a bucket holds its result.

        Raises:
            RingBroken: the generation is over.  Any exception of a coder is raised, too.
        """

    def settle(self) -> None:
        """After a `receive`: make later work on the device wait for the results."""

    def wait(self, wait: WaitForBucket) -> None:
        """Block until every bucket holds its result.

        The norm of each bucket is computed while the next one is still being exchanged.
        """
        self._norms = []
        for index in range(len(self.flats)):
            self.receive(index, wait)
            self.settle()
            self._norms.append(self._norm(index))

    def norm(self) -> float:
        """Return the norm of all results after `wait`; not finite if an element is not."""
        return math.hypot(*torch.stack(self._norms).tolist()) if self._norms else 0.0

    @abstractmethod
    def revoke(self) -> None:
        """The buckets are about to change: invalidate any concurrent read by a neighbour."""

    def commit(self) -> None:
        """The step is committed: advance the local state."""

    def rollback(self) -> None:
        """The step is discarded or skipped: restore the local state."""

    def unsent(self, step: int) -> list[LocalState]:
        """Return this rank's residuals of earlier steps; the same number on all ranks."""
        del step
        return []

    def reset(self) -> None:
        """Memory holds another state: reset the local state to zero."""

    @abstractmethod
    def close(self) -> None:
        """Stop all threads, and stop sharing memory."""

    def _norm(self, index: int) -> Tensor:
        return norm_of(self.flats[index])


class HostBuckets(Buckets):
    """Buckets in host memory, in which the ring adds."""

    def __init__(self, layouts: Sequence[FlatLayout]) -> None:
        super().__init__()
        self._memory = RingMemory([(one.elements, one.dtype) for one in layouts])
        self.flats = self._memory.flats
        self.memories = self._memory.memories

    def send(self, index: int, start: StartBucket) -> None:
        start(index)

    def receive(self, index: int, wait: WaitForBucket) -> None:
        wait(index)

    def revoke(self) -> None:
        self._memory.revoke()

    def close(self) -> None:
        self._memory.close()


def norm_of(flat: Tensor) -> Tensor:
    """Return the norm of a flat tensor, float64; not finite if any element is not."""
    dtype = flat.dtype if flat.dtype in _WIDE else torch.float32
    norm: Tensor = torch.linalg.vector_norm(flat, dtype=dtype)
    return norm.double()


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


def bucket_of_each(plan: BucketPlan) -> list[int]:
    """Return the bucket of each parameter."""
    found = [0] * len(plan.parameters)
    for number, bucket in enumerate(plan.buckets):
        for place in bucket.places:
            found[place.parameter] = number
    return found


def views_of(
    parameters: Sequence[nn.Parameter], plan: BucketPlan, flats: Sequence[Tensor]
) -> list[Tensor]:
    """Return each parameter's place in its bucket, as a view of the parameter's shape."""
    views: list[Tensor] = [torch.empty(0)] * len(parameters)
    for bucket, flat in zip(plan.buckets, flats, strict=True):
        for place in bucket.places:
            shape = parameters[place.parameter].shape
            views[place.parameter] = flat[place.start : place.stop].view(shape)
    return views


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

    Backward gives every parameter a new gradient.  A hook copies it into a bucket and makes
    `parameter.grad` a view of the bucket, so later micro-batches accumulate into the bucket itself,
    and the optimizer reads the sums in place.  In the last micro-batch a bucket is submitted with
    its last gradient.  Parameters without a gradient count as zero, and their buckets are submitted
    at the end of backward.  A parameter without a gradient on any rank keeps `grad` None, so that
    the optimizer skips it.  Shared parameters count once, frozen ones not at all.

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
        self._check: Callable[[], None] = lambda: None
        self.present = [False] * len(self._parameters)
        self._hooks = on_gradients(self._parameters, self._on_gradient)

    def begin(self, check: Callable[[], None]) -> None:
        """Begin a new step: no parameter has a gradient."""
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
        self._check, self._start = lambda: None, None  # a task's metrics may run backward, too
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
