"""Flat buckets on their way to the ring and back, whatever they are filled with.

    buckets = make_buckets(layouts, device, codec)       # `dtd.strategy.coded_buckets`
    buckets.regroup(world)                         # a generation begins
    memories = buckets.exchanges(step)             # the exchanges of the step, in this order
    buckets.begin(scale)
    fill buckets.flats[i]; buckets.send(i, start)  # each one when it is full; does not block
    buckets.wait(wait)                             # every flat holds its result, equal on all ranks
    buckets.commit() or buckets.rollback()         # advance the local state, or restore it

`dtd.strategy.gradients` fills them from hooks in backward, `dtd.strategy.local_sgd` with the
changes of a round.  On a CPU and without a codec the ring works on the flats themselves
(`HostBuckets`); otherwise they are encoded into memory of their own
(`dtd.strategy.coded_buckets.CodedBuckets`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan, ParameterShape
from dtd.strategy.codec.api import FlatLayout, TensorPlace, World
from dtd.strategy.codec.local_state import LocalState
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
        """Memory on the model's device."""
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


# --- layouts -----------------------------------------------------------------------------------


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
