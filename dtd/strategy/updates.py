"""The updates of one step: one, or several in sequence if a task has several optimizers.

An update consists of its optimizer's parameters, the buckets of their gradients, and its scalars.
In a step with several updates, each one except the last is applied as soon as its sums have
arrived, because the next forward needs the changed parameters; it is tentative until the step is
committed.  `Undo` saves what such an update changes: if the step is discarded, the last committed
state is restored, and the step is redone from there.  The last update is applied at commit, like a
single one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.buckets import BucketPlan, plan_buckets
from dtd.strategy.api import Part
from dtd.strategy.codec.api import Codec
from dtd.strategy.gradients import Gradients, parameter_shapes
from dtd.strategy.nested import copied
from dtd.strategy.scalars import StepScalars


@dataclass(slots=True, kw_only=True)
class Update:
    """One optimizer's part of a step.

    Attributes:
        name: name of the optimizer; empty if there is only one.
        parameters: the parameters that it updates.
        places: their indices among all trained parameters.
        plan: layout of their gradients in buckets.
        gradients: buckets and hooks.
        scalars: sums of its loss, used if another update follows.
        lends: whether neighbours on this host may read the buckets.
        first_bucket: index of its first exchange in the current step.
        exchanges: number of its exchanges before its scalars.
    """

    name: str
    parameters: list[nn.Parameter]
    places: list[int]
    plan: BucketPlan
    gradients: Gradients
    scalars: StepScalars
    lends: bool
    first_bucket: int = 0
    exchanges: int = 0

    def memories(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of its gradients in a step.

        The buckets of several updates are in several files, but a ring can read only one: they are
        sent over the sockets.
        """
        memories = self.gradients.exchanges(step)
        self.exchanges = len(memories)
        return memories if self.lends else [dataclasses.replace(m, home=None) for m in memories]

    @property
    def scalars_bucket(self) -> int:
        """Index of the scalars' bucket, which follows those of the gradients."""
        return self.first_bucket + self.exchanges


def build_update(
    part: Part,
    device: torch.device,
    codec: Codec | None,
    *,
    bucket_bytes: int,
    first_bucket_bytes: int,
    lends: bool,
) -> Update:
    """Build the update of an optimizer's parameters, with buckets of about these sizes."""
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
        scalars=StepScalars(parameters=len(parameters), buffer_elements=0, buffer_words=0),
        lends=lends,
    )


def number_buckets(updates: Sequence[Update]) -> None:
    """Number the buckets of a step's updates consecutively."""
    first_bucket = 0
    for update in updates:
        update.first_bucket = first_bucket
        first_bucket = update.scalars_bucket + 1


def attend_to(update: Update | None, updates: Sequence[Update]) -> None:
    """Restrict backward to the parameters of one update; None removes the restriction."""
    if len(updates) > 1:
        for one in updates:
            for parameter in one.parameters:
                parameter.requires_grad_(update is None or one is update)


class OptimizerSnapshot:
    """A copy of an optimizer's own state: that of its parameters, and the values of its groups.

    Args:
        optimizer: its state is copied, the parameters are not.
    """

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
        """Restore the copy; to be called once."""
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(values)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


class Undo:
    """A copy of everything that one optimizer is about to change.

    Args:
        optimizer: its parameters and its own state are copied.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._values = [
            (parameter, parameter.detach().clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._optimizer = OptimizerSnapshot(optimizer)

    def restore(self) -> None:
        """Restore the copy; to be called once."""
        with torch.no_grad():
            for parameter, value in self._values:
                parameter.copy_(value)
        self._optimizer.restore()
