"""The updates of one step: one, or several after another where a task has several optimizers.

Each has the parameters of its optimizer, their gradients' buckets, and what must be summed besides.
In a step with several, every update but the last is applied as soon as its sums are there, because
the next one's forward needs the changed parameters; it is tentative until the step is committed.
`Undo` remembers what it changed: if the step is discarded, memory holds the last committed state
again, and the step is redone from that.  The last one is applied at commit, like a single one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dtd.core.buckets import BucketPlan, plan_buckets
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.train.gradients import Gradients, parameter_shapes
from dtd.train.joined_optimizer import JoinedOptimizer
from dtd.train.replica import Replica
from dtd.train.staging import HandOver
from dtd.train.tail import Tail
from dtd.transport.api import BucketMemory, Collective

_MIB = 1 << 20


@dataclass(slots=True, kw_only=True)
class Update:
    """One optimizer's part of a step.

    Attributes:
        name: of the optimizer; empty for the only one.
        parameters: that it updates.
        places: where these are among all trained parameters.
        plan: which gradient lies where.
        gradients: buckets and hooks.
        tail: sums of its loss, where another update follows.
        lends: whether neighbours on this host may read the buckets.
        first_bucket: index of its first bucket in the step at hand.
    """

    name: str
    parameters: list[nn.Parameter]
    places: list[int]
    plan: BucketPlan
    gradients: Gradients
    tail: Tail
    lends: bool
    first_bucket: int = 0

    @property
    def memories(self) -> list[BucketMemory]:
        """The gradients' buckets.

        Those of several updates lie in several files, and a ring reads one: they are sent.
        """
        memories = self.gradients.memories
        return memories if self.lends else [dataclasses.replace(m, home=None) for m in memories]

    @property
    def tail_bucket(self) -> int:
        """Index of the bucket that follows the gradients'."""
        return self.first_bucket + len(self.gradients.memories)

    def start(self, ring: Collective) -> HandOver:
        """What hands a bucket of the gradients over."""
        return lambda bucket: ring.start(self.first_bucket + bucket)

    def wait(self, ring: Collective) -> None:
        """Return when gradients and tail hold the sums over all ranks."""
        self.gradients.wait(lambda bucket: ring.wait(self.first_bucket + bucket))
        ring.wait(self.tail_bucket)


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


class Undo:
    """What one optimizer is about to change.

    Args:
        optimizer: its parameters, their state and its groups' values are copied.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            {key: _copy(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        self._values = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._state = {
            parameter: {key: _copy(value) for key, value in values.items()}
            for parameter, values in optimizer.state.items()
        }

    def restore(self) -> None:
        """Nothing was changed; to be called once."""
        with torch.no_grad():
            for parameter, value in self._values:
                parameter.copy_(value)
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(values)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def build_updates(replica: Replica, spec: JobSpec, device: torch.device) -> list[Update]:
    """One update for each of the replica's optimizers, in their order."""
    optimizer, trained = replica.optimizer, replica.trained
    if not isinstance(optimizer, JoinedOptimizer):
        return [_build("", range(len(trained)), replica, spec, device, lends=True)]
    places = {parameter: place for place, (_, parameter) in enumerate(trained)}
    return [
        _build(
            name,
            sorted(places[p] for group in part.param_groups for p in group["params"]),
            replica,
            spec,
            device,
            lends=False,
        )
        for name, part in optimizer.parts.items()
    ]


def _build(
    name: str,
    places: Iterable[int],
    replica: Replica,
    spec: JobSpec,
    device: torch.device,
    *,
    lends: bool,
) -> Update:
    places = list(places)
    named = [replica.trained[place] for place in places]
    plan = plan_buckets(
        parameter_shapes(named),
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
        first_bucket_bytes=int(spec.sync.first_bucket_mib * _MIB),
    )
    parameters = [parameter for _, parameter in named]
    return Update(
        name=name,
        parameters=parameters,
        places=places,
        plan=plan,
        gradients=Gradients(parameters, plan, device, wire_dtype=spec.sync.wire_dtype),
        tail=Tail(parameters=len(parameters), buffer_elements=0, buffer_words=0),
        lends=lends,
    )


def updates_of_step(task: Any, updates: Sequence[Update], step: int) -> list[Update]:
    """Those that a step makes, in order, their buckets numbered.

    Args:
        task: with `updates(step)`, or all are made in every step.
        updates: all there are.
        step: committed steps before it.

    Raises:
        TaskError: the task names none, one twice, or one that there is not.
    """
    choose: Callable[[int], Sequence[str]] | None = getattr(task, "updates", None)
    by_name = {update.name: update for update in updates}
    names = list(choose(step)) if choose is not None and len(updates) > 1 else list(by_name)
    if not names or len(set(names)) != len(names) or not set(names) <= by_name.keys():
        raise TaskError(
            f"updates({step}) of the task returned {names!r}",
            remedy=f"return some of {', '.join(by_name)}, each once at most, in order",
        )
    chosen, first_bucket = [by_name[name] for name in names], 0
    for update in chosen:
        update.first_bucket = first_bucket
        first_bucket = update.tail_bucket + 1
    return chosen


def attend_to(update: Update | None, updates: Sequence[Update]) -> None:
    """Let backward find gradients for one update's parameters only; None for all."""
    if len(updates) > 1:
        for one in updates:
            for parameter in one.parameters:
                parameter.requires_grad_(update is None or one is update)
