"""The updates of one step: one, or several after another where a task has several optimizers.

Each has the parameters of its optimizer, their gradients' buckets, and what must be summed besides.
In a step with several, every update but the last is applied as soon as its sums are there, because
the next one's forward needs the changed parameters; it is tentative until the step is committed.
`Undo` remembers what it changed: if the step is discarded, memory holds the last committed state
again, and the step is redone from that.  The last one is applied at commit, like a single one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dtd.core.ring.buckets import BucketPlan, plan_buckets
from dtd.strategy.api import Part
from dtd.strategy.codec.api import Codec
from dtd.strategy.gradients import Gradients, parameter_shapes
from dtd.strategy.scalars import StepScalars
from dtd.transport.api import BucketMemory


@dataclass(slots=True, kw_only=True)
class Update:
    """One optimizer's part of a step.

    Attributes:
        name: of the optimizer; empty for the only one.
        parameters: that it updates.
        places: where these are among all trained parameters.
        plan: which gradient lies where.
        gradients: buckets and hooks.
        codec: the form in which they travel; None for their own.
        scalars: sums of its loss, where another update follows.
        lends: whether neighbours on this host may read the buckets.
        first_bucket: index of its first bucket in the step at hand.
    """

    name: str
    parameters: list[nn.Parameter]
    places: list[int]
    plan: BucketPlan
    gradients: Gradients
    codec: Codec | None
    scalars: StepScalars
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
    def local(self) -> Sequence[Tensor]:
        """What this rank alone keeps for its gradients' way from step to step."""
        return self.codec.local if self.codec is not None else ()

    @property
    def scalars_bucket(self) -> int:
        """Index of the bucket that follows the gradients'."""
        return self.first_bucket + len(self.gradients.memories)


def build_update(
    part: Part,
    device: torch.device,
    codec: Codec | None,
    *,
    bucket_bytes: int,
    first_bucket_bytes: int,
    lends: bool,
) -> Update:
    """The update of an optimizer's parameters, with buckets of about these sizes."""
    plan = plan_buckets(
        parameter_shapes(part.named),
        bucket_bytes=bucket_bytes,
        first_bucket_bytes=first_bucket_bytes,
    )
    parameters = [parameter for _, parameter in part.named]
    return Update(
        name=part.name,
        parameters=parameters,
        places=list(part.places),
        plan=plan,
        gradients=Gradients(parameters, plan, device, codec=codec),
        codec=codec,
        scalars=StepScalars(parameters=len(parameters), buffer_elements=0, buffer_words=0),
        lends=lends,
    )


def number_buckets(updates: Sequence[Update]) -> None:
    """Number the buckets of a step's updates, one after the other."""
    first_bucket = 0
    for update in updates:
        update.first_bucket = first_bucket
        first_bucket = update.scalars_bucket + 1


def attend_to(update: Update | None, updates: Sequence[Update]) -> None:
    """Let backward find gradients for one update's parameters only; None for all."""
    if len(updates) > 1:
        for one in updates:
            for parameter in one.parameters:
                parameter.requires_grad_(update is None or one is update)


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
