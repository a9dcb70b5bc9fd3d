"""The interface between engine and strategy: how the rows of a step become an update.

    engine  (dtd.train)       opens steps, votes, commits, freezes, redoes; owns rows, model, state
    strategy (this folder)    decides what is sent, when, and how the results are applied

In every step the engine calls, in this order:

    exchanges(step, updates)  declare the buckets of this step, before it begins
    refresh(ring)             complete the model, if this rank has only a part of it
    begin(check, scale)       snapshot the local state, so that it can be restored
    compute(work, ring)       forward and backward through `work`; buckets are sent as they fill
    collect(ring)             block until all results have arrived: the step is prepared
    apply(work)               only after the vote: a pure function of the state and the results
    commit() or rollback()    advance the local state, or restore it

For strategies with local steps such a "step" is a round of several (`dtd.engine.rounds`).
Between steps the engine calls `regroup` when a generation begins, and `replaced` when memory holds
another state.

A strategy has no access to sockets: it submits buckets and waits for them (`Collective`), either of
which may raise RingBroken.  Nor does it see rows or losses: `Computation` processes them.

There are two kinds of state.  *Shared* state is equal on all ranks; it is stored in the replica,
covered by digests, saved in checkpoints and sent to joining workers (`dtd.train.state.tensors`).
*Local* state is kept by the strategy and differs between ranks (`dtd.strategy.codec.api`).
Whatever a strategy applies must be computed from results that are the same bytes on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dtd.engine.digests import Shared
from dtd.exchange.api import BucketMemory, Collective
from dtd.strategy.codec.api import LocalState, World
from dtd.strategy.scalars import StepScalars, Totals
from dtd.strategy.sharded.state import ShardedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The parameters of one optimizer.

    Attributes:
        name: name of the optimizer; empty if there is only one.
        named: names and parameters.
        places: their indices among all trained parameters.
    """

    name: str
    named: Sequence[tuple[str, nn.Parameter]]
    places: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """Result of forward over this rank's rows: the sum of the losses, and of their weights."""

    loss_sum: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Figures of one update; equal on all ranks.

    Attributes:
        name: name of its optimizer.
        loss: mean loss over the global batch.
        norm: norm of the averaged gradients, before clipping.
    """

    name: str
    loss: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Figures of one step; equal on all ranks.

    Attributes:
        updates: one or several, in order.
        finite: all their gradients are finite; if not, nothing was updated.
        totals: the other values that were summed over the ranks.
    """

    updates: Sequence[Applied]
    finite: bool
    totals: Totals


class Computation(Protocol):
    """Rows, model and optimizers of one step or round, as the engine offers them to a strategy."""

    @property
    def steps(self) -> int:
        """The number of the job's steps that it covers."""
        ...

    @property
    def share(self) -> float:
        """This rank's fraction of all their rows."""
        ...

    @property
    def clips(self) -> bool:
        """Whether the job clips gradients."""
        ...

    def take_step(self, number: int) -> None:
        """Select a step of the round, from 0; the following calls refer to it."""
        ...

    def remember_optimizer(self) -> Callable[[], None]:
        """Copy optimizer and schedule state; returns a function that restores them, once."""
        ...

    def local_update_made(self) -> None:
        """Record that one more local step has been taken."""
        ...

    def backward(
        self,
        update: str,
        number: int,
        *,
        last: Callable[[], None] = ...,
        passed: Callable[[], None] = ...,
    ) -> LossSum:
        """Forward and backward over this rank's rows; gradients accumulate in the parameters.

        Args:
            update: name of the optimizer whose loss is computed.
            number: index of the pass in this step, from 0.
            last: called before the backward of the last micro-batch.
            passed: called after the backward of each micro-batch.
        """
        ...

    def keep_batches(self) -> bool:
        """Keep some batches of this round for `measure_statistics`; to be called before it.

        Returns:
            Whether the model has BatchNorm layers whose statistics change; equal on all ranks.  If
            not, nothing is kept.
        """
        ...

    def measure_statistics(self) -> None:
        """Make BatchNorm's statistics those of the current weights, by forwards over kept batches.

        The batches are released.  Gradients that a loss may leave are the caller's to release.
        """
        ...

    def write_scalars(self, scalars: StepScalars, sums: LossSum, present: Sequence[bool]) -> None:
        """Write the values, other than gradients, that are summed at the end of a step."""
        ...

    def tentative_update(self) -> AbstractContextManager[None]:
        """Context of an update that is followed by others in the same step or round."""
        ...

    def begin_update(self, weight: float) -> float:
        """Set the learning rates; returns the factor that turns summed gradients into the mean.

        It is NaN if the sum of all weights is 0.
        """
        ...

    def clip(self, norm: float) -> float:
        """Return the clipping factor for gradients of this norm."""
        ...

    def optimizer(self, update: str) -> torch.optim.Optimizer:
        """Return the optimizer of this name."""
        ...

    def change_state(self, scalars: StepScalars) -> None:
        """Begin the irreversible change of the live state; sets the running buffers."""
        ...

    def update(self, update: str) -> None:
        """Let an optimizer update its parameters."""
        ...


class Strategy(Protocol):
    """The algorithm that turns a step's rows into an update, on one rank.

    Where every rank has all of the state, the methods for parts of it do nothing, as here.

    Attributes:
        risk: its risk for a job, as a phrase for its user; empty if none.
        shards: the part of the state that this rank has; None if it has all of it.
        divides_parameters: parameters have memory only while they are used.
    """

    risk: str = ""
    shards: ShardedState | None = None
    divides_parameters: bool = False

    @property
    def waited_s(self) -> float:
        """Time for which forward and `refreshed` have waited for the whole model so far."""
        return 0.0

    @property
    def names(self) -> list[str]:
        """Names of all updates that a step may make, in order."""
        ...

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """The strategy's own tensors that are part of the state, by name; modified in place."""
        return {}

    @property
    def size_bytes(self) -> int:
        """Memory of its buffers on the device."""
        ...

    @property
    def fits(self) -> bool:
        """Whether the codec, if there is one, applies to at least one bucket."""
        return True

    def plan(self) -> list[tuple[str, str]]:
        """Return (name, digest) of the layout of every update; must be equal on all ranks."""
        ...

    def watch(self, passes: Sequence[Callable[[], None]]) -> None:
        """Check in some passes how the model uses its parameters.

        Args:
            passes: forward over some rows each, and backward if `divides_parameters`, with all
                parameters in memory.

        Raises:
            TaskError: in a way in which they cannot be gathered.
        """
        del passes

    def regroup(self, world: World) -> None:
        """A generation begins: processes still in an older one cannot use the buckets any more."""
        ...

    def redistribute(
        self, ring: Collective, step: int, compare: Callable[[Sequence[Shared]], None]
    ) -> int:
        """Give every rank of the new generation its part of a sharded state, after `regroup`.

        Args:
            ring: connects the ranks; no step is open.
            step: number of the ring's next step.
            compare: has all ranks compare parts that are about to move and that several ranks
                hold; called with the same parts on all ranks, within an open step, and raises
                DivergenceError if they differ.

        Returns:
            the number of the ring's next step after that; `step` if nothing is sharded.
        """
        del ring, compare
        return step

    def keep_redistributed(self) -> None:
        """All ranks have agreed on the state: drop the parts that are not this rank's any more."""
        return

    def undo_redistribution(self) -> None:
        """The generation is over before that: restore the shards held before, if they changed."""
        return

    def replaced(self) -> None:
        """Memory holds another state than before: reset the local state to zero."""
        ...

    def unsent(self, step: int) -> list[LocalState]:
        """Return this rank's residuals of earlier steps, for `ResidualHandoff`.

        Args:
            step: committed steps; equal on all ranks, as is the number of values returned.
        """
        ...

    def wants_whole(self, wanted: bool) -> None:
        """Say whether `refreshed` is to bring the whole model in the next step that is opened.

        Without that it may bring nothing where parameters are gathered as forward needs them.
        """
        del wanted

    def refreshes(self) -> list[BucketMemory]:
        """Return the exchanges after which this rank has the whole model, before a last step."""
        return []

    def refresh(self, ring: Collective) -> None:
        """A step is open, and its first exchanges are `refreshes`: start them.

        They overwrite what this rank has held until now and holds no more, so they are started
        after `keep_redistributed`.
        """
        del ring

    def refreshed(self) -> None:
        """Block until this rank has the whole model of the last committed step."""
        return

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        """Return the buckets exchanged in a step that makes these updates, in this order.

        `refreshes` come first.
        """
        ...

    def begin(self, check: Callable[[], None], scale: float) -> None:
        """A step begins.

        Args:
            check: to be called often during long work; raises once the step cannot complete.
            scale: factor by which losses are multiplied in this step.
        """
        ...

    def compute(self, work: Computation, ring: Collective) -> None:
        """Forward and backward; on return every bucket has been submitted."""
        ...

    def collect(self, ring: Collective) -> None:
        """Block until every result has arrived."""
        ...

    def apply(self, work: Computation) -> StepStats:
        """Apply the step's update; nothing is changed if its gradients are not finite."""
        ...

    def commit(self) -> None:
        """The step is committed: advance the local state."""
        ...

    def rollback(self) -> None:
        """The step is discarded or skipped: restore the local state."""
        ...

    def release(self) -> None:
        """The step is over: release its gradients."""
        ...

    def close(self) -> None:
        """Stop all threads."""
        ...
