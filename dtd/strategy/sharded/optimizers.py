"""Which optimizers can update a part of a parameter as they would update all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from dtd.errors import TaskError

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


def check_shardable(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Refuse what sharded training cannot do.

    Args:
        optimizer: the job's.
        device: the model's.

    Raises:
        TaskError: the optimizer looks at more than one element at a time, or may do so; or the
            device is not a CPU.
    """
    if device.type != "cpu":
        raise TaskError(
            f'strategy.name = "sharded" trains on CPUs only, and this worker has {device}',
            remedy='use name = "replicated", or start the workers with --device cpu',
        )
    kind = type(optimizer)
    if getattr(kind, "elementwise", False) or _is_elementwise(kind):
        return
    raise TaskError(
        f'strategy.name = "sharded" gives each worker a part of each parameter, and {kind.__name__}'
        " may need all of it",
        remedy=f"use {', '.join(sorted(_ELEMENTWISE))}, or set the class attribute elementwise ="
        ' True if it treats each element by itself; or use name = "replicated"',
    )


def check_complete(
    optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, nn.Parameter]]
) -> None:
    """Refuse an optimizer that leaves trained parameters out: stage 3 keeps them in its slices.

    Args:
        optimizer: the job's.
        named: the trained parameters.

    Raises:
        TaskError: with the first one that it leaves out.
    """
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
    """Whether it is one of torch's, perhaps without torch's wrappers (`dtd.train.optimizer`)."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.optim."):
            return base.__name__ in _ELEMENTWISE
        if not base.__module__.startswith("dtd."):
            return False
    return False
