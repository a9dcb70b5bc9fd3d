"""Stage 3: parameters are gathered unit by unit when they are needed, and released after that.

    forward    a unit's parameters are gathered before they are used, and released when its forward
               has ended
    backward   they are gathered again when autograd needs what it has saved of them; each bucket of
               gradients is reduce-scattered, and the unit is released after its last gradient

The unit that comes next is prefetched.  `dtd.strategy.sharded.uses` tells which one is needed
now; what is used outside of its own unit's forward, or returned by it, stays until its gradients
are there.

All ranks gather in the order of a pass that was watched (`dtd.strategy.sharded.schedule`), also
those with fewer micro-batches.  Another order at run time ends the job.

A *unit* is a module whose parameters are gathered together.  The rule, which gives the same units
on every worker: a module whose trained parameters fit into one
bucket (`sync.bucket_mib`), or whose submodules have none, is a unit.  A larger one is divided: the
parameters of its own are a unit, and the same rule applies to each of its submodules.  What is only
a list of modules (`nn.ModuleList`) is always divided.  Frozen parameters belong to no unit.  Tied
parameters belong to the unit that comes first; where another one uses them, that one is gathered.

As in ZeRO-3 (Rajbhandari et al. 2020, section 5.3) and PyTorch FSDP (Zhao et al. 2023).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtd.engine.shards import NOTHING, ShardSet
from dtd.errors import TaskError
from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.buckets import (
    BucketLayout,
    BucketPlan,
    ParameterShape,
    Place,
    plan_buckets,
)
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.api import Computation, LossSum
from dtd.strategy.codec.api import Codec
from dtd.strategy.sharded.gradients import Await, Passes, PooledGradients, Submit
from dtd.strategy.sharded.parameters import GatheredParameters
from dtd.strategy.sharded.schedule import PassOrder, PassPlan, follow
from dtd.strategy.sharded.state import ShardedState
from dtd.strategy.sharded.uses import FormerMemory, UnitUses, is_compiled
from dtd.strategy.sharded.wire_pool import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A module, and which trained parameters (by index) are needed while its forward runs."""

    module: nn.Module
    parameters: tuple[int, ...]


def units_of(model: nn.Module, trained: Sequence[nn.Parameter], *, bucket_bytes: int) -> list[Unit]:
    """Divide a model."""
    for name, module in model.named_modules():
        if is_compiled(module):
            raise TaskError(
                f"strategy.stage = 3 cannot gather the parameters of {name or 'the model'}: it is"
                " compiled",
                remedy="return it from build_model() without torch.compile or TorchScript, or set"
                " strategy.stage = 2",
            )
    left = {id(parameter): index for index, parameter in enumerate(trained)}
    units: list[Unit] = []

    def add(module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        indices = tuple(left.pop(id(p)) for p in parameters if id(p) in left)
        if indices:
            units.append(Unit(module=module, parameters=indices))

    def visit(module: nn.Module) -> None:
        own = [p for p in module.parameters(recurse=False) if id(p) in left]
        everything = [p for p in module.parameters() if id(p) in left]
        size_bytes = sum(p.nbytes for p in everything)
        runs = type(module).forward is not nn.Module.forward
        if runs and (size_bytes <= bucket_bytes or len(own) == len(everything)):
            add(module, everything)
            return
        add(module, own)
        for child in module.children():
            visit(child)

    visit(model)
    return units


def plan_units(
    shapes: Sequence[ParameterShape], units: Sequence[Unit], *, bucket_bytes: int
) -> tuple[BucketPlan, list[int]]:
    """Pack the parameters of each unit into buckets, in the order in which backward needs them.

    Returns:
        The plan, and the unit of each bucket.
    """
    buckets: list[BucketLayout] = []
    unit_of: list[int] = []
    for number, unit in reversed(list(enumerate(units))):
        local = plan_buckets(
            [shapes[index] for index in unit.parameters],
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=bucket_bytes,
        )
        for bucket in local.buckets:
            places = tuple(
                Place(parameter=unit.parameters[at.parameter], start=at.start, stop=at.stop)
                for at in bucket.places
            )
            buckets.append(
                BucketLayout(dtype=bucket.dtype, item_bytes=bucket.item_bytes, places=places)
            )
            unit_of.append(number)
    return BucketPlan(parameters=tuple(shapes), buckets=tuple(buckets)), unit_of


class UnitPasses(PooledGradients):
    """Parameters and gradients of stage 3.

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
        self._former = FormerMemory(parameters)
        self._memory = GatheredParameters(parameters, plan)
        super().__init__(parameters, plan, mirrors=mirrors, codec=codec, passes=passes)
        self._unit_of = list(unit_of)
        self._unit_names = [names[unit.parameters[0]] for unit in units]
        self._state: ShardedState | None = None
        self._whole: list[Turn] = []
        self._whole_awaited = False
        self._ahead: set[int] = set()  # units that have arrived before their next use
        self._pass_over = False
        self.wants_whole = False
        self.waited_s = 0.0
        self._uses = UnitUses(
            parameters,
            names,
            plan,
            [unit.module for unit in units],
            unit_of,
            model,
            bucket_of=self._memory.bucket_of,
        )

    def _watch_gradients(self) -> list[RemovableHandle]:
        return []  # `UnitUses` sees them

    # --- between steps ---------------------------------------------------------------------

    @property
    def flats(self) -> list[Tensor]:
        """The buckets of parameters; without memory while they are not needed."""
        return self._memory.flats

    def bind(self, state: ShardedState) -> None:
        """The shards that are gathered are those of this state."""
        self._state = state

    def digest(self) -> str:
        """Hash of the order of exchanges; equal on workers that can train together."""
        return self._plan.schedule.digest()

    def watch(self, passes: Sequence[Callable[[], None]]) -> None:
        """Record passes, and check that all of them can be made in the order of the first one.

        Raises:
            TaskError: the model uses a parameter in a way that cannot be seen, or in another order
                in another pass.
        """
        recorded = [self._uses.watch(run, self._former) for run in passes]
        gradients = list(map(max, zip(*(one.gradients for one in recorded), strict=True)))
        schedule = dataclasses.replace(recorded[0].schedule(), gradients=gradients)
        self._plan = PassPlan.of(schedule, self._unit_of, self._unit_names)
        for one in recorded:
            follow(PassOrder(self._plan), one.events)

    def forget(self) -> None:
        """The step is over: release the gathered units."""
        self._pool.end()
        self._whole_awaited = False
        self.drop()

    def drop(self) -> None:
        """Release the parameters' memory, unless it is that of the state itself."""
        assert self._state is not None, "bind() comes first"
        self._begin_pass()
        if not self._state.lies_in_flats:
            for bucket in range(len(self._places)):
                self._memory.empty(bucket)
            self._memory.hide()

    def allocate(self) -> None:
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
            self._give(turn.bucket, index)
            self._pool.start()
        self._pool.finish(len(self._whole) - 1)

    # --- a step ----------------------------------------------------------------------------

    def exchanges(self, step: int) -> list[BucketMemory]:
        self._total = self._passes(step, self._trainers)
        turns = [*self._whole, *self._plan.turns * self._total]
        return self._pool.exchanges(turns)[len(self._whole) :]

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
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
        """Forward and backward; the exchanges are those of `start` above."""
        del start, wait, refreshed
        with self._uses.notify(self):
            sums = work.backward("", 0, passed=self._end_pass)
        self._end_passes()
        self._memory.hide()
        return sums

    def release(self) -> None:
        super().release()
        self.forget()

    def close(self) -> None:
        self._uses.close()
        self._pool.close()

    # --- a pass ----------------------------------------------------------------------------

    def _begin_pass(self) -> None:
        super()._begin_pass()
        self._ahead, self._pass_over = set(), False

    @property
    def _first(self) -> int:
        return len(self._whole) + super()._first

    def _end_pass(self) -> None:
        self._pass_over = True
        self._advance(len(self._plan.turns))
        self._keep_pace()
        for unit in range(len(self._plan.buckets_of)):
            self._empty(unit)
        super()._end_pass()

    def _fill(self, turn: Turn) -> None:
        self._keep_pace()
        if turn.operation is Operation.ALL_GATHER:
            self._give(turn.bucket, self._first + self._now.order.sent)
        else:
            super()._fill(turn)

    def _keep_pace(self) -> None:
        """Wait for a gather where ranks with rows do, before later exchanges crowd the link.

        The next rank may wait for it and not have started these (`dtd.exchange.schedule.machine`).
        """
        end = self._plan.paces.get(self._now.order.sent)
        if end is not None:
            self._pool.finish(self._first + end - 1)

    def _give(self, bucket: int, index: int) -> None:
        """Write this rank's elements of a bucket of parameters into its exchange."""
        assert self._state is not None, "bind() comes first"
        flat = self._pool.piece(index)
        assert flat is not None, "an earlier exchange was not submitted"
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
        elif number == self._number and not self._pass_over:
            self._memory.fill(turn.bucket, result)
            if self._plan.ends[self._now.order.gathers - 1] <= at:
                self._ahead.add(self._unit_of[turn.bucket])

    # --- uses of parameters ----------------------------------------------------------------

    def end(self, unit: int) -> None:
        """Forward of a unit has ended: release it, if it is not needed."""
        if self._now.order.end(unit):
            self._release_unit(unit)

    def need(self, unit: int) -> None:
        """A unit's parameters are about to be used: gather them, if they are not there."""
        order = self._now.order
        gather = order.need(unit)
        if gather is None:
            return
        begun_s = time.perf_counter()
        self._advance(self._plan.before[gather])
        self._pool.finish(self._first + self._plan.ends[gather] - 1)
        self._ahead.discard(unit)
        self._advance(order.ahead(gather))
        self.waited_s += time.perf_counter() - begun_s

    def _release_unit(self, unit: int) -> None:
        """A unit's parameters are not needed, unless they have arrived ahead of their next use."""
        if unit not in self._ahead:
            self._empty(unit)

    def _empty(self, unit: int) -> None:
        assert self._state is not None, "bind() comes first"
        for bucket in () if self._state.lies_in_flats else self._plan.buckets_of[unit]:
            self._memory.empty(bucket)
