"""Stage 2: gradients are kept only where they are needed, and the rest goes with its bucket.

A bucket gets a piece of the pool (`dtd.strategy.sharded.wire_pool`) when its first gradient
arrives.  A gradient is copied there and released; the full bucket is reduce-scattered, and the sums
of what this rank holds are copied to its own memory.  Then the piece serves another bucket.
Backward waits when no piece is free.

If some gradients of an earlier bucket are missing, because the model does not use these parameters
or uses them in another order, later buckets cannot leave before it.  So gradients that find no
piece stay where backward made them until the end of the pass: this costs memory, but no deadlock.

Each micro-batch is exchanged by itself, and the sums are added up in what this rank holds.  Ranks
with fewer micro-batches than others take part with zeros.

As in ZeRO-2 (Rajbhandari et al. 2020, section 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtd.engine.shards import NOTHING, ShardSet
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan, Place
from dtd.exchange.ring.chunks import Operation
from dtd.strategy.api import Computation, LossSum
from dtd.strategy.buckets import layouts_of
from dtd.strategy.codec.api import Codec, World
from dtd.strategy.gradients import cleared, received_twice
from dtd.strategy.sharded.filling import Filling
from dtd.strategy.sharded.held_gradients import CopiedSums, HeldGradients
from dtd.strategy.sharded.whole_gradients import Await, Submit
from dtd.strategy.sharded.wire_pool import Turn, WirePool

Passes = Callable[[int, int], int]
"""The most micro-batches of any rank in a step, given the committed steps before it and N."""


class PooledGradients(CopiedSums):
    """Implement `dtd.strategy.sharded.whole_gradients.ShardGradients`.

    Args:
        parameters: the trained parameters, in the plan's order.
        plan: layout of their gradients in buckets.
        mirrors: copies of each segment beside that of its owner.
        codec: rounds gradients when they leave a rank; None sends them unchanged.
        passes: the most micro-batches of any rank in a step.
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
        self._bucket_of = {
            place.parameter: bucket
            for bucket, places in enumerate(self._places)
            for place in places
        }
        layouts = layouts_of(self._parameters, plan)
        self._pool = WirePool(layouts, mirrors=mirrors, codec=codec)
        super().__init__(HeldGradients(layouts))
        self._passes = passes
        self._trainers = 1
        self._total = 0  # passes of the step
        self._pass = 0
        self._fill = [Filling() for _ in self._places]
        self._next = 0  # first bucket of the pass that has not been submitted
        self._runs = False
        self._check: Callable[[], None] = _nothing
        self.present = [False] * len(self._parameters)
        self._hooks: list[RemovableHandle] = [
            _hook(parameter, partial(self._on_gradient, index))
            for index, parameter in enumerate(self._parameters)
        ]

    @property
    def size_bytes(self) -> int:
        """Implement `ShardGradients`."""
        return self._pool.size_bytes + self._held.size_bytes

    def regroup(self, world: World) -> None:
        """Implement `ShardGradients`."""
        self._trainers = world.trainers
        self._pool.regroup()
        self._held.hold(NOTHING)  # parts of the state are about to move, which takes memory

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Implement `ShardGradients`; those of one micro-batch after the other."""
        self._total = self._passes(step, self._trainers)
        buckets = range(len(self._places))
        turns = [Turn(Operation.REDUCE_SCATTER, bucket) for bucket in buckets]
        return self._pool.exchanges(turns * self._total)

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        """Implement `ShardGradients`."""
        del scale
        self.release()
        self._held.hold(holds)
        self._check = check
        self._pass = 0
        self.present = [False] * len(self._parameters)

    # --- a pass ----------------------------------------------------------------------------

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        """Implement `ShardGradients`."""
        self._pool.begin(start, wait, self._deliver)
        self._runs = True
        self._begin_pass()
        sums = work.backward("", 0, passed=self._end_pass)
        refreshed()  # a rank without rows has run no forward
        while self._pass < self._total:
            self._end_pass()
        self._runs = False
        return sums

    def _begin_pass(self) -> None:
        self._next = 0
        self._fill = [Filling() for _ in self._places]

    def _end_pass(self) -> None:
        """Backward has ended: submit the remaining buckets, with zeros for missing gradients."""
        while self._next < len(self._places):
            assert self._has_piece(self._next), "an earlier bucket was not submitted"
            self._submit()
        self._pass += 1
        self._begin_pass()

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if not self._runs:
            return  # a task's metrics may run backward, too
        self._check()
        if parameter.grad is None:
            raise cleared(self._names[index])
        bucket = self._bucket_of[index]
        if bucket < self._next:
            raise received_twice(self._names[index])
        self.present[index] = True
        filling = self._fill[bucket]
        filling.arrived.add(index)
        if self._has_piece(bucket):
            filling.pack(self._places[bucket], self._parameters)
        while self._next < len(self._places) and self._is_full(self._next):
            if not self._has_piece(self._next):
                break
            self._submit()

    def _is_full(self, bucket: int) -> bool:
        return len(self._fill[bucket].arrived) == len(self._places[bucket])

    def _has_piece(self, bucket: int) -> bool:
        filling = self._fill[bucket]
        if filling.flat is None:
            filling.flat = self._pool.piece(self._pass * len(self._places) + bucket)
        return filling.flat is not None

    def _submit(self) -> None:
        """The next bucket leaves; it has a piece."""
        self._fill[self._next].complete(self._places[self._next], self._parameters)
        self._pool.start()
        self._next += 1

    def _deliver(self, index: int, sums: Tensor) -> None:
        number, bucket = divmod(index, len(self._places))
        self._held.take(bucket, sums, first=number == 0)

    # --- sums ------------------------------------------------------------------------------

    def collect(self, wait: Await) -> None:
        """Implement `ShardGradients`; `wait` is that of `compute`."""
        del wait
        self._pool.finish(self._total * len(self._places) - 1)

    def release(self) -> None:
        """Implement `ShardGradients`."""
        self._pool.end()
        self._runs, self._check = False, _nothing
        self._begin_pass()
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Implement `ShardGradients`."""
        for hook in self._hooks:
            hook.remove()
        self.release()
        self._pool.close()


def _nothing() -> None:
    """No step has begun."""


def _hook(parameter: Any, on_gradient: Callable[[Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(on_gradient)
    return handle
