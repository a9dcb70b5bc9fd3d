"""The task's callbacks: which are called when, and the guarantee that they change no state.

`on_step` and `on_evaluation` are called on every worker with the same figures; their return value
can request the end of the job.  `on_step` follows a commit, so it is called once for each committed
step, even if the step was redone.  A callback must not change parameters, buffers or the optimizer:
workers that take over the state later would not have made that change.

Training waits for a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from dtd.errors import CodeError
from dtd.strategy.nested import leaves
from dtd.text.shown import cut
from dtd.train.record import CheckpointRecord, Moment
from dtd.train.state.replica import Replica

NAMES: Final = ("on_start", "on_step", "on_evaluation", "on_checkpoint", "on_end")
_MAY_CHANGE_OWN: Final = ("on_step", "on_evaluation")


class Callbacks:
    """The callbacks of one task.

    Attributes:
        reason: why the task requests the end of the job; empty if it does not.
    """

    def __init__(self, task: Any, replica: Replica, epoch_of: Callable[[int], int]) -> None:
        self._methods = {n: m for n in NAMES if (m := getattr(task, n, None)) is not None}
        self._labels = getattr(task, "labels", {})
        self._sets_rates = getattr(task, "sets_rates", False)
        self._replica, self._epoch_of = replica, epoch_of
        self.reason = ""
        self.rank, self.world_size = 0, 1

    def defines(self, name: str) -> bool:
        return name in self._methods

    def tell(self, name: str, metrics: Mapping[str, float]) -> None:
        """Call a callback about the live state, if the task defines it.

        Raises:
            TaskError: it changed the state.  Exceptions of the callback itself pass through.
        """
        self._tell(name, self._replica.step, metrics, "")

    def tell_saved(self, record: CheckpointRecord) -> None:
        """Call the callback for a checkpoint that this worker has published."""
        self._tell("on_checkpoint", record.step, record.metrics, record.directory)

    def _tell(self, name: str, step: int, metrics: Mapping[str, float], directory: str) -> None:
        method = self._methods.get(name)
        if method is None:
            return
        moment = Moment(
            rank=self.rank,
            world_size=self.world_size,
            step=step,
            epoch=self._epoch_of(max(0, step - 1)),
            metrics=dict(metrics),
            directory=directory,
        )
        self._call(name, method, moment)

    def _call(self, name: str, method: Callable[[Moment], Any], moment: Moment) -> None:
        modules = list(self._replica.model.modules())
        modes = [module.training for module in modules]
        before = self._marks()
        if name in _MAY_CHANGE_OWN:
            returned = method(moment)
        else:
            with self._replica.own.unchanged(f"{name}()"):
                returned = method(moment)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        label = self._labels.get(name, f"{name}() of the task")
        _compare(label, before, self._marks())
        if name in _MAY_CHANGE_OWN:
            self.reason = _reason(name, returned) or self.reason

    def _marks(self) -> dict[str, Any]:
        """Return values that differ once the callback has changed what it must not."""
        marks = _tensor_marks(self._replica)
        return marks if self._sets_rates else marks | _group_marks(self._replica)


def _reason(name: str, returned: Any) -> str:
    """Return why a callback asks for the end of the job; empty if it does not."""
    if returned is None or isinstance(returned, str):
        return cut(returned or "")
    if isinstance(returned, bool):
        return f"{name}() of the task said so" if returned else ""
    raise CodeError(
        f"{name}() of the task returned a {type(returned).__name__}",
        remedy="return True, or text as the reason, to end the job, and None or False to go on",
    )


def _tensor_marks(replica: Replica) -> dict[str, Any]:
    """Return values that differ once a tensor of the state has been changed or replaced."""
    marks: dict[str, Any] = {}
    model = [*replica.model.named_parameters(), *replica.model.named_buffers()]
    for name, tensor in model:
        marks[name] = _mark(tensor)
    for number, values in enumerate(replica.optimizer.state.values()):
        for key, value in values.items():
            marks[f"the optimizer's {key} of parameter {number}"] = _marks_in(value)
    return marks


def _group_marks(replica: Replica) -> dict[str, Any]:
    """Return the values of the optimizer's groups, such as learning rates."""
    return {
        f"the optimizer's {key} of group {number}": _marks_in(value)
        for number, group in enumerate(replica.optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }


def _marks_in(value: Any) -> list[Any]:
    return [_mark(one) if isinstance(one, Tensor) else one for one in leaves(value)]


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version  # noqa: SLF001 - torch has no other name for it


def _compare(label: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = [what for what, mark in before.items() if after.get(what, None) != mark]
    changed += [what for what in after if what not in before]
    if changed:
        raise CodeError(
            f"{label} changed {changed[0]}, which is state of the job",
            remedy="look at the state there, and leave changes to the optimizer",
        )
