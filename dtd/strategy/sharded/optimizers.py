"""Optimizers of a sharded state: each must update a part of a parameter as it would all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from dtd.errors import TaskError
from dtd.strategy.nested import leaves

_ELEMENTWISE: Final = frozenset(
    {
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "ASGD",
        "Rprop",
    }
)
"""Optimizers of torch that treat each element by itself."""

_ONCE: Final = ("step", "eta", "mu", "mu_product")
"""Entries that torch's optimizers keep once for each parameter, whatever its shape."""


def check_shardable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Refuse what sharded training cannot do."""
    if device.type != "cpu":
        raise TaskError(
            f'strategy.name = "sharded" trains on CPUs only, and this worker has {device}',
            remedy='use name = "replicated", or start the workers with --device cpu',
        )
    kind = type(optimizer)
    if not (getattr(kind, "elementwise", False) or _is_elementwise(kind)):
        raise TaskError(
            'strategy.name = "sharded" gives each worker a part of each parameter, and'
            f" {kind.__name__} may need all of it",
            remedy=f"use {', '.join(sorted(_ELEMENTWISE))}, or set the class attribute elementwise"
            ' = True if it treats each element by itself; or use name = "replicated"',
        )
    check_hooks(optimizer)


def check_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Refuse a task's hooks on the optimizer's step, unless they are declared elementwise.

    It would be given one-dimensional parts of parameters, and a model whose parameters are those
    of the step before, or are not in memory.
    """
    for what, function in _additions(optimizer):
        if not getattr(function, "elementwise", False):
            raise TaskError(
                f"the task has given {type(optimizer).__name__} {what},"
                f' {_name(function)}, and strategy.name = "sharded" would show it a part of each'
                " parameter and an outdated model",
                remedy="set its attribute elementwise = True if it changes nothing, or each element"
                " of the optimizer's parameters, gradients and state by itself, and uses nothing"
                " else of the model; use train.clip_norm to clip gradients; or use"
                ' name = "replicated"',
            )


def _additions(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what runs in a step beside the method of the optimizer's class, and its kind."""
    for hooks in (
        optimizer._optimizer_step_pre_hooks,  # noqa: SLF001 - torch has no other way
        optimizer._optimizer_step_post_hooks,  # noqa: SLF001
        torch_optimizer._global_optimizer_pre_hooks,  # noqa: SLF001
        torch_optimizer._global_optimizer_post_hooks,  # noqa: SLF001
    ):
        for hook in hooks.values():
            if not str(getattr(hook, "__module__", "")).startswith("torch."):  # its profiler's
                yield "a hook of its step", hook
    step: Any = vars(optimizer).get("step")
    if getattr(step, "_wrapped_by_lr_sched", False):  # only notes that it is called
        step = step.__wrapped__
        if step is type(optimizer).step:
            return
    if step is not None:
        yield "another step()", step


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # of a partial
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def check_complete(
    optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Refuse an optimizer that leaves trained parameters out: stage 3 keeps them in its slices."""
    known = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for name, parameter in named:
        if id(parameter) not in known:
            raise TaskError(
                f"the task's optimizer has not been given the parameter {name}, which requires a"
                " gradient, and strategy.stage = 3 keeps what the optimizer has",
                remedy="give it to the optimizer (in a group with lr = 0, if it is to stay as it"
                " is), freeze it with requires_grad_(False), or use strategy.stage = 2",
            )


def _is_elementwise(kind: type) -> bool:
    """Whether it is one of torch's, maybe without its wrappers (`dtd.train.optim.optimizer`)."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.optim."):
            return base.__name__ in _ELEMENTWISE
        if not base.__module__.startswith("dtd."):
            return False
    return False


def is_sharded(value: Any) -> bool:
    """Whether an entry of the optimizer has its parameter's shape, so that it is divided."""
    return isinstance(value, Tensor) and value.dim() > 0


def flattened(key: str, value: Any, parameter: Tensor) -> Any:
    """Return an entry of a whole parameter as that of a one-dimensional one."""
    once = isinstance(value, Tensor) and value.dim() == 0 and (parameter.dim() or key in _ONCE)
    check_shape(key, value, parameter)
    return value if once or not isinstance(value, Tensor) else value.detach().reshape(-1)


def check_shape(key: str, value: Any, parameter: Tensor) -> None:
    """Check that an entry which is to be divided has its parameter's shape."""
    if not isinstance(value, Tensor) and any(is_sharded(one) for one in leaves(value)):
        raise TaskError(
            f"the optimizer keeps {key} as a {type(value).__name__} with tensors in it, which"
            " cannot be sharded",
            remedy="keep each tensor as an entry of its own, with the parameter's shape, or use"
            ' strategy.name = "replicated"',
        )
    if is_sharded(value) and value.shape != parameter.shape:
        raise TaskError(
            f"the optimizer keeps {key} of shape {tuple(value.shape)} for a parameter of shape"
            f" {tuple(parameter.shape)}, which cannot be sharded",
            remedy="keep what is not of the parameter's shape as a number or as a tensor without"
            " dimensions, use an optimizer that treats each element by itself, or"
            ' strategy.name = "replicated"',
        )
