"""Replicated training: every rank holds the whole state, and each step sums all gradients.

A rank's gradients are scaled by its share of the global batch, so their sum is the mean over the
batch.  Buckets are sent while backward is running.  The last bucket of each update contains its
scalars: a rank that has received all of them can commit the step without further communication.
Sums are the same bytes on every rank, so all ranks skip the same steps and make the same updates.

A step has one update, or several in sequence if a task has several optimizers.  Each one except the
last is applied as soon as its sums have arrived, because the next forward needs the changed
parameters; it is tentative until the step is committed.  `Undo` saves what such an update changes:
if the step is discarded, the last committed state is restored, and the step is redone from there.
The last update is applied at commit, like a single one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory, Collective
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.api import Applied, Computation, LossSum, Part, StepStats, Strategy
from dtd.strategy.buckets import Gradients, layouts_of, parameter_shapes
from dtd.strategy.codec.api import Codec, LocalState, World
from dtd.strategy.coded_buckets import make_buckets
from dtd.strategy.nested import copied
from dtd.strategy.scalars import StepScalars, Totals


class Update:
    """One optimizer's part of a step: its parameters, the buckets of their gradients, its scalars.

    Attributes:
        first_bucket: index of its first exchange in the current step.
        scalars_bucket: index of its scalars' exchange, which follows those of the gradients.
    """

    def __init__(
        self,
        part: Part,
        device: torch.device,
        codec: Codec | None,
        *,
        bucket_bytes: int,
        first_bucket_bytes: int,
        shares_memory: bool,
    ) -> None:
        self.name = part.name
        self.parameters = [parameter for _, parameter in part.named]
        self.places = list(part.places)
        self.plan = plan_buckets(
            parameter_shapes(part.named),
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=first_bucket_bytes,
        )
        self.buckets = make_buckets(layouts_of(self.parameters, self.plan), device, codec)
        self.gradients = Gradients(self.parameters, self.plan, self.buckets)
        self.scalars = StepScalars(
            parameters=len(self.parameters), buffer_elements=0, buffer_words=0
        )
        self.first_bucket = self.scalars_bucket = 0
        self._shares_memory = shares_memory

    def exchanges(self, step: int, first_bucket: int) -> list[BucketMemory]:
        """Return its exchanges in a step, of which the first has this index.

        The buckets of several updates are in several files, but a ring can read only one: they are
        sent over the sockets.
        """
        memories = self.buckets.exchanges(step)
        if not self._shares_memory:
            memories = [dataclasses.replace(memory, home=None) for memory in memories]
        self.first_bucket = first_bucket
        self.scalars_bucket = first_bucket + len(memories)
        return [*memories, self.scalars.memory]

    def backward(self, work: Computation, number: int, ring: Collective) -> LossSum:
        """Forward and backward; on return all buckets of gradients have been submitted."""

        def start(bucket: int, *done: Callable[[], None]) -> None:
            ring.start(self.first_bucket + bucket, *done)

        gradients = self.gradients
        sums = work.backward(self.name, number, last=lambda: gradients.submit_when_full(start))
        gradients.finish(start)
        return sums

    def wait(self, ring: Collective) -> None:
        """Block until gradients and scalars hold the sums over all ranks."""
        self.buckets.wait(lambda bucket: ring.wait(self.first_bucket + bucket))
        ring.wait(self.scalars_bucket)


class Replicated(Strategy):
    """Replicated training."""

    def __init__(
        self,
        parts: Sequence[Part],
        device: torch.device,
        scalars: StepScalars,
        *,
        codec: Callable[[], Codec] | None,
        bucket_bytes: int,
        first_bucket_bytes: int,
    ) -> None:
        self._updates = [
            Update(
                part,
                device,
                codec() if codec is not None else None,
                bucket_bytes=bucket_bytes,
                first_bucket_bytes=first_bucket_bytes,
                shares_memory=len(parts) == 1,
            )
            for part in parts
        ]
        self._scalars = scalars
        self._trained = sum(len(part.named) for part in parts)
        self._active = self._updates
        self._applied: list[Applied] = []
        self._undos: list[Undo] = []

    # --- between steps ---------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return [update.name for update in self._updates]

    @property
    def size_bytes(self) -> int:
        buckets = sum(update.buckets.size_bytes for update in self._updates)
        return buckets + len(self._scalars.memory.view)

    @property
    def fits(self) -> bool:
        return any(update.buckets.fits for update in self._updates)

    def plan(self) -> list[tuple[str, str]]:
        return [(update.name, update.plan.digest()) for update in self._updates]

    def regroup(self, world: World) -> None:
        for update in self._updates:
            update.buckets.regroup(world)

    def replaced(self) -> None:
        for update in self._updates:
            update.buckets.reset()

    def unsent(self, step: int) -> list[LocalState]:
        return [one for update in self._updates for one in update.buckets.unsent(step)]

    def close(self) -> None:
        for update in self._updates:
            update.gradients.close()
            update.buckets.close()

    # --- a step ----------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        """For each update its gradients, then its scalars; the last scalars are the step's."""
        by_name = {update.name: update for update in self._updates}
        self._active = [by_name[name] for name in updates]
        memories: list[BucketMemory] = []
        for update in self._active:
            memories += update.exchanges(step, len(memories))
        return [*memories[:-1], self._scalars.memory]

    def begin(self, check: Callable[[], None], scale: float) -> None:
        for update in self._active:
            update.buckets.begin(scale)
            update.gradients.begin(check)

    def compute(self, work: Computation, ring: Collective) -> None:
        """Compute all updates in sequence; all but the last are applied tentatively."""
        for number, update in enumerate(self._active):
            sums = update.backward(work, number, ring)
            present = update.gradients.present
            if update is self._active[-1]:
                work.write_scalars(self._scalars, sums, self._among_all(update, present))
                ring.start(update.scalars_bucket)
                return
            update.scalars.write(loss_sum=sums.loss_sum, weight=sums.weight, present=present)
            ring.start(update.scalars_bucket)
            update.wait(ring)
            with work.tentative_update():
                totals = update.scalars.totals()
                applied = self._apply(work, update, totals, totals.present, tentative=True)
                self._applied.append(applied)

    def _among_all(self, update: Update, present: Sequence[bool]) -> list[bool]:
        """Expand the flags of one update's parameters to all trained parameters."""
        flags = [False] * self._trained
        for place, there in zip(update.places, present, strict=True):
            flags[place] = there
        return flags

    def collect(self, ring: Collective) -> None:
        self._active[-1].wait(ring)

    def apply(self, work: Computation) -> StepStats:
        last, totals = self._active[-1], self._scalars.totals()
        present = [totals.present[place] for place in last.places]
        applied = [*self._applied, self._apply(work, last, totals, present, tentative=False)]
        return StepStats(updates=applied, finite=_are_finite(applied), totals=totals)

    def commit(self) -> None:
        for update in self._active[:-1]:
            update.buckets.revoke()  # no rank still reads them: all have prepared the step
        for update in self._active:
            update.buckets.commit()

    def rollback(self) -> None:
        while self._undos:
            self._undos.pop().restore()
        for update in self._active:
            update.buckets.rollback()

    def release(self) -> None:
        self._applied, self._undos = [], []
        for update in self._updates:
            update.gradients.release()

    def _apply(
        self,
        work: Computation,
        update: Update,
        totals: Totals,
        present: Sequence[bool],
        *,
        tentative: bool,
    ) -> Applied:
        """Unscale, clip and update, if gradients are finite here and in all earlier updates."""
        gradients = update.gradients
        factor = work.begin_update(totals.weight)
        if tentative:
            gradients.expose_copies(present)
        else:
            gradients.expose(present)
        norm = update.buckets.norm() * factor
        applied = Applied(name=update.name, loss=totals.loss, norm=norm)
        if _are_finite([*self._applied, applied]):
            factor *= work.clip(norm)
            if factor != 1.0:
                gradients.scale(factor)
            if tentative:
                self._undos.append(Undo(work.optimizer(update.name)))
            else:
                work.change_state(self._scalars)
            work.update(update.name)
        if tentative:
            gradients.release()
        return applied


def _are_finite(applied: Sequence[Applied]) -> bool:
    return all(math.isfinite(one.norm) for one in applied)


class OptimizerSnapshot:
    """A copy of an optimizer's own state: that of its parameters, and the values of its groups."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            {key: copied(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        self._state = {
            parameter: {key: copied(value) for key, value in values.items()}
            for parameter, values in optimizer.state.items()
        }

    def restore(self) -> None:
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(values)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


class Undo:
    """A copy of everything that one optimizer is about to change."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._values: list[tuple[Tensor, Tensor]] = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._optimizer = OptimizerSnapshot(optimizer)

    def restore(self) -> None:
        with torch.no_grad():
            for parameter, value in self._values:
                parameter.copy_(value)
        self._optimizer.restore()
