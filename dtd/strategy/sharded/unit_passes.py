"""Stage 3: parameters are gathered unit by unit when they are needed, and released after that.

    forward    a unit's parameters are gathered before they are used, and released when its forward
               has ended
    backward   they are gathered again when autograd needs what it has saved of them; each bucket of
               gradients is reduce-scattered, and the unit is released after its last gradient

The unit that comes next is prefetched.  `dtd.strategy.sharded.unit_uses` tells which one is needed
now; what is used outside of its own unit's forward, or returned by it, stays until its gradients
are there.

All ranks gather in the order of a pass that was watched (`dtd.strategy.sharded.schedule`), also
those with fewer micro-batches.  Another order at run time ends the job.

As in ZeRO-3 (Rajbhandari et al. 2020, section 5.3) and PyTorch FSDP (Zhao et al. 2023).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from dtd.engine.shards import NOTHING, ShardSet
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan, Place
from dtd.exchange.ring.chunks import Operation
from dtd.strategy.api import Computation, LossSum
from dtd.strategy.buckets import layouts_of
from dtd.strategy.codec.api import Codec, World
from dtd.strategy.gradients import cleared, received_twice
from dtd.strategy.sharded.filling import Filling
from dtd.strategy.sharded.former_memory import FormerMemory
from dtd.strategy.sharded.gathered_parameters import GatheredParameters
from dtd.strategy.sharded.held_gradients import CopiedSums, HeldGradients
from dtd.strategy.sharded.pass_plan import PassOrder, PassPlan, follow
from dtd.strategy.sharded.pooled_gradients import Passes
from dtd.strategy.sharded.schedule import Schedule
from dtd.strategy.sharded.state import ShardedState
from dtd.strategy.sharded.unit_uses import UnitUses
from dtd.strategy.sharded.units import Unit
from dtd.strategy.sharded.whole_gradients import Await, Submit
from dtd.strategy.sharded.wire_pool import Turn, WirePool


@dataclass(slots=True)
class _Pass:
    """Progress of one pass; `ahead` are units that have arrived before their next use."""

    order: PassOrder
    fillings: list[Filling]
    ahead: set[int] = field(default_factory=set)
    over: bool = False


class UnitPasses(CopiedSums):
    """Parameters and gradients of stage 3; also a `ShardGradients`.

    Args:
        parameters: the trained parameters, in the plan's order.
        names: their names, for messages.
        plan: their places in buckets.
        units: the units of the model.
        unit_of: the unit of each bucket.
        model: the model.
        mirrors: copies of each segment beside that of its owner.
        codec: rounds gradients when they leave a rank; None sends them unchanged.
        passes: the most micro-batches of any rank in a step.

    Attributes:
        waited_s: time for which the computation has waited for parameters so far.
        wants_whole: the next step begins with the whole model.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        plan: BucketPlan,
        units: Sequence[Unit],
        unit_of: Sequence[int],
        model: nn.Module,
        *,
        mirrors: int,
        codec: Codec | None,
        passes: Passes,
    ) -> None:
        self._parameters = list(parameters)
        self._names = [shape.name for shape in plan.parameters]
        self._former = FormerMemory(parameters)
        self._memory = GatheredParameters(parameters, plan)
        self._places: list[tuple[Place, ...]] = [bucket.places for bucket in plan.buckets]
        self._unit_of = list(unit_of)
        self._buckets_of = [
            [bucket for bucket, one in enumerate(unit_of) if one == unit]
            for unit in range(len(units))
        ]
        self._unit_names = [names[unit.parameters[0]] for unit in units]
        layouts = layouts_of(self._parameters, plan)
        self._pool = WirePool(layouts, mirrors=mirrors, codec=codec)
        super().__init__(HeldGradients(layouts))
        self._passes = passes
        self._state: ShardedState | None = None
        self._schedule = Schedule(gathers=(), keeps=(), exchanges=(), tail=0, gradients=())
        self._plan = PassPlan(turns=(), reduces={}, ends=(), before=())
        self._whole: list[Turn] = []
        self._whole_awaited = False
        self._trainers = 1
        self._total = self._number = 0
        self._now = self._new_pass()
        self._check: Callable[[], None] = _nothing
        self.wants_whole = False
        self.waited_s = 0.0
        self.present = [False] * len(self._parameters)
        bucket_of = self._memory.bucket_of
        self._uses = UnitUses(parameters, names, plan, units, unit_of, model, bucket_of=bucket_of)

    # --- between steps ---------------------------------------------------------------------

    @property
    def flats(self) -> list[Tensor]:
        """The buckets of parameters; without memory while they are not needed."""
        return self._memory.flats

    @property
    def size_bytes(self) -> int:
        """Implement `ShardGradients`."""
        return self._pool.size_bytes + self._held.size_bytes

    @property
    def parameter_bytes(self) -> int:
        """Memory of the parameters that are gathered now."""
        return self._memory.size_bytes

    def bind(self, state: ShardedState) -> None:
        """The shards that are gathered are those of this state."""
        self._state = state

    def digest(self) -> str:
        """Hash of the order of exchanges; equal on workers that can train together."""
        return self._schedule.digest()

    def watch(self, passes: Sequence[Callable[[], None]]) -> None:
        """Record passes, and check that all of them can be made in the order of the first one.

        Args:
            passes: forward and backward over some rows each; all parameters are in memory.

        Raises:
            TaskError: the model uses a parameter in a way that cannot be seen, or in another order
                in another pass.
        """
        recorded = [self._uses.watch(run, self._former) for run in passes]
        gradients = list(map(max, zip(*(one.gradients for one in recorded), strict=True)))
        self._schedule = dataclasses.replace(recorded[0].schedule(), gradients=gradients)
        self._plan = PassPlan.of(self._schedule, self._buckets_of)
        for one in recorded:
            follow(self._new_order(), one.events)

    def regroup(self, world: World) -> None:
        """Implement `ShardGradients`."""
        self._trainers = world.trainers
        self._pool.regroup()
        self._held.hold(NOTHING)  # parts of the state are about to move, which takes memory

    def forget(self) -> None:
        """The step is over: release the gathered units."""
        self._pool.end()
        self._whole_awaited = False
        self.drop()

    def drop(self) -> None:
        """Release the parameters' memory, unless it is that of the state itself."""
        assert self._state is not None, "bind() comes first"
        self._now = self._new_pass()
        if not self._state.lies_in_flats:
            for bucket in range(len(self._places)):
                self._memory.empty(bucket)
            self._memory.hide()

    def open(self) -> None:
        """Give all parameters memory, to be written to: they become the state."""
        self._memory.show()
        for bucket in range(len(self._places)):
            self._memory.allocate(bucket)

    # --- the whole model -------------------------------------------------------------------

    def memories(self) -> list[BucketMemory]:
        """Return the exchanges that bring the whole model, if it is wanted."""
        buckets = range(len(self._places)) if self.wants_whole else ()
        self._whole = [Turn(Operation.ALL_GATHER, bucket) for bucket in buckets]
        return self._pool.exchanges(self._whole)

    def start(self, start: Submit, wait: Await) -> None:
        """A step is open; its first exchanges are those of `memories`."""
        self._pool.begin(start, wait, self._deliver)
        self._whole_awaited = bool(self._whole)
        if self._whole:  # room for the model; gradients have no use before the step
            self._held.hold(NOTHING)

    def wait(self) -> None:
        """Block until this rank has the whole model, if it was wanted."""
        if not self._whole_awaited:
            return
        self._whole_awaited = False
        self._memory.show()
        for index, turn in enumerate(self._whole):
            flat = self._pool.piece(index)
            assert flat is not None
            self._give(turn.bucket, flat)
            self._pool.start()
        self._pool.finish(len(self._whole) - 1)

    # --- a step ----------------------------------------------------------------------------

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Implement `ShardGradients`."""
        self._total = self._passes(step, self._trainers)
        return self._pool.exchanges([*self._whole, *list(self._plan.turns) * self._total])[
            len(self._whole) :
        ]

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        """Implement `ShardGradients`."""
        del scale
        self.wait()
        self.drop()
        self._memory.show()
        self._held.hold(holds)
        self._check, self._number = check, 0
        self.present = [False] * len(self._parameters)

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        """Implement `ShardGradients`; the exchanges are those of `start` above."""
        del start, wait, refreshed
        with self._uses.told_to(self):
            sums = work.backward("", 0, passed=self._end_pass)
        while self._number < self._total:
            self._end_pass()
        self._memory.hide()
        return sums

    def collect(self, wait: Await) -> None:
        """Implement `ShardGradients`."""
        del wait
        self._pool.finish(len(self._whole) + self._total * len(self._plan.turns) - 1)

    def release(self) -> None:
        """Implement `ShardGradients`."""
        self.forget()
        self._check = _nothing
        for parameter in self._parameters:
            parameter.grad = None

    def close(self) -> None:
        """Implement `ShardGradients`."""
        self._uses.close()
        self._pool.close()

    # --- a pass ----------------------------------------------------------------------------

    def _new_pass(self) -> _Pass:
        return _Pass(self._new_order(), [Filling() for _ in self._places])

    def _new_order(self) -> PassOrder:
        return PassOrder(
            schedule=self._schedule,
            plan=self._plan,
            unit_of=self._unit_of,
            buckets_of=self._buckets_of,
            names=self._unit_names,
        )

    @property
    def _first(self) -> int:
        """Index of the first exchange of this pass."""
        return len(self._whole) + self._number * len(self._plan.turns)

    def _end_pass(self) -> None:
        """Backward has ended, or this rank has no rows: take part in the remaining exchanges."""
        self._now.over = True
        self._advance(len(self._plan.turns))
        self._keep_pace()
        for unit in range(len(self._buckets_of)):
            self._empty(unit)
        self._number += 1
        self._now = self._new_pass()

    def _advance(self, end: int) -> None:
        """Submit all exchanges of the pass before this one."""
        order = self._now.order
        while order.sent < end:
            self._keep_pace()
            turn = self._plan.turns[order.sent]
            if turn.operation is Operation.ALL_GATHER:
                flat = self._pool.piece(self._first + order.sent)
                assert flat is not None, "an earlier exchange was not submitted"
                self._give(turn.bucket, flat)
            else:
                self._complete(turn.bucket)
            self._pool.start()
            order.sent += 1

    def _keep_pace(self) -> None:
        """Wait for a gather where ranks with rows do, before later exchanges crowd the link.

        The next rank may wait for it and not have started these (`dtd.exchange.ring.machine`).
        """
        end = self._plan.paces.get(self._now.order.sent)
        if end is not None:
            self._pool.finish(self._first + end - 1)

    def _give(self, bucket: int, flat: Tensor) -> None:
        """Write this rank's elements of a bucket of parameters."""
        assert self._state is not None, "bind() comes first"
        for first, values in self._state.values(bucket):
            flat[first : first + values.numel()].copy_(values)

    def _deliver(self, index: int, result: Tensor) -> None:
        if index < len(self._whole):
            self._memory.fill(self._whole[index].bucket, result)
            return
        number, at = divmod(index - len(self._whole), len(self._plan.turns))
        turn = self._plan.turns[at]
        if turn.operation is Operation.REDUCE_SCATTER:
            self._held.take(turn.bucket, result, first=number == 0)
        elif number == self._number and not self._now.over:
            self._memory.fill(turn.bucket, result)
            unit = self._unit_of[turn.bucket]
            if self._plan.ends[self._now.order.gathers - 1] <= at:
                self._now.ahead.add(unit)

    # --- parameters ------------------------------------------------------------------------

    def end(self, unit: int) -> None:
        """Implement `Listener`: release the unit, if it is not needed."""
        if self._now.order.end(unit):
            self._release(unit)

    def need(self, unit: int) -> None:
        """Implement `Listener`: gather the unit, if it is not there."""
        now = self._now
        gather = now.order.need(unit)
        if gather is None:
            return
        begun_s = time.perf_counter()
        self._advance(self._plan.before[gather])
        self._pool.finish(self._first + self._plan.ends[gather] - 1)
        now.ahead.discard(unit)
        self._advance(now.order.ahead(gather))
        self.waited_s += time.perf_counter() - begun_s

    def _release(self, unit: int) -> None:
        """A unit's parameters are not needed, unless they have arrived ahead of their next use."""
        if unit not in self._now.ahead:
            self._empty(unit)

    def _empty(self, unit: int) -> None:
        assert self._state is not None, "bind() comes first"
        for bucket in () if self._state.lies_in_flats else self._buckets_of[unit]:
            self._memory.empty(bucket)

    # --- gradients -------------------------------------------------------------------------

    def gradient(self, bucket: int, parameter: int) -> None:
        """Implement `Listener`: pack the gradient, and send complete buckets."""
        self._check()
        if self._parameters[parameter].grad is None:
            raise cleared(self._names[parameter])
        order, filling = self._now.order, self._now.fillings[bucket]
        if self._plan.reduces[bucket] < order.sent and parameter in order.arrived[bucket]:
            raise received_twice(self._names[parameter])
        released = order.gradient(bucket, parameter)
        self.present[parameter] = True
        if filling.flat is None:
            filling.flat = self._pool.piece(self._first + self._plan.reduces[bucket])
        if filling.flat is not None:
            filling.pack(self._places[bucket], self._parameters)
        if released:
            self._release(self._unit_of[bucket])
        while order.may_leave():
            self._advance(order.sent + 1)

    def _complete(self, bucket: int) -> None:
        """A bucket leaves now, whatever has arrived."""
        filling = self._now.fillings[bucket]
        if filling.flat is None:
            filling.flat = self._pool.piece(self._first + self._plan.reduces[bucket])
        filling.complete(self._places[bucket], self._parameters)


def _nothing() -> None:
    """No step has begun."""
