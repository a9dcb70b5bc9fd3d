"""Replicated training: every rank holds the whole state, and each step sums all gradients.

A rank's gradients are scaled by its share of the global batch, so their sum is the mean over the
batch.  Buckets are sent while backward is running.  The last bucket of each update contains its
scalars: a rank that has received all of them can commit the step without further communication.
Sums are the same bytes on every rank, so all ranks skip the same steps and make the same updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.api import Applied, BucketExchange, Computation, LossSum, Part, StepStats
from dtd.strategy.codec.api import Codec, World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.scalars import StepScalars, Totals
from dtd.strategy.updates import Undo, Update, attend_to, build_update, number_buckets
from dtd.strategy.whole import WholeState


class Replicated(WholeState):
    """Implement `dtd.strategy.api.Strategy`.

    Args:
        parts: the optimizers' parameters, in the order of their updates.
        device: the model's device.
        scalars: the last bucket of a step.
        codec: creates the codec of the gradients, once for each update; None sends them unchanged.
        bucket_bytes: size of a bucket of gradients.
        first_bucket_bytes: size of the first bucket.

    Attributes:
        risk: the strategy's risk for a job, as a phrase for its user; empty, since it costs
            nothing.
    """

    risk = ""

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
            build_update(
                part,
                device,
                codec() if codec is not None else None,
                bucket_bytes=bucket_bytes,
                first_bucket_bytes=first_bucket_bytes,
                lends=len(parts) == 1,
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
        """Implement `Strategy`."""
        return [update.name for update in self._updates]

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """Implement `Strategy`; there is none beside the optimizer's state."""
        return {}

    @property
    def size_bytes(self) -> int:
        """Implement `Strategy`."""
        buckets = sum(update.gradients.size_bytes for update in self._updates)
        return buckets + len(self._scalars.memory.view)

    @property
    def fits(self) -> bool:
        """Whether there is a codec that applies to at least one gradient."""
        return any(update.gradients.fits for update in self._updates)

    def plan(self) -> list[tuple[str, str]]:
        """Implement `Strategy`."""
        return [(update.name, update.plan.digest()) for update in self._updates]

    def regroup(self, world: World) -> None:
        """Implement `Strategy`."""
        for update in self._updates:
            update.gradients.regroup(world)

    def replaced(self) -> None:
        """Implement `Strategy`."""
        for update in self._updates:
            update.gradients.reset()

    def unsent(self, step: int) -> list[LocalState]:
        """Implement `Strategy`."""
        return [one for update in self._updates for one in update.gradients.unsent(step)]

    def close(self) -> None:
        """Implement `Strategy`."""
        for update in self._updates:
            update.gradients.close()

    # --- a step ----------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        """For each update its gradients, then its scalars; the last scalars are the step's."""
        by_name = {update.name: update for update in self._updates}
        self._active = [by_name[name] for name in updates]
        memories: list[BucketMemory] = []
        for update in self._active:
            memories += [*update.memories(step), update.scalars.memory]
        number_buckets(self._active)
        return [*memories[:-1], self._scalars.memory]

    def begin(self, check: Callable[[], None], scale: float) -> None:
        """Implement `Strategy`."""
        for update in self._active:
            update.gradients.begin(check, scale)

    def compute(self, work: Computation, ring: BucketExchange) -> None:
        """Implement `Strategy`; of several updates, all but the last are applied tentatively."""
        for number, update in enumerate(self._active):
            attend_to(update, self._updates)
            sums = self._backward(work, update, number, ring)
            present = update.gradients.present
            if update is self._active[-1]:
                work.write_scalars(self._scalars, sums, self._among_all(update, present))
                ring.start(update.scalars_bucket)
                return
            update.scalars.write(loss_sum=sums.loss_sum, weight=sums.weight, present=present)
            ring.start(update.scalars_bucket)
            self._wait(update, ring)
            with work.tentative_update():
                totals = update.scalars.totals()
                applied = self._apply(work, update, totals, totals.present, tentative=True)
                self._applied.append(applied)

    def _backward(
        self, work: Computation, update: Update, number: int, ring: BucketExchange
    ) -> LossSum:
        gradients, first = update.gradients, update.first_bucket

        def start(bucket: int, *done: Callable[[], None]) -> None:
            ring.start(first + bucket, *done)

        sums = work.backward(update.name, number, last=lambda: gradients.hand_over_when_full(start))
        gradients.finish(start)
        return sums

    def _wait(self, update: Update, ring: BucketExchange) -> None:
        """Block until gradients and scalars hold the sums over all ranks."""
        update.gradients.wait(lambda bucket: ring.wait(update.first_bucket + bucket))
        ring.wait(update.scalars_bucket)

    def _among_all(self, update: Update, present: Sequence[bool]) -> list[bool]:
        """Expand the flags of one update's parameters to all trained parameters."""
        flags = [False] * self._trained
        for place, there in zip(update.places, present, strict=True):
            flags[place] = there
        return flags

    def collect(self, ring: BucketExchange) -> None:
        """Implement `Strategy`."""
        self._wait(self._active[-1], ring)

    def apply(self, work: Computation) -> StepStats:
        """Implement `Strategy`."""
        last, totals = self._active[-1], self._scalars.totals()
        present = [totals.present[place] for place in last.places]
        applied = [*self._applied, self._apply(work, last, totals, present, tentative=False)]
        return StepStats(updates=applied, finite=_are_finite(applied), totals=totals)

    def commit(self) -> None:
        """Implement `Strategy`."""
        for update in self._active[:-1]:
            update.gradients.revoke()  # no rank still reads them: all have prepared the step
        for update in self._active:
            update.gradients.commit()

    def rollback(self) -> None:
        """Implement `Strategy`."""
        while self._undos:
            self._undos.pop().restore()
        for update in self._active:
            update.gradients.rollback()

    def release(self) -> None:
        """Implement `Strategy`."""
        self._applied, self._undos = [], []
        attend_to(None, self._updates)
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
        norm = gradients.norm() * factor
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
    """Whether the gradients of all these updates are finite."""
    return all(math.isfinite(one.norm) for one in applied)
