"""The optimizer, or several that are seen as one, that a task builds instead of the job's."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.job import JobSpec, OptimizerTable, ScheduleTable
from dtd.text.shown import shown
from dtd.train.optim.optimizer import build_optimizer


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers seen as one: their groups in a row, their states together.

    Whatever looks at a job's optimizer (its schedule, the state, digests, callbacks) looks at all
    parts alike; only an update is made by one of them.

    Args:
        parts: the optimizers by name; no parameter is in two of them.
    """

    def __init__(self, parts: Mapping[str, torch.optim.Optimizer]) -> None:
        # Not that of torch, which would take groups and state to be this object's.
        self.parts = dict(parts)
        self.defaults: dict[str, Any] = {}
        self._gather()

    def _gather(self) -> None:
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        return {
            parameter: values
            for part in self.parts.values()
            for parameter, values in part.state.items()
        }

    def step(self, name: Any = None) -> None:  # type: ignore[override]
        self.parts[name].step()

    def state_dict(self) -> dict[str, Any]:
        """Return torch's form of the state, with parameters numbered through."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for part in self.parts.values():
            own = part.state_dict()
            state |= {first + index: values for index, values in own["state"].items()}
            groups += [
                {**group, "params": [first + index for index in group["params"]]}
                for group in own["param_groups"]
            ]
            first += sum(len(group["params"]) for group in own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups, first = list(state_dict["param_groups"]), 0
        for part in self.parts.values():
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            count = sum(len(group["params"]) for group in own)
            part.load_state_dict(
                {
                    "state": {
                        index - first: values
                        for index, values in state_dict["state"].items()
                        if first <= index < first + count
                    },
                    "param_groups": [
                        {**group, "params": [index - first for index in group["params"]]}
                        for group in own
                    ],
                }
            )
            first += count
        self._gather()


def optimizer_of(
    task: Any, table: OptimizerTable, named: Sequence[tuple[str, nn.Parameter]]
) -> torch.optim.Optimizer:
    """The task's own optimizer if it builds one, else the job's.

    `build_optimizers` gives several by name, which are seen as one.  A `build_optimizer` whose
    first parameter is called `named_parameters` is given pairs of name and parameter, any other
    one the parameters alone.

    Raises:
        TaskError: the task's is no torch optimizer, or one that takes sparse gradients only; or
            several do not share the parameters out.
    """
    several = getattr(task, "build_optimizers", None)
    if several is not None:
        if hasattr(task, "build_optimizer"):
            raise TaskError(
                "the task has build_optimizer() and build_optimizers()",
                remedy="keep one of the two",
            )
        return _join(several(list(named)), named)
    build = getattr(task, "build_optimizer", None)
    parameters = [parameter for _, parameter in named]
    if build is None:
        return build_optimizer(table, parameters)
    optimizer = build(list(named) if _takes_names(build) else parameters)
    checked = checked_optimizer("build_optimizer()", optimizer)
    _check_owned(checked, parameters)
    return checked


def _check_owned(optimizer: torch.optim.Optimizer, trained: Sequence[nn.Parameter]) -> None:
    """Refuse what nobody would average over the workers, clear after a step or save."""
    own = {id(parameter) for parameter in trained}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter.requires_grad and id(parameter) not in own:
                raise TaskError(
                    f"build_optimizer() of the task gave the optimizer a parameter of shape"
                    f" {tuple(parameter.shape)} that the model does not have (place {place} of"
                    f" group {number})",
                    remedy="make it a parameter of the model that build_model() returns",
                )


def _join(parts: Any, named: Sequence[tuple[str, nn.Parameter]]) -> JoinedOptimizer:
    """Several optimizers, of which each trained parameter has one."""
    if not (isinstance(parts, Mapping) and parts and all(_is_name(name) for name in parts)):
        raise TaskError(
            f"build_optimizers() of the task returned {type(parts).__name__}",
            remedy='return {name: optimizer}, with names such as "generator"',
        )
    owner: dict[nn.Parameter, str] = {}
    names = {parameter: name for name, parameter in named}
    for part, optimizer in parts.items():
        checked_optimizer(f"build_optimizers()[{part!r}]", optimizer)
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter in owner or parameter not in names:
                why = (
                    f"is in {owner[parameter]} as well" if parameter in owner else "is not trained"
                )
                raise TaskError(
                    f"build_optimizers() of the task gave {part} the parameter"
                    f" {names.get(parameter, 'of no name')}, which {why}",
                    remedy="give each parameter that requires a gradient to one optimizer",
                )
            owner[parameter] = part
    left = [name for name, parameter in named if parameter not in owner]
    if left:
        raise TaskError(
            f"build_optimizers() of the task gave no optimizer the parameter {left[0]}",
            remedy="give it to one, or freeze it with requires_grad_(False)",
        )
    return JoinedOptimizer(parts)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier()


_UNUSABLE: Final[Mapping[str, str]] = {
    "differentiable": "updates parameters within autograd",
    "capturable": "torch does not support on a CPU",
}
"""Options of torch's optimizers that cannot be used here, and why."""


def checked_optimizer(method: str, optimizer: Any) -> torch.optim.Optimizer:
    """Return the result of a task's method, if it is an optimizer that can be used."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TaskError(
            f"{method} of the task returned a {type(optimizer).__name__}",
            remedy="return a torch.optim.Optimizer",
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TaskError(
            f"{method} of the task returned a SparseAdam, which takes sparse gradients only",
            remedy="use Adam: gradients are made dense before they are summed over the workers",
        )
    kind = type(optimizer).__name__
    if _needs_closure(optimizer):
        raise TaskError(
            f"{method} of the task returned {kind}, whose step() needs a closure that computes the"
            " loss again",
            remedy="use an optimizer that updates from gradients alone, such as AdamW: those of a"
            " step are computed and summed over the workers once",
        )
    for group in optimizer.param_groups:
        for option in _UNUSABLE:
            on_cpu = any(one.device.type == "cpu" for one in group["params"])
            if group.get(option) and (on_cpu or option != "capturable"):
                raise TaskError(
                    f"{method} of the task returned {kind} with {option} = True, which"
                    f" {_UNUSABLE[option]}",
                    remedy=f"leave {option} out",
                )
    check_kept(optimizer)
    return optimizer


def check_kept(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose state is not that of its parameters alone.

    A job's state, and what a step takes back, has such entries only.

    Raises:
        TaskError: with the first other entry.
    """
    for key, values in optimizer.state.items():
        if not (isinstance(key, Tensor) and isinstance(values, Mapping)):
            what = type(values).__name__ if isinstance(key, Tensor) else repr(key)
            raise TaskError(
                f"the optimizer keeps {what} beside a dict of values for each parameter",
                remedy="keep it in the parameters' state or in their groups",
            )


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    # Of the class: an object's own one may be a wrapper, such as that of torch's schedules.
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in parameters
    )


def ignored_settings(task: Any, spec: JobSpec) -> str:
    """Which settings of the job file have no effect beside the task's own methods; "" for none."""
    found = []
    for method, table, values in (
        ("build_optimizer", "optimizer", spec.optimizer),
        ("build_optimizers", "optimizer", spec.optimizer),
        ("build_schedule", "schedule", spec.schedule),
    ):
        changed = _changed(values) if getattr(task, method, None) is not None else []
        if changed:
            found.append(f"[{table}] {', '.join(changed)}: the task's {method}() counts instead")
    return "; ".join(found)


def _changed(values: OptimizerTable | ScheduleTable) -> list[str]:
    """Settings of a table that are not the defaults."""
    return [
        f"{one.name} = {shown(getattr(values, one.name))}"
        for one in dataclasses.fields(values)
        if getattr(values, one.name) != one.default
    ]


def _takes_names(build: Callable[..., Any]) -> bool:
    try:
        names = list(inspect.signature(build).parameters)
    except (TypeError, ValueError):
        return False  # a callable that does not tell
    return names[:1] == ["named_parameters"]
