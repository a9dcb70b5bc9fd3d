"""The interface to a step's gradients, and stage 1's: every rank has memory for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from dtd.engine.shards import NOTHING, ShardSet
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan
from dtd.exchange.ring.chunks import Operation
from dtd.strategy.api import Computation, LossSum
from dtd.strategy.buckets import layouts_of
from dtd.strategy.codec.api import Codec, World
from dtd.strategy.coded_buckets import make_buckets
from dtd.strategy.gradients import Gradients

Submit = Callable[..., None]
"""Submits the exchange of this index; the optional argument is that of `Collective.start`."""
Await = Callable[[int], None]
"""Blocks until the exchange of this index is complete."""


class ShardGradients(Protocol):
    """The gradients of one rank, of which it gets the sums that it holds."""

    @property
    def present(self) -> list[bool]:
        """For each trained parameter, whether this rank has a gradient in this step."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory of gradients and their buckets."""
        ...

    def regroup(self, world: World) -> None:
        """A generation begins."""
        ...

    def reset(self) -> None:
        """Memory holds another state."""
        ...

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of the step after `step` committed ones."""
        ...

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        """A step begins.

        Args:
            check: to be called often; raises once the step cannot complete.
            scale: factor by which losses are multiplied.
            holds: the shards whose sums are wanted.
        """
        ...

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        """Forward and backward; on return every exchange has been submitted.

        Args:
            work: the rows.
            start: submits an exchange.
            wait: blocks until one is complete.
            refreshed: blocks until the parameters are current; they come earlier in the step.
        """
        ...

    def collect(self, wait: Await) -> None:
        """Block until all sums have arrived."""
        ...

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        """Return the sums of elements [start, stop) of a bucket, of one segment that is held."""
        ...

    def revoke(self) -> None:
        """Sums are about to change: no other rank may read them any more."""
        ...

    def scale(self, factor: float) -> None:
        """Multiply all sums that are held."""
        ...

    def commit(self) -> None:
        """The step is committed."""
        ...

    def rollback(self) -> None:
        """The step is discarded or skipped."""
        ...

    def release(self) -> None:
        """The step is over."""
        ...

    def close(self) -> None:
        """Remove all hooks."""
        ...


class WholeGradients:
    """Implement `ShardGradients`; buckets as for replicated training, and half of each all-reduce.

    Args:
        parameters: the trained parameters, in the plan's order.
        plan: layout of their gradients in buckets.
        device: a CPU.
        mirrors: copies of each segment beside that of its owner.
        codec: rounds gradients when they leave a rank.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: BucketPlan,
        device: torch.device,
        *,
        mirrors: int,
        codec: Codec | None,
    ) -> None:
        self._buckets = make_buckets(layouts_of(parameters, plan), device, codec)
        self._gradients = Gradients(parameters, plan, self._buckets)
        self._mirrors = mirrors
        self._holds = NOTHING

    @property
    def present(self) -> list[bool]:
        """Implement `ShardGradients`."""
        return self._gradients.present

    @property
    def size_bytes(self) -> int:
        """Implement `ShardGradients`."""
        return self._buckets.size_bytes

    def regroup(self, world: World) -> None:
        """Implement `ShardGradients`."""
        self._buckets.regroup(world)

    def reset(self) -> None:
        """Implement `ShardGradients`."""
        self._buckets.reset()

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Implement `ShardGradients`."""
        return [
            dataclasses.replace(one, operation=Operation.REDUCE_SCATTER, copies=self._mirrors)
            for one in self._buckets.exchanges(step)
        ]

    def begin(self, check: Callable[[], None], scale: float, holds: ShardSet) -> None:
        """Implement `ShardGradients`."""
        self._holds = holds
        self._buckets.begin(scale)
        self._gradients.begin(check)

    def compute(
        self, work: Computation, start: Submit, wait: Await, refreshed: Callable[[], None]
    ) -> LossSum:
        """Implement `ShardGradients`."""
        del wait
        sums = work.backward("", 0, last=lambda: self._gradients.hand_over_when_full(start))
        refreshed()  # a rank without rows has run no forward
        self._gradients.finish(start)
        return sums

    def collect(self, wait: Await) -> None:
        """Implement `ShardGradients`."""
        for index in range(len(self._buckets.flats)):
            self._buckets.receive(index, wait)
            self._buckets.settle()

    def part(self, bucket: int, start: int, stop: int) -> Tensor:
        """Implement `ShardGradients`."""
        return self._buckets.flats[bucket][start:stop]

    def revoke(self) -> None:
        """Implement `ShardGradients`."""
        self._buckets.revoke()

    def scale(self, factor: float) -> None:
        """Implement `ShardGradients`; the rest of the buckets is undefined."""
        for flat in self._buckets.flats:
            for start, stop in self._holds.ranges(flat.numel()):
                flat[start:stop].mul_(factor)

    def commit(self) -> None:
        """Implement `ShardGradients`."""
        self._buckets.commit()

    def rollback(self) -> None:
        """Implement `ShardGradients`."""
        self._buckets.rollback()

    def release(self) -> None:
        """Implement `ShardGradients`."""
        self._gradients.release()

    def close(self) -> None:
        """Implement `ShardGradients`."""
        self._gradients.close()
        self._buckets.close()
