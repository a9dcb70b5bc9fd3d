"""Which optimizers can update a part of a parameter as they would update all of it."""

from __future__ import annotations

from typing import Final

import torch

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


def _is_elementwise(kind: type) -> bool:
    """Whether it is one of torch's, perhaps without torch's wrappers (`dtd.train.optimizer`)."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch.optim."):
            return base.__name__ in _ELEMENTWISE
        if not base.__module__.startswith("dtd."):
            return False
    return False
