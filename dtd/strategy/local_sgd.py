"""Local SGD: every rank takes H local steps, then all ranks average their weights.

S. U. Stich, "Local SGD Converges Fast and Communicates Little" (arXiv:1805.09767).  A round has H
steps.  In each, a rank computes gradients over its slice of that step's global batch, and its own
optimizer updates its own weights.  Then one exchange is made:

    change of a rank    d_k = x - x_k        x: the common weights at the start of the round
    mean change         d = sum_k w_k d_k    w_k: the rank's fraction of the round's rows
    the round's update  x <- x - d           which is the mean of all weights, sum_k w_k x_k

This takes 1/H of the bytes of H synchronous steps.  Changes are exchanged rather than weights,
because a codec loses digits of its input.  The outer step applies d: it is subtracted
unchanged, or passed to a second optimizer (`Nesterov`).

On each rank, gradients are clipped by their own norm.  The optimizer's state is local, as in the
paper: it is rolled back when a round is redone or skipped, and starts empty in a process that
receives the state from another one.  A rank without rows in a step skips that step.  The model's
running buffers are averaged at the end of a round (`dtd.train.state.buffers`); otherwise the
evaluation would use statistics that belong to no model.  Where the outer step leads to other
weights than the mean, each rank first measures BatchNorm's statistics for these weights
(`dtd.train.state.buffers`), and the round's scalars, which carry the buffers, follow the
changes.  A change that is not finite on one rank is not finite on any, and all ranks skip the whole
round.

`Changes` holds the common weights at the start of a round as anchors, and restores them after the
local steps, so memory holds the job's state except during these.  `PostLocal` makes the first steps
of a job replicated ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dtd.exchange.api import BucketMemory, Collective
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.api import Applied, Computation, LossSum, Part, StepStats, Strategy
from dtd.strategy.buckets import as_dense, layouts_of, parameter_shapes, views_of
from dtd.strategy.codec.api import Codec, LocalState, World
from dtd.strategy.coded_buckets import make_buckets
from dtd.strategy.scalars import StepScalars


class Nesterov:
    """The outer optimizer of DiLoCo (`dtd.strategy.diloco`): a round's mean change is its gradient.

    Attributes:
        shared: its momentum, equal on all ranks, by name.
        leaves_mean: whether the weights become others than the mean of the ranks' weights.
    """

    risk = (
        "ranks' weights differ between exchanges, which an outer rate applies; begin with"
        " replicated steps (local_start_step), check the loss"
    )

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], *, lr: float, momentum: float
    ) -> None:
        self._lr, self._momentum = lr, momentum
        self.leaves_mean = (lr, momentum) != (1.0, 0.0)
        self.shared: Mapping[str, Tensor] = {
            f"outer_momentum.{name}": torch.zeros_like(parameter, requires_grad=False)
            for name, parameter in named
        }

    def update(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Update the weights, which are those of the start of the round, by the mean changes."""
        velocities = list(self.shared.values())
        torch._foreach_mul_(velocities, self._momentum)
        torch._foreach_add_(velocities, list(means))
        torch._foreach_add_(list(parameters), list(means), alpha=-self._lr)
        torch._foreach_add_(list(parameters), velocities, alpha=-self._lr * self._momentum)

    def look_ahead(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Change the weights as `update` would, up to rounding: x - a ((1 + m) d + m^2 v)."""
        velocities = list(self.shared.values())
        lr, momentum = self._lr, self._momentum
        torch._foreach_add_(list(parameters), list(means), alpha=-lr * (1.0 + momentum))
        torch._foreach_add_(list(parameters), velocities, alpha=-lr * momentum**2)


class Changes:
    """The changes (anchor - weight) of a model's trained parameters, in buckets to be averaged.

    They are multiplied by the rank's fraction of the rows, so that the sum over the ranks is the
    mean.

    Attributes:
        plan: layout of the changes in buckets.
        buckets: their buckets; committed, rolled back and closed by the caller.
        anchors: the weights at the start of the round, one tensor for each parameter.
        means: once the buckets have arrived, the mean change of each parameter.
    """

    def __init__(
        self, part: Part, device: torch.device, codec: Codec | None, *, bucket_bytes: int
    ) -> None:
        parameters = [parameter for _, parameter in part.named]
        self._parameters: list[Tensor] = list(parameters)
        self.plan = plan_buckets(
            parameter_shapes(part.named), bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes
        )
        self.buckets = make_buckets(layouts_of(parameters, self.plan), device, codec)
        self.anchors = [torch.empty_like(parameter) for parameter in self._parameters]
        self.means = views_of(parameters, self.plan, self.buckets.flats)

    @property
    def size_bytes(self) -> int:
        return self.buckets.size_bytes + sum(anchor.nbytes for anchor in self.anchors)

    def save(self) -> None:
        """Save the weights, which are equal on all ranks, as anchors."""
        with torch.no_grad():
            torch._foreach_copy_(self.anchors, self._parameters)

    def restore(self) -> None:
        """Restore the weights that all ranks hold."""
        with torch.no_grad():
            torch._foreach_copy_(self._parameters, self.anchors)

    def submit(self, share: float, ring: Collective, check: Callable[[], None]) -> None:
        """Write this rank's changes, and submit bucket by bucket.

        Args:
            share: the rank's fraction of the round's rows; if it is 0, the rank contributes zeros.
            ring: receives the complete buckets.
            check: called before each bucket; an exception that it raises ends the work.
        """
        with torch.no_grad():
            for index, bucket in enumerate(self.plan.buckets):
                check()
                for place in bucket.places:
                    change = self.means[place.parameter]
                    if share:
                        anchor = self.anchors[place.parameter]
                        torch.sub(anchor, self._parameters[place.parameter], out=change)
                        change.mul_(share)
                    else:
                        change.zero_()
                self.buckets.send(index, ring.start)


class LocalSteps(Strategy):
    """Rounds of local steps, each of which exchanges the changes of a part of the model."""

    def __init__(self, part: Part, scalars: StepScalars, changes: Sequence[Changes]) -> None:
        self._name = part.name
        self._parameters = [parameter for _, parameter in part.named]
        self._scalars = scalars
        self._scalars_bucket = 0
        self._parts = list(changes)
        self._changes = self._parts[0]  # those that this round exchanges
        self._check: Callable[[], None] = lambda: None
        self._restore_optimizer: Callable[[], None] | None = None

    # --- between rounds --------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return [self._name]

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self._parts) + len(self._scalars.memory.view)

    @property
    def fits(self) -> bool:
        return any(one.buckets.fits for one in self._parts)

    def plan(self) -> list[tuple[str, str]]:
        return [(self._name, one.plan.digest()) for one in self._parts]

    def regroup(self, world: World) -> None:
        for one in self._parts:
            one.buckets.regroup(world)

    def replaced(self) -> None:
        for one in self._parts:
            one.buckets.reset()

    def unsent(self, step: int) -> list[LocalState]:
        return [state for one in self._parts for state in one.buckets.unsent(step)]

    def close(self) -> None:
        for one in self._parts:
            one.buckets.close()

    # --- a round ---------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        del updates
        memories = self._changes.buckets.exchanges(step)
        self._scalars_bucket = len(memories)
        return [*memories, self._scalars.memory]

    def begin(self, check: Callable[[], None], scale: float) -> None:
        self._check, self._restore_optimizer = check, None
        self._changes.buckets.begin(scale)

    def collect(self, ring: Collective) -> None:
        self._changes.buckets.wait(ring.wait)
        ring.wait(self._scalars_bucket)

    def commit(self) -> None:
        self._restore_optimizer = None
        self._changes.buckets.commit()

    def rollback(self) -> None:
        if self._restore_optimizer is not None:
            self._restore_optimizer()
            self._restore_optimizer = None
        self._changes.buckets.rollback()

    def release(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _take_steps(self, work: Computation) -> LossSum:
        loss_sum = weight = 0.0
        for number in range(work.steps):
            self._check()
            self.release()
            work.take_step(number)
            sums = work.backward(self._name, 0)
            loss_sum, weight = loss_sum + sums.loss_sum, weight + sums.weight
            with work.tentative_update():
                factor = work.begin_update(sums.weight)
                if sums.weight:
                    _scale(work, self._parameters, factor)
                    work.update(self._name)
                work.local_update_made()
        return LossSum(loss_sum=loss_sum, weight=weight)

    def _send_scalars(self, work: Computation, sums: LossSum, ring: Collective) -> None:
        work.write_scalars(self._scalars, sums, [True] * len(self._parameters))
        ring.start(self._scalars_bucket)


class LocalSgd(LocalSteps):
    """Rounds after which all ranks' changes are averaged, and applied by the outer step.

    Without an outer optimizer the mean change is subtracted, so that weights become their mean.
    """

    risk = "ranks' weights differ between exchanges; check the loss"

    def __init__(
        self, part: Part, scalars: StepScalars, *, outer: Nesterov | None, changes: Changes
    ) -> None:
        super().__init__(part, scalars, [changes])
        self._outer = outer
        self._late: tuple[Computation, LossSum] | None = None

    @property
    def shared(self) -> Mapping[str, Tensor]:
        return {} if self._outer is None else self._outer.shared

    def begin(self, check: Callable[[], None], scale: float) -> None:
        self._late = None
        super().begin(check, scale)

    def compute(self, work: Computation, ring: Collective) -> None:
        """Take all local steps; afterwards, even on failure, the weights are restored."""
        self._restore_optimizer = work.remember_optimizer()
        leaves_mean = self._outer is not None and self._outer.leaves_mean
        measures = leaves_mean and work.keep_batches()
        self._changes.save()
        try:
            sums = self._take_steps(work)
            self._changes.submit(work.share, ring, self._check)
        finally:
            self._changes.restore()
            self.release()
        if measures:
            self._late = (work, sums)
        else:
            self._send_scalars(work, sums, ring)

    def collect(self, ring: Collective) -> None:
        """Wait; sends the scalars here if they hold the new weights' statistics."""
        self._changes.buckets.wait(ring.wait)
        if self._late is not None:
            (work, sums), self._late = self._late, None
            self._measure_ahead(work)
            self.release()
            self._send_scalars(work, sums, ring)
        ring.wait(self._scalars_bucket)

    def _measure_ahead(self, work: Computation) -> None:
        """Measure BatchNorm's statistics for the weights that the outer step will lead to.

        Nothing is done if the changes are not finite.
        """
        if self._outer is None or not math.isfinite(self._changes.buckets.norm()):
            return
        try:
            with torch.no_grad():
                self._outer.look_ahead(self._parameters, self._changes.means)
            work.measure_statistics()
        finally:
            self._changes.restore()

    def apply(self, work: Computation) -> StepStats:
        self._changes.buckets.revoke()
        totals, norm = self._scalars.totals(), self._changes.buckets.norm()
        if math.isfinite(norm):
            work.change_state(self._scalars)
            with torch.no_grad():
                if self._outer is None:
                    torch._foreach_sub_(list(self._parameters), list(self._changes.means))
                else:
                    self._outer.update(self._parameters, self._changes.means)
        applied = Applied(name=self._name, loss=totals.loss, norm=norm)
        return StepStats(updates=[applied], finite=math.isfinite(norm), totals=totals)

    def rollback(self) -> None:
        self._late = None
        super().rollback()


class PostLocal(Strategy):
    """Post-local SGD: replicated training at first, local steps from a given step on.

    T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD" (arXiv:1808.07217).  Which of the
    two strategies runs a step depends on the step alone.  The optimizer's state is kept at the
    transition; from `start_step` on it is local to each rank.

    Args:
        early: builds the strategy of the first steps.  It is closed after them, since its hooks and
            buckets would interfere with local steps, and built again if the state goes back.
        late: the strategy of the other steps.
        start_step: the first of these.
    """

    def __init__(self, early: Callable[[], Strategy], late: Strategy, *, start_step: int) -> None:
        self._build_early = early
        self._early: Strategy | None = None
        self._late = late
        self._start_step = start_step
        self._active = late
        self._world = World()

    # --- between steps ---------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return self._late.names

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """Those of the local steps, which are zero until these begin."""
        return self._late.shared

    @property
    def size_bytes(self) -> int:
        early = self._early.size_bytes if self._early is not None else 0
        return self._late.size_bytes + early

    def plan(self) -> list[tuple[str, str]]:
        return self._late.plan()

    def regroup(self, world: World) -> None:
        self._world = world
        for strategy in self._built:
            strategy.regroup(world)

    def replaced(self) -> None:
        for strategy in self._built:
            strategy.replaced()

    def unsent(self, step: int) -> list[LocalState]:
        """Those of the active strategy; the early one's are dropped with it."""
        return self._active.unsent(step)

    def close(self) -> None:
        for strategy in self._built:
            strategy.close()

    @property
    def _built(self) -> list[Strategy]:
        return [self._late] if self._early is None else [self._early, self._late]

    # --- a step ----------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        if step >= self._start_step:
            if self._early is not None:
                self._early.close()
            self._early, self._active = None, self._late
        else:
            if self._early is None:
                self._early = self._build_early()
                self._early.regroup(self._world)
            self._active = self._early
        return self._active.exchanges(step, updates)

    def begin(self, check: Callable[[], None], scale: float) -> None:
        self._active.begin(check, scale)

    def compute(self, work: Computation, ring: Collective) -> None:
        self._active.compute(work, ring)

    def collect(self, ring: Collective) -> None:
        self._active.collect(ring)

    def apply(self, work: Computation) -> StepStats:
        return self._active.apply(work)

    def commit(self) -> None:
        self._active.commit()

    def rollback(self) -> None:
        self._active.rollback()

    def release(self) -> None:
        self._active.release()


def _scale(work: Computation, parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Scale this rank's gradients to those of its mean loss, and clip them."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = as_dense(parameter.grad)
    present = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if work.clips:
        norms = [torch.linalg.vector_norm(gradient).double() for gradient in present]
        factor *= work.clip(factor * math.hypot(*torch.stack(norms).tolist()))
    if factor != 1.0:
        torch._foreach_mul_(present, factor)
