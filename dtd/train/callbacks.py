"""The task's callbacks: who is told of what, and the promise that telling changes no state.

`on_step` and `on_evaluation` are called on every worker with the same figures; what they return
asks for the end of the job.  `on_step` follows a commit, once for each committed step, so a step
that is redone is told once.  A callback that changes parameters, buffers or the optimizer is the
task's mistake: workers that took the state over later would never have made that change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from dtd.errors import TaskError
from dtd.train.state.replica import Replica

NAMES: Final = ("on_start", "on_step", "on_evaluation", "on_checkpoint", "on_end")
_MAY_CHANGE_OWN: Final = ("on_step", "on_evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a callback is told.

    Attributes:
        rank: of this worker in the ring at hand.
        world_size: number of workers.
        step: committed steps.
        epoch: epoch of the last committed row.
        metrics: of the step (loss, lr, grad_norm), or of the last evaluation.
        directory: of the checkpoint that this worker has saved; empty otherwise.
    """

    rank: int
    world_size: int
    step: int
    epoch: int
    metrics: Mapping[str, float]
    directory: str = ""


class Callbacks:
    """The callbacks of one task.

    Args:
        task: those methods that it has are called.
        replica: the state that they must leave alone.

    Attributes:
        reason: why the task wants the job to end; empty if it does not.
        rank: put into every moment; set where a generation begins.
        world_size: likewise.
    """

    def __init__(self, task: Any, replica: Replica) -> None:
        self._methods = {n: m for n in NAMES if (m := getattr(task, n, None)) is not None}
        self._replica = replica
        self.reason = ""
        self.rank, self.world_size = 0, 1

    def tell(
        self, name: str, *, epoch: int, metrics: Mapping[str, float], directory: str = "", step: int
    ) -> None:
        """Call one of them, if the task has it.

        Raises:
            TaskError: it changed what it must not change; whatever it raises comes out as it is.
        """
        method = self._methods.get(name)
        if method is None:
            return
        moment = Moment(
            rank=self.rank,
            world_size=self.world_size,
            step=step,
            epoch=epoch,
            metrics=dict(metrics),
            directory=directory,
        )
        modules = list(self._replica.model.modules())
        modes = [module.training for module in modules]
        before = _marks(self._replica)
        if name in _MAY_CHANGE_OWN:
            returned = method(moment)
        else:
            with self._replica.own.unchanged(f"{name}()"):
                returned = method(moment)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        _compare(name, before, _marks(self._replica))
        if name in _MAY_CHANGE_OWN and returned:
            self.reason = returned if isinstance(returned, str) else f"{name}() of the task said so"


def _marks(replica: Replica) -> dict[str, Any]:
    """Values that differ once the state was changed in place or exchanged."""
    marks: dict[str, Any] = {}
    model = [*replica.model.named_parameters(), *replica.model.named_buffers()]
    for name, tensor in model:
        marks[name] = _mark(tensor)
    optimizer = replica.optimizer
    for number, values in enumerate(optimizer.state.values()):
        for key, value in values.items():
            mark = _mark(value) if isinstance(value, Tensor) else value
            marks[f"the optimizer's {key} of parameter {number}"] = mark
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                marks[f"the optimizer's {key} of group {number}"] = (
                    value.item() if isinstance(value, Tensor) else value
                )
    return marks


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version  # noqa: SLF001 - torch has no other name for it


def _compare(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = [what for what, mark in before.items() if after.get(what, None) != mark]
    changed += [what for what in after if what not in before]
    if changed:
        raise TaskError(
            f"{name}() of the task changed {changed[0]}, which is state of the job",
            remedy="a callback may look at the state; leave changes to the optimizer",
        )
