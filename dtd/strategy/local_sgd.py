"""Local SGD: every rank takes H local steps, then all ranks average their weights.

S. U. Stich, "Local SGD Converges Fast and Communicates Little" (arXiv:1805.09767).  A round has H
steps.  In each, a rank computes gradients over its slice of that step's global batch, and its own
optimizer updates its own weights.  Then one exchange is made:

    change of a rank    d_k = x - x_k        x: the common weights at the start of the round
    mean change         d = sum_k w_k d_k    w_k: the rank's fraction of the round's rows
    the round's update  x <- x - d           which is the mean of all weights, sum_k w_k x_k

This takes 1/H of the bytes of H synchronous steps.  Changes are exchanged rather than weights,
because a codec loses digits of its input.  The `Outer` step applies d: here it is subtracted
unchanged, in `dtd.strategy.diloco` it is passed to a second optimizer.

On each rank, gradients are clipped by their own norm.  The optimizer's state is local, as in the
paper: it is rolled back when a round is redone or skipped, and starts empty in a process that
receives the state from another one.  A rank without rows in a step skips that step.  The model's
running buffers are averaged at the end of a round (`dtd.train.state.buffers`); otherwise the
evaluation would use statistics that belong to no model.  Where the outer step leads to other
weights than the mean, each rank first measures BatchNorm's statistics for these weights
(`dtd.train.state.statistics`), and the round's scalars, which carry the buffers, follow the
changes.  A change that is not finite on one rank is not finite on any, and all ranks skip the whole
round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import plan_buckets
from dtd.strategy.api import Applied, BucketExchange, Computation, LossSum, Part, StepStats
from dtd.strategy.changes import Changes
from dtd.strategy.codec.api import Codec, World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.gradients import parameter_shapes
from dtd.strategy.scalars import StepScalars
from dtd.strategy.whole import WholeState


class Outer(Protocol):
    """Turns a round's mean change into an update; a pure function of state and change.

    Attributes:
        shared: tensors kept from round to round, equal on all ranks, by name.
        leaves_mean: whether the weights become others than the mean of the ranks' weights.
    """

    shared: Mapping[str, Tensor]
    leaves_mean: bool

    def update(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Update the weights, which are those of the start of the round, by the mean changes."""
        ...

    def look_ahead(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Change the weights as `update` would, up to rounding, and nothing else."""
        ...


class Average:
    """The weights become the mean of all ranks' weights.

    Attributes:
        risk: the strategy's risk for a job, as a phrase for its user.
    """

    risk = "ranks' weights differ between exchanges; check the loss"
    shared: Mapping[str, Tensor] = {}
    leaves_mean = False

    def update(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Implement `Outer`."""
        torch._foreach_sub_(list(parameters), list(means))

    def look_ahead(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Implement `Outer`."""
        self.update(parameters, means)


class LocalSgd(WholeState):
    """Implement `dtd.strategy.api.Strategy`.

    Args:
        part: the parameters of the one optimizer.
        device: the model's device.
        scalars: the last bucket of a round.
        outer: applies the round's update.
        codec: encodes the changes; None sends them unchanged.
        bucket_bytes: size of a bucket of changes.
    """

    def __init__(
        self,
        part: Part,
        device: torch.device,
        scalars: StepScalars,
        *,
        outer: Outer,
        codec: Codec | None,
        bucket_bytes: int,
    ) -> None:
        self._name = part.name
        self._parameters = [parameter for _, parameter in part.named]
        self._plan = plan_buckets(
            parameter_shapes(part.named), bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes
        )
        self._changes = Changes(self._parameters, self._plan, device, codec)
        self._scalars = scalars
        self._scalars_bucket = 0
        self._outer = outer
        self._late: tuple[Computation, LossSum] | None = None
        self._check: Callable[[], None] = _nothing
        self._put_back: Callable[[], None] | None = None

    # --- between rounds --------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Implement `Strategy`."""
        return [self._name]

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """Implement `Strategy`."""
        return self._outer.shared

    @property
    def size_bytes(self) -> int:
        """Implement `Strategy`."""
        return self._changes.size_bytes + len(self._scalars.memory.view)

    @property
    def fits(self) -> bool:
        """Whether there is a codec that applies to at least one change."""
        return self._changes.fits

    def plan(self) -> list[tuple[str, str]]:
        """Implement `Strategy`."""
        return [(self._name, self._plan.digest())]

    def regroup(self, world: World) -> None:
        """Implement `Strategy`."""
        self._changes.regroup(world)

    def replaced(self) -> None:
        """Implement `Strategy`; the code that loads another state clears the optimizer's."""
        self._changes.reset()

    def unsent(self, step: int) -> list[LocalState]:
        """Implement `Strategy`."""
        return self._changes.unsent(step)

    def close(self) -> None:
        """Implement `Strategy`."""
        self._changes.close()

    # --- a round ---------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        """The changes' buckets, then the round's scalars."""
        del updates
        memories = self._changes.exchanges(step)
        self._scalars_bucket = len(memories)
        return [*memories, self._scalars.memory]

    def begin(self, check: Callable[[], None], scale: float) -> None:
        """Implement `Strategy`."""
        self._check, self._put_back, self._late = check, None, None
        self._changes.begin(scale)

    def compute(self, work: Computation, ring: BucketExchange) -> None:
        """Take all local steps; afterwards, even on failure, the weights are restored."""
        self._put_back = work.remember_optimizer()
        measures = self._outer.leaves_mean and work.keep_batches()
        self._changes.remember()
        try:
            sums = take_local_steps(work, self._name, self._parameters, self._check)
            self._changes.hand_over(work.share, ring.start, self._check)
        finally:
            self._changes.put_back()
            self.release()
        if measures:
            self._late = (work, sums)
        else:
            self._send_scalars(work, sums, ring)

    def _send_scalars(self, work: Computation, sums: LossSum, ring: BucketExchange) -> None:
        work.write_scalars(self._scalars, sums, [True] * len(self._parameters))
        ring.start(self._scalars_bucket)

    def collect(self, ring: BucketExchange) -> None:
        """Implement `Strategy`; sends the scalars here if they hold the new weights' statistics."""
        self._changes.wait(ring.wait)
        if self._late is not None:
            (work, sums), self._late = self._late, None
            measure_ahead(work, self._outer, self._parameters, self._changes)
            self.release()
            self._send_scalars(work, sums, ring)
        ring.wait(self._scalars_bucket)

    def apply(self, work: Computation) -> StepStats:
        """Take the outer step."""
        self._changes.revoke()
        totals, norm = self._scalars.totals(), self._changes.norm()
        if math.isfinite(norm):
            work.change_state(self._scalars)
            with torch.no_grad():
                self._outer.update(self._parameters, self._changes.means)
        applied = Applied(name=self._name, loss=totals.loss, norm=norm)
        return StepStats(updates=[applied], finite=math.isfinite(norm), totals=totals)

    def commit(self) -> None:
        """Implement `Strategy`."""
        self._put_back = None
        self._changes.commit()

    def rollback(self) -> None:
        """Implement `Strategy`."""
        self._late = None
        if self._put_back is not None:
            self._put_back()
            self._put_back = None
        self._changes.rollback()

    def release(self) -> None:
        """Implement `Strategy`."""
        for parameter in self._parameters:
            parameter.grad = None


def take_local_steps(
    work: Computation,
    name: str,
    parameters: Sequence[nn.Parameter],
    check: Callable[[], None],
) -> LossSum:
    """Take all steps of a round on this rank's weights; returns their summed loss and weight.

    Args:
        work: the round.
        name: name of the optimizer.
        parameters: the optimizer's parameters.
        check: called before each step; an exception that it raises ends the round.
    """
    loss_sum = weight = 0.0
    for number in range(work.steps):
        check()
        for parameter in parameters:
            parameter.grad = None
        work.take_step(number)
        sums = work.backward(name, 0, last=_nothing)
        loss_sum, weight = loss_sum + sums.loss_sum, weight + sums.weight
        with work.tentative_update():
            factor = work.begin_update(sums.weight)
            if sums.weight:
                _scale(work, parameters, factor)
                work.update(name)
            work.local_update_made()
    return LossSum(loss_sum=loss_sum, weight=weight)


def measure_ahead(
    work: Computation, outer: Outer, parameters: Sequence[nn.Parameter], changes: Changes
) -> None:
    """Measure BatchNorm's statistics for the weights that the outer step will lead to.

    Afterwards, even on failure, the weights are restored.

    Args:
        work: the round; it has kept batches.
        outer: takes the outer step.
        parameters: changed in place.
        changes: their changes, which have arrived; nothing is done if they are not finite.
    """
    if not math.isfinite(changes.norm()):
        return
    try:
        with torch.no_grad():
            outer.look_ahead(parameters, changes.means)
        work.measure_statistics()
    finally:
        changes.put_back()


def _scale(work: Computation, parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Scale this rank's gradients to those of its mean loss, and clip them."""
    gradients = [_dense(parameter) for parameter in parameters]
    present = [gradient for gradient in gradients if gradient is not None]
    if work.clips:
        norms = [torch.linalg.vector_norm(gradient).double() for gradient in present]
        factor *= work.clip(factor * math.hypot(*torch.stack(norms).tolist()))
    if factor != 1.0:
        torch._foreach_mul_(present, factor)


def _dense(parameter: nn.Parameter) -> Tensor | None:
    """Return a parameter's gradient as a dense tensor, which the optimizers require."""
    gradient = parameter.grad
    if gradient is not None and gradient.layout is not torch.strided:
        parameter.grad = gradient = gradient.to_dense()
    return gradient


def _nothing() -> None:
    """Do nothing: no round has begun."""
