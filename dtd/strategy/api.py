"""The seam between the engine and a strategy: how a step's rows become an update.

    engine  (dtd.train)       opens steps, votes, commits, freezes, redoes; owns rows, model, state
    strategy (this folder)    decides what leaves a rank, when, and how what comes back is applied

In every step the engine calls, in this order:

    exchanges(updates)        what travels in this step; declared before it begins
    begin(check)              remember what is this rank's own, so that it can be put back
    compute(work, ring)       forward and backward by way of `work`; buckets leave as they fill
    collect(ring)             every result is here: the step is prepared
    apply(work)               only after the vote: a pure function of the state and the results
    commit() or rollback()    what is this rank's own goes forward, or back

`regroup` and `replaced` come between steps: a generation begins; memory holds another state.

A strategy sees no socket: it hands buckets over and waits for them (`BucketExchange`).  It sees no
rows and no loss: `Computation` runs them.  State has two kinds.  What is *shared* is equal on all
ranks, lies in the replica and goes into digests, checkpoints and to joiners
(`dtd.train.state.tensors`). What is *local* is kept by the strategy and known to no other rank
(`Codec.local`).  All that a strategy applies must come from results that are the same bytes on
every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from dtd.strategy.scalars import StepScalars, Totals
from dtd.transport.api import BucketMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The parameters of one optimizer.

    Attributes:
        name: of the optimizer; empty for the only one.
        named: names and parameters.
        places: where these are among all trained parameters.
    """

    name: str
    named: Sequence[tuple[str, nn.Parameter]]
    places: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """What forward over this rank's rows came to: sum of losses, and of their weights."""

    loss_sum: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an update came to; equal on all ranks.

    Attributes:
        name: of its optimizer.
        loss: mean over the global batch.
        norm: of the averaged gradients, before clipping.
    """

    name: str
    loss: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What a step came to; equal on all ranks.

    Attributes:
        updates: one or several, in order.
        finite: their gradients are; if not, nothing was updated.
        totals: what was summed besides.
    """

    updates: Sequence[Applied]
    finite: bool
    totals: Totals


class BucketExchange(Protocol):
    """What a strategy sees of a generation's ring; each call may raise RingBroken."""

    def start(self, bucket: int) -> None:
        """Hand over a bucket whose contribution is complete; returns at once, thread-safe."""
        ...

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds the sum of all contributions."""
        ...


class Computation(Protocol):
    """One step's rows, model and optimizers, as the engine lends them to a strategy."""

    def backward(self, update: str, number: int, *, last: Callable[[], None]) -> LossSum:
        """Forward and backward over this rank's rows; gradients add up in the parameters.

        Args:
            update: name of the optimizer whose loss is computed.
            number: of the pass in this step, from 0.
            last: called before the backward of the last micro-batch.
        """
        ...

    def write_scalars(self, scalars: StepScalars, sums: LossSum, present: Sequence[bool]) -> None:
        """Write all that ranks sum besides gradients at the end of a step.

        Args:
            scalars: into these.
            sums: of the last pass.
            present: for each trained parameter, whether this rank has a gradient.
        """
        ...

    def tentative_update(self) -> AbstractContextManager[None]:
        """Around an update that another one follows in the same step."""
        ...

    def begin_update(self, weight: float) -> float:
        """Set the learning rates; returns the factor that makes summed gradients the mean's.

        Args:
            weight: sum of all weights; NaN comes back if it is 0.
        """
        ...

    def clip(self, norm: float) -> float:
        """What gradients of this norm are to be multiplied by."""
        ...

    def optimizer(self, update: str) -> torch.optim.Optimizer:
        """The one of this name."""
        ...

    def change_state(self, scalars: StepScalars) -> None:
        """From here on the live state is being changed for good; sets the running buffers."""
        ...

    def update(self, update: str) -> None:
        """Let an optimizer update its parameters."""
        ...


class Strategy(Protocol):
    """How a step's rows become an update, on one rank."""

    @property
    def names(self) -> list[str]:
        """Of all updates that a step may make, in order."""
        ...

    @property
    def size_bytes(self) -> int:
        """What its buffers take of the device's memory."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """(name, digest) of the layout of every update; must be equal on all ranks."""
        ...

    def regroup(self) -> None:
        """A generation begins: whoever is left in an older one reads the buckets in vain."""
        ...

    def replaced(self) -> None:
        """Memory holds another state than before: local state begins at zero."""
        ...

    def exchanges(self, updates: Sequence[str]) -> list[BucketMemory]:
        """The buckets that travel in the step which makes these updates; each is summed."""
        ...

    def begin(self, check: Callable[[], None]) -> None:
        """A step begins.

        Args:
            check: to be called often in long work; raises once the step is in vain.
        """
        ...

    def compute(self, work: Computation, ring: BucketExchange) -> None:
        """Forward and backward; every bucket is handed over on return."""
        ...

    def collect(self, ring: BucketExchange) -> None:
        """Return when every result is here."""
        ...

    def apply(self, work: Computation) -> StepStats:
        """Make the step's update; nothing is changed if its gradients are not finite."""
        ...

    def commit(self) -> None:
        """The step is committed: what is this rank's own goes forward."""
        ...

    def rollback(self) -> None:
        """Nothing of the step happened, or it is skipped: what is this rank's own goes back."""
        ...

    def release(self) -> None:
        """The step is over: let go of its gradients."""
        ...

    def close(self) -> None:
        """Leave nothing running."""
        ...
