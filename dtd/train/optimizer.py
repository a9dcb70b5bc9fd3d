"""The optimizer that a job requests, or the task's own, and the schedule of its learning rates.

Several optimizers are presented as one.  On a CPU the job's is torch's fused kernel: one pass over
parameter, gradient and state, for Adam in a sixth of the time, for SGD in two thirds.  It goes
through memory as it lies and does not look whether all lie alike, and gradients lie as in a
contiguous parameter; so other models (channels_last, bfloat16) get `foreach`, a handful of kernels
over all parameters, as GPUs do.

The job's schedule is a pure function of the number of updates, so it needs no state.  Warm-up is
linear over the first `warmup_steps` updates.  "step" drops by `gamma` every `step_every` updates,
warm-up included; "cosine" goes from the end of warm-up to the end of the job down to `min_lr`.
Skipped steps are no updates.  A task's own schedule (`build_schedule`) is stepped once an update,
and what it keeps is a part of the state.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dtd.errors import CheckpointError, TaskError
from dtd.job import JobSpec, OptimizerTable, ScheduleTable
from dtd.shown import shown
from dtd.strategy.nested import decoded, encoded


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
        """State of each parameter, of all parts."""
        return {
            parameter: values
            for part in self.parts.values()
            for parameter, values in part.state.items()
        }

    def step(self, name: Any = None) -> None:  # type: ignore[override]
        """Let one part update its parameters."""
        self.parts[name].step()

    def state_dict(self) -> dict[str, Any]:
        """Return torch's form of the state, with parameters numbered through."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for part in self.parts.values():
            own = part.state_dict()
            state |= {
                first + index if isinstance(index, int) else index: values
                for index, values in own["state"].items()
            }
            groups += [
                {**group, "params": [first + index for index in group["params"]]}
                for group in own["param_groups"]
            ]
            first += sum(len(group["params"]) for group in own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its own."""
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


def build_optimizer(
    table: OptimizerTable, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the job's [optimizer] table."""
    params = list(parameters)
    fused = all(_may_be_fused(parameter) for parameter in params)
    if table.name == "sgd":
        return _SGD(
            params,
            lr=table.lr,
            momentum=table.momentum,
            nesterov=table.nesterov,
            weight_decay=table.weight_decay,
            fused=fused,
            foreach=not fused,
        )
    kind = _Adam if table.name == "adam" else _AdamW
    return kind(
        params,
        lr=table.lr,
        betas=(table.beta1, table.beta2),
        eps=table.eps,
        weight_decay=table.weight_decay,
        fused=fused,
        foreach=not fused,
    )


def _plain(method: Callable[..., Any]) -> Any:
    """A method of torch's optimizers without the wrappers by which its compiler steps around it.

    They import the compiler and sympy, 1.4 s of processor time in every worker's first step, for
    functions that only dtd calls, and never from compiled code.
    """
    return torch.no_grad()(inspect.unwrap(method))


class _Uncompiled(torch.optim.Optimizer):
    """Uncompiled methods of all optimizers of torch."""

    add_param_group = _plain(torch.optim.Optimizer.add_param_group)
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)
    state_dict = _plain(torch.optim.Optimizer.state_dict)
    load_state_dict = _plain(torch.optim.Optimizer.load_state_dict)


class _Adam(_Uncompiled, torch.optim.Adam):
    step = _plain(torch.optim.Adam.step)


class _AdamW(_Uncompiled, torch.optim.AdamW):
    step = _plain(torch.optim.AdamW.step)


class _SGD(_Uncompiled, torch.optim.SGD):
    """SGD whose parameters need not all have their first gradient in the same step.

    torch's fused kernel wants momentum of all parameters that it updates, or of none.  Momentum
    begins with the gradient itself, which is what comes of zeros, too.
    """

    def step(self, closure: Any = None) -> Any:
        """Implement `Optimizer`; first zeroes momentum where the fused kernel needs it."""
        for group in self.param_groups:
            if not (group["fused"] and group["momentum"]):
                continue
            for parameter in group["params"]:
                if parameter.grad is not None and "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return self._update(closure)

    _update = _plain(torch.optim.SGD.step)


def _may_be_fused(parameter: nn.Parameter) -> bool:
    wide = parameter.dtype in (torch.float32, torch.float64)
    return wide and parameter.device.type == "cpu" and parameter.is_contiguous()


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
    """Return the result of a task's method, if it is an optimizer that can be used.

    Raises:
        TaskError: it is not.
    """
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
    return optimizer


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


_HOOK_TABLES: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a parameter in which torch keeps hooks on its gradient by key."""

HookKey = tuple[int, str, int]
"""Place of the parameter, torch's name of the table, and the hook's key there."""


def hooks_on(parameters: Sequence[nn.Parameter]) -> set[HookKey]:
    """Return the keys of all hooks on gradients."""
    return {
        (place, name, key)
        for place, parameter in enumerate(parameters)
        for name in _HOOK_TABLES
        for key in getattr(parameter, name) or ()
    }


def replace_hooks(parameters: Sequence[nn.Parameter], old: set[HookKey], new: set[HookKey]) -> None:
    """Remove old hooks, and call new ones where those were, before the hooks that follow."""
    for place, name in {(place, name) for place, name, _ in old | new}:
        table = getattr(parameters[place], name)
        hooks = dict(table)
        keys = [key for key in hooks if (place, name, key) not in new]
        places = [at for at, key in enumerate(keys) if (place, name, key) in old]
        at = places[0] if places else 0
        added = [key for key in hooks if (place, name, key) in new]
        table.clear()
        for key in [*keys[:at], *added, *keys[at:]]:
            if (place, name, key) not in old:
                table[key] = hooks[key]


def hook_tables(parameter: Any) -> list[dict[int, Any]]:
    """Return torch's tables of the hooks on a gradient, before and after it is accumulated."""
    tables = (getattr(parameter, name) for name in _HOOK_TABLES)
    return [table for table in tables if table]


def learning_rate(
    schedule: ScheduleTable, *, base_lr: float, update: int, updates_total: int
) -> float:
    """Learning rate of update number `update` (0-based).

    Args:
        schedule: the job's [schedule].
        base_lr: the rate that warm-up leads to.
        update: updates made so far.
        updates_total: updates of the whole job, where "cosine" ends.
    """
    if update < schedule.warmup_steps:
        return base_lr * (update + 1) / schedule.warmup_steps
    low = min(schedule.min_lr, base_lr)
    if schedule.name == "step":
        return max(low, base_lr * schedule.gamma ** (update // schedule.step_every))
    if schedule.name == "cosine":
        span = max(1, updates_total - schedule.warmup_steps)
        progress = min(1.0, (update - schedule.warmup_steps) / span)
        return low + (base_lr - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return base_lr


SCHEDULE = "schedule."
"""Begins the names of its tensors in a state."""


class TaskSchedule:
    """One schedule of one optimizer.

    Args:
        scheduler: built for that optimizer, not stepped yet.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler = scheduler

    def step(self) -> None:
        """Another update is made: set what counts for the next one.

        Raises:
            TaskError: the schedule is over, or failed otherwise.
        """
        try:
            self._scheduler.step()
        except Exception as error:
            raise TaskError(
                f"the schedule of the task's build_schedule() raised {type(error).__name__}:"
                f" {error}",
                remedy="let it last for total_steps updates; an extended job keeps the schedule"
                " that it was begun with",
            ) from error

    def state(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return its state, fit for JSON; functions are no state.

        Args:
            tensors: receives its tensors.

        Raises:
            TaskError: it keeps values of another type.
        """
        return {
            name: encoded(
                _without_functions(value),
                SCHEDULE + name,
                tensors,
                keeps=f"the schedule of the task keeps {name}",
            )
            for name, value in sorted(self._scheduler.state_dict().items())
            if not callable(value)
        }

    def load(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Continue where another one was.

        Args:
            state: JSON of that one.
            tensors: its tensors, which this one may keep.

        Raises:
            CheckpointError: that was another kind of schedule.
        """
        own = self.state({})
        if not isinstance(state, dict) or state.keys() != own.keys():
            differing = sorted(own.keys() ^ state.keys()) if isinstance(state, dict) else ["it"]
            raise CheckpointError(
                f"the state is of another schedule than {type(self._scheduler).__name__}:"
                f" {differing[0]} is in only one of the two",
                remedy="use the task that made it, or start from its weights only",
            )
        try:
            self._scheduler.load_state_dict({k: decoded(v, tensors) for k, v in state.items()})
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise CheckpointError(f"the state of the task's schedule is broken: {error}") from error


def schedule_of(
    task: Any, optimizer: torch.optim.Optimizer, total_steps: int
) -> TaskSchedule | None:
    """The task's own schedule; None if it builds none.

    Args:
        task: may have `build_schedule(optimizer, total_steps)`.
        optimizer: whose groups it sets.
        total_steps: steps of the whole job.

    Raises:
        TaskError: its result is no schedule of this optimizer that can be stepped.
    """
    build = getattr(task, "build_schedule", None)
    if build is None:
        return None
    scheduler: Any = build(optimizer, total_steps)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TaskError(
            "build_schedule() of the task returned a ReduceLROnPlateau, which needs a metric, and"
            " schedules are stepped once an update",
            remedy="use a schedule of steps, such as CosineAnnealingLR or OneCycleLR",
        )
    if not isinstance(scheduler, LRScheduler):
        raise TaskError(
            f"build_schedule() of the task returned a {type(scheduler).__name__}",
            remedy="return one of torch.optim.lr_scheduler",
        )
    if scheduler.optimizer is not optimizer:
        raise TaskError(
            "build_schedule() of the task returned a schedule of another optimizer",
            remedy="build it for the optimizer that is passed in",
        )
    schedule = TaskSchedule(scheduler)
    schedule.state({})
    return schedule


def _without_functions(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)({k: _without_functions(v) for k, v in value.items() if not callable(v)})
    if type(value) in (list, tuple):
        return type(value)(None if callable(item) else _without_functions(item) for item in value)
    return value
