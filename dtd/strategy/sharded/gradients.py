"""The gradients of a sharded step: each rank gets the sums of the segments that it holds.

Stage 1 (`WholeGradients`): every rank has memory for all gradients, in buckets as for replicated
training, and half of each all-reduce is made.

Stages 2 and 3 (`PooledGradients`): gradients are kept only where they are needed.  A bucket gets a
piece of the pool (`dtd.strategy.sharded.wire_pool`) when its first gradient arrives.  A gradient is
copied there and released; the full bucket is reduce-scattered, and the sums of what this rank holds
are copied to its own memory, (1 + mirrors) / N of all.  Then the piece serves another bucket.
Backward waits when no piece is free.

If some gradients of an earlier bucket are missing, because the model does not use these parameters
or uses them in another order, later buckets cannot leave before it.  So gradients that find no
piece stay where backward made them until the end of the pass: this costs memory, but no deadlock.

Each micro-batch is a pass that is exchanged by itself, and the sums are added up in what this rank
holds.  Ranks with fewer micro-batches than others take part with zeros.

As in ZeRO-2 (Rajbhandari et al. 2020, section 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtd.engine.shards import NOTHING, ShardSet
from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.buckets import BucketPlan, Place
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.api import Computation, LossSum
from dtd.strategy.buckets import (
    Gradients,
    as_dense,
    bucket_of_each,
    cleared,
    layouts_of,
    on_gradients,
    received_twice,
)
from dtd.strategy.codec.api import Codec, FlatLayout, World
from dtd.strategy.coded_buckets import make_buckets
from dtd.strategy.sharded.schedule import PassOrder, PassPlan, in_plan_order
from dtd.strategy.sharded.wire_pool import Turn, WirePool
from dtd.strategy.wire_memory import laid_out, line_bytes

Submit = Callable[..., None]
"""Submits the exchange of this index; the optional argument is that of `Collective.start`."""
Await = Callable[[int], None]
"""Blocks until the exchange of this index is complete."""
Passes = Callable[[int, int], int]
"""The most micro-batches of any rank in a step, given the committed steps before it and N."""


class ShardGradients(Protocol):
    """The gradients of one rank, of which it gets the sums that it holds.

    Attributes:
        present: for each trained parameter, whether this rank has a gradient in this step.
    """

    present: list[bool]

    @property
    def size_bytes(self) -> int:
        """Memory of gradients and their buckets."""
        ...

    def regroup(self, world: World) -> None:
        """A generation begins."""
        ...

    def reset(self) -> None:
        """Memory holds another state: reset the local state to zero."""
        return

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of the step after `step` committed ones."""
        ...

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        """A step begins.

        Args:
            check: to be called often; raises once the step cannot complete.
            scale: factor by which losses are multiplied.
            holds: the shards whose sums are wanted.
        """
        ...

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        """Forward and backward; on return every exchange has been submitted.

        Args:
            work: the rows.
            start: submits an exchange.
            wait: blocks until one is complete.
            refreshed: blocks until the parameters are current; they come earlier in the step.
        """
        ...

    def collect(self, wait: Await) -> None:
        """Block until all sums have arrived."""
        ...

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        """Return the sums of elements [start, stop) of a bucket, of one segment that is held."""
        ...

    def revoke(self) -> None:
        """Sums are about to change: no other rank may read them any more."""
        return

    def scale(self, factor: float) -> None:
        """Multiply all sums that are held."""
        ...

    def commit(self) -> None:
        """The step is committed: advance the local state."""
        return

    def rollback(self) -> None:
        """The step is discarded or skipped: restore the local state."""
        return

    def release(self) -> None:
        """The step is over."""
        ...

    def close(self) -> None:
        """Remove all hooks, and stop sharing memory."""
        ...


class WholeGradients(ShardGradients):
    """Stage 1: memory for all gradients."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        device: torch.device,
        *,
        mirrors: int,
        codec: Codec | None,
    ) -> None:
        self._buckets = make_buckets(layouts_of(parameters, plan), device, codec)
        self._gradients = Gradients(parameters, plan, self._buckets)
        self.present = self._gradients.present
        self._mirrors = mirrors
        self._holds = NOTHING

    @property
    def size_bytes(self) -> int:
        return self._buckets.size_bytes

    def regroup(self, world: World) -> None:
        self._buckets.regroup(world)

    def reset(self) -> None:
        self._buckets.reset()

    def exchanges(self, step: int) -> list[BucketMemory]:
        return [
            one.shaped(operation=Operation.REDUCE_SCATTER, copies=self._mirrors)
            for one in self._buckets.exchanges(step)
        ]

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        self._holds = holds
        self._buckets.begin(scale)
        self._gradients.begin(check)
        self.present = self._gradients.present

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        del wait
        sums = work.backward("", 0, last=lambda: self._gradients.submit_when_full(start))
        refreshed()  # a rank without rows has run no forward
        self._gradients.finish(start)
        return sums

    def collect(self, wait: Await) -> None:
        for index in range(len(self._buckets.flats)):
            self._buckets.receive(index, wait)
            self._buckets.settle()

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        return self._buckets.flats[bucket][start:stop]

    def revoke(self) -> None:
        self._buckets.revoke()

    def scale(self, factor: float) -> None:
        """Multiply all sums that are held; the rest of the buckets is undefined."""
        for flat in self._buckets.flats:
            for start, stop in self._holds.ranges(flat.numel()):
                flat[start:stop].mul_(factor)

    def commit(self) -> None:
        self._buckets.commit()

    def rollback(self) -> None:
        self._buckets.rollback()

    def release(self) -> None:
        self._gradients.release()

    def close(self) -> None:
        self._gradients.close()
        self._buckets.close()


@dataclass(frozen=True, slots=True)
class _Range:
    """Elements [start, stop) of a bucket."""

    start: int
    stop: int
    values: Tensor


class HeldGradients:
    """Memory for a part of each bucket, in one block: hundreds would each end in half a page."""

    def __init__(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = list(layouts)
        self._holds = NOTHING
        self._ranges: list[list[_Range]] = [[] for _ in layouts]

    @property
    def size_bytes(self) -> int:
        return sum(one.values.nbytes for ranges in self._ranges for one in ranges)

    def hold(self, shards: ShardSet) -> None:
        """Have memory for these shards, with any contents."""
        if shards == self._holds:
            return
        self._holds, self._ranges = shards, []  # the old memory goes before the new one comes
        sizes = [
            line_bytes((stop - start) * layout.dtype.itemsize)
            for layout in self._layouts
            for start, stop in shards.ranges(layout.elements)
        ]
        parts = iter(torch.split(torch.empty(sum(sizes), dtype=torch.uint8), sizes))
        self._ranges = [
            [
                _Range(start, stop, laid_out(next(parts), stop - start, layout.dtype))
                for start, stop in shards.ranges(layout.elements)
            ]
            for layout in self._layouts
        ]

    def take(self, bucket: int, sums: Tensor, *, first: bool) -> None:
        """Take over the sums of a bucket, which are correct in this rank's segments.

        The first ones of a step replace what is there, others are added to it.
        """
        for one in self._ranges[bucket]:
            if first:
                one.values.copy_(sums[one.start : one.stop])
            else:
                one.values.add_(sums[one.start : one.stop])

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        """Return elements [start, stop) of a bucket, which are part of one held range."""
        for one in self._ranges[bucket]:
            if one.start <= start and stop <= one.stop:
                return one.values[start - one.start : stop - one.start]
        assert start == stop, f"elements [{start}, {stop}) of bucket {bucket} are not held"
        return torch.empty(0, dtype=self._layouts[bucket].dtype)

    def scale(self, factor: float) -> None:
        for one in (one for ranges in self._ranges for one in ranges):
            one.values.mul_(factor)


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
                view.copy_(as_dense(gradient))
                self.packed.add(place.parameter)

    def complete(self, places: Sequence[Place], parameters: Sequence[nn.Parameter]) -> None:
        """Pack the gradients that have arrived, with zeros for missing ones: the bucket leaves."""
        self.pack(places, parameters)
        assert self.flat is not None
        for place in places:
            if place.parameter not in self.packed:
                self.flat[place.start : place.stop].zero_()
        self.flat = None


@dataclass(slots=True)
class Pass:
    """Progress of one pass: its exchanges, and its buckets of gradients."""

    order: PassOrder
    fillings: list[Filling]


class PooledGradients(ShardGradients):
    """Stage 2: gradients that are exchanged pass by pass from a pool; there is no local state.

    The order of a pass is that of the plan's buckets; stage 3 (`UnitPasses`) has another one.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        *,
        mirrors: int,
        codec: Codec | None,
        passes: Passes,
    ) -> None:
        self._parameters = list(parameters)
        self._names = [shape.name for shape in plan.parameters]
        self._places: list[tuple[Place, ...]] = [bucket.places for bucket in plan.buckets]
        layouts = layouts_of(self._parameters, plan)
        self._pool = WirePool(layouts, mirrors=mirrors, codec=codec)
        self._held = HeldGradients(layouts)
        self._passes = passes
        self._trainers = 1
        self._total = self._number = 0  # passes of the step
        self._check: Callable[[], None] = lambda: None
        self.present = [False] * len(self._parameters)
        self._plan = PassPlan.of(in_plan_order([len(places) for places in self._places]))
        self._now = Pass(PassOrder(self._plan), [])
        self._bucket_of = bucket_of_each(plan)
        self._computes = False
        self._hooks = self._watch_gradients()

    def _watch_gradients(self) -> list[RemovableHandle]:
        return on_gradients(self._parameters, self._on_gradient)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        del parameter
        if self._computes:  # a task's metrics may run backward, too
            self.gradient(self._bucket_of[index], index)

    @property
    def size_bytes(self) -> int:
        return self._pool.size_bytes + self._held.size_bytes

    def regroup(self, world: World) -> None:
        self._trainers = world.trainers
        self._pool.regroup()
        self._held.hold(NOTHING)  # parts of the state are about to move, which takes memory

    def exchanges(self, step: int) -> list[BucketMemory]:
        self._total = self._passes(step, self._trainers)
        return self._pool.exchanges(list(self._plan.turns) * self._total)

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        del scale
        self.release()
        self._held.hold(holds)
        self._check, self._number = check, 0
        self.present = [False] * len(self._parameters)

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        self._pool.begin(start, wait, self._deliver)
        self._computes = True
        sums = work.backward("", 0, passed=self._end_pass)
        refreshed()  # a rank without rows has run no forward
        self._end_passes()
        self._computes = False
        return sums

    # --- a pass ----------------------------------------------------------------------------

    def _begin_pass(self) -> None:
        self._now = Pass(PassOrder(self._plan), [Filling() for _ in self._places])

    @property
    def _first(self) -> int:
        """Index of the first exchange of this pass."""
        return self._number * len(self._plan.turns)

    def _end_passes(self) -> None:
        """Take part in the remaining passes, for which this rank has no rows."""
        while self._number < self._total:
            self._end_pass()

    def _end_pass(self) -> None:
        """Backward has ended: submit the remaining exchanges, with zeros for missing gradients."""
        self._advance(len(self._plan.turns))
        self._number += 1
        self._begin_pass()

    def _advance(self, end: int) -> None:
        """Submit all exchanges of the pass before this one."""
        order = self._now.order
        while order.sent < end:
            self._fill(self._plan.turns[order.sent])
            self._pool.start()
            order.sent += 1

    def gradient(self, bucket: int, parameter: int) -> None:
        """Backward has computed a gradient: pack it, and send complete buckets."""
        self._check()
        if self._parameters[parameter].grad is None:
            raise cleared(self._names[parameter])
        order = self._now.order
        if self._plan.reduces[bucket] < order.sent and parameter in order.arrived[bucket]:
            raise received_twice(self._names[parameter])
        is_complete = order.gradient(bucket, parameter)
        self.present[parameter] = True
        filling = self._filling(bucket)
        if filling.flat is not None:
            filling.pack(self._places[bucket], self._parameters)
        if is_complete:
            self._release_unit(self._plan.unit_of[bucket])
        while order.may_leave():
            self._advance(order.sent + 1)

    def _filling(self, bucket: int) -> Filling:
        """Return a bucket of this pass, with a piece of the pool if one is free."""
        filling = self._now.fillings[bucket]
        if filling.flat is None:
            filling.flat = self._pool.piece(self._first + self._plan.reduces[bucket])
        return filling

    def _fill(self, turn: Turn) -> None:
        """Complete the bucket whose turn it is, whatever has arrived."""
        self._filling(turn.bucket).complete(self._places[turn.bucket], self._parameters)

    def _release_unit(self, unit: int) -> None:
        """All gradients of a unit are here."""

    def _deliver(self, index: int, sums: Tensor) -> None:
        number, at = divmod(index, len(self._plan.turns))
        self._held.take(self._plan.turns[at].bucket, sums, first=number == 0)

    # --- sums ------------------------------------------------------------------------------

    def collect(self, wait: Await) -> None:
        """Block until all sums have arrived; the exchanges are awaited as the pool was told."""
        del wait
        self._pool.finish(self._first - 1)

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        return self._held.part(bucket, start, stop)

    def scale(self, factor: float) -> None:
        if factor != 1.0:
            self._held.scale(factor)

    def release(self) -> None:
        self._pool.end()
        self._computes, self._check = False, lambda: None
        self._begin_pass()
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self.release()
        self._pool.close()
