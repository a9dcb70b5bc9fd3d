"""Sharded training: optimizer state is divided among the ranks, and mirrored.

    begin     all-gather of the parameters, bucket by bucket, while forward runs
    backward  reduce-scatter of each full bucket of gradients; the sum of a segment goes to the rank
              that owns it and `mirrors` ranks further
    collect   the sum of squares of the own segments is exchanged: the step is prepared
    apply     owners and mirrors update their slices, each the same bytes

So every rank knows the norm of all gradients, and whether every gradient is finite: the square of
what is not finite is not finite either.

A rank changes only what it holds, and nothing before the vote, so there is nothing to undo.  The
two halves of an all-reduce carry what replicated training sends in one, so traffic is the same.
After ZeRO-1 (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models"), with mirrors, so that the loss of a rank loses no state.  In stage 2, as in
ZeRO-2, a rank keeps only the gradients of what it holds (`dtd.strategy.sharded.gradients`),
and in stage 3, as in ZeRO-3, only the parameters (`dtd.strategy.sharded.units`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import nn

from dtd.engine.digests import Shared
from dtd.engine.shards import Division, ShardSet
from dtd.exchange.api import BucketMemory, Collective
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.api import Applied, Computation, Part, StepStats, Strategy
from dtd.strategy.buckets import norm_of, parameter_shapes
from dtd.strategy.codec.api import Codec, LocalState, World
from dtd.strategy.scalars import StepScalars
from dtd.strategy.sharded.gradients import (
    Passes,
    PooledGradients,
    ShardGradients,
    WholeGradients,
)
from dtd.strategy.sharded.optimizers import check_hooks
from dtd.strategy.sharded.parameters import FlatParameters
from dtd.strategy.sharded.regroup import regroup
from dtd.strategy.sharded.state import ShardedState
from dtd.strategy.sharded.units import UnitPasses, plan_units, units_of
from dtd.strategy.wire_memory import bucket_memory

_COMPILED: Final = "_orig_mod."
"""Prefix that torch.compile adds to names; a state has names without it."""


class Sharded(Strategy):
    """Sharded training."""

    def __init__(
        self,
        part: Part,
        model: nn.Module,
        device: torch.device,
        scalars: StepScalars,
        *,
        stage: int,
        mirrors: int,
        codec: Codec | None,
        passes: Passes,
        bucket_bytes: int,
        first_bucket_bytes: int,
    ) -> None:
        trained = [parameter for _, parameter in part.named]
        names = [name.replace(_COMPILED, "") for name, _ in part.named]
        shapes = parameter_shapes(part.named)
        self._parameters: FlatParameters | UnitPasses
        self._gradients: ShardGradients
        self._units: UnitPasses | None = None
        if stage == 3:
            units = units_of(model, trained, bucket_bytes=bucket_bytes)
            self._plan, unit_of = plan_units(shapes, units, bucket_bytes=bucket_bytes)
            self._units = self._parameters = self._gradients = UnitPasses(
                trained,
                names,
                self._plan,
                units,
                unit_of,
                model,
                mirrors=mirrors,
                codec=codec,
                passes=passes,
            )
        else:
            self._plan = plan_buckets(
                shapes, bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes
            )
            self._parameters = FlatParameters(trained, self._plan, model, mirrors=mirrors)
            self._gradients = (
                WholeGradients(trained, self._plan, device, mirrors=mirrors, codec=codec)
                if stage == 1
                else PooledGradients(
                    trained, self._plan, mirrors=mirrors, codec=codec, passes=passes
                )
            )
        self.shards = self._state = ShardedState(
            names, trained, self._plan, self._parameters.flats, owns=self._units is not None
        )
        if self._units is not None:
            self._units.bind(self._state)
            self._state.allocate = self._units.allocate
            self._state.deallocate = self._units.drop
        self._scalars = scalars
        self._square = torch.zeros(1, dtype=torch.float64)
        self._square_memory = bucket_memory(self._square)
        self._mirrors = mirrors
        self._own = ShardSet.segments([0], 1)
        self._first = self._scalars_bucket = 0
        self._entries_checked = False
        self.divides_parameters = self._units is not None

    # --- between steps ---------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return [""]

    @property
    def size_bytes(self) -> int:
        return self._gradients.size_bytes + len(self._scalars.memory.view)

    def plan(self) -> list[tuple[str, str]]:
        units = [] if self._units is None else [("units", self._units.digest())]
        return [("", self._plan.digest()), *units]

    def watch(self, passes: Sequence[Callable[[], None]]) -> None:
        self._parameters.watch(passes)

    def regroup(self, world: World) -> None:
        self._parameters.forget()
        self._gradients.regroup(world)
        division = Division(world_size=world.size, mirrors=self._mirrors, servers=world.servers)
        self._state.rank, self._state.division = world.rank, division
        self._own = division.own(world.rank)
        self._entries_checked = False

    def redistribute(
        self, ring: Collective, step: int, compare: Callable[[Sequence[Shared]], None]
    ) -> int:
        division = self._state.division

        def wanted(rank: int, held: ShardSet) -> list[ShardSet]:
            del held
            return [ShardSet.segments([i], division.segments) for i in division.held(rank)]

        return regroup(self._state, ring, step, wanted, compare)

    def keep_redistributed(self) -> None:
        self._state.keep()
        if self._units is not None:
            self._units.drop()

    def undo_redistribution(self) -> None:
        self._parameters.forget()
        self._state.put_back()

    def replaced(self) -> None:
        self._parameters.forget()
        self._gradients.reset()

    def unsent(self, step: int) -> list[LocalState]:
        del step
        return []

    def close(self) -> None:
        self._parameters.close()
        self._gradients.close()

    # --- a step ----------------------------------------------------------------------------

    def wants_whole(self, wanted: bool) -> None:
        if self._units is not None:
            self._units.wants_whole = wanted

    def refreshes(self) -> list[BucketMemory]:
        return self._parameters.memories()

    def refresh(self, ring: Collective) -> None:
        self._parameters.start(ring.start, ring.wait)

    def refreshed(self) -> None:
        self._parameters.wait()

    @property
    def waited_s(self) -> float:
        return self._parameters.waited_s

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        del updates
        parameters, gradients = self.refreshes(), self._gradients.exchanges(step)
        self._first = len(parameters)
        self._scalars_bucket = self._first + len(gradients)
        return [*parameters, *gradients, self._scalars.memory, self._square_memory]

    def begin(self, check: Callable[[], None], scale: float) -> None:
        self._gradients.begin(check, scale, self._state.sliced)

    def compute(self, work: Computation, ring: Collective) -> None:
        first = self._first

        def start(bucket: int, *done: Callable[[], None]) -> None:
            ring.start(first + bucket, *done)

        def wait(bucket: int) -> None:
            ring.wait(first + bucket)

        sums = self._gradients.compute(work, start, wait, self.refreshed)
        check_hooks(work.optimizer(""))  # those that a task has added since warm-up
        work.write_scalars(self._scalars, sums, self._gradients.present)
        ring.start(self._scalars_bucket)

    def collect(self, ring: Collective) -> None:
        first = self._first
        self._gradients.collect(lambda bucket: ring.wait(first + bucket))
        self._square.zero_()
        for bucket, elements in enumerate(self._state.buckets()):
            for start, stop in self._own.ranges(elements):
                norm = norm_of(self._gradients.part(bucket, start, stop))
                self._square += norm * norm
        ring.start(self._scalars_bucket + 1)
        ring.wait(self._scalars_bucket)
        ring.wait(self._scalars_bucket + 1)

    def apply(self, work: Computation) -> StepStats:
        totals = self._scalars.totals()
        factor = work.begin_update(totals.weight)
        self._gradients.revoke()
        norm = math.sqrt(float(self._square)) * factor
        finite = math.isfinite(norm)
        if finite:
            self._gradients.scale(factor * work.clip(norm))
            self._state.set_gradients(self._gradients.part, totals.present)
            work.change_state(self._scalars)
            work.update("")
            self._check_entries()
        return StepStats(
            updates=[Applied(name="", loss=totals.loss, norm=norm)], finite=finite, totals=totals
        )

    def _check_entries(self) -> None:
        """Check the optimizer's entries once in a generation; they appear at its first update."""
        if not self._entries_checked:
            self._state.check_entries()
            self._entries_checked = True

    def commit(self) -> None:
        self._gradients.commit()

    def rollback(self) -> None:
        self._parameters.forget()
        self._gradients.rollback()

    def release(self) -> None:
        self._state.release_gradients()
        self._gradients.release()
