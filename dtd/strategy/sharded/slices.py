"""Slices of parameters, and an optimizer's entries for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.strategy.nested import leaves

_ONCE: Final = ("step", "eta", "mu", "mu_product")
"""Entries that torch's optimizers keep once for each parameter, whatever its shape."""


@dataclass(slots=True)
class Slice:
    """Elements [start, stop) of a flattened parameter; `state` only while no optimizer has it."""

    start: int
    stop: int
    values: nn.Parameter
    state: dict[str, Any] = field(default_factory=dict)


def overlaid(entries: Sequence[tuple[Slice, Tensor]], start: int, stop: int) -> Tensor:
    """Return elements [start, stop) of what slices have; zero where they do not have them."""
    target = torch.zeros(stop - start, dtype=entries[0][1].dtype)
    for other, entry in entries:
        a, b = max(start, other.start), min(stop, other.stop)
        if a < b:
            target[a - start : b - start].copy_(entry.detach()[a - other.start : b - other.start])
    return target


def is_sharded(value: Any) -> bool:
    """Whether an entry of the optimizer has its parameter's shape, so that it is divided."""
    return isinstance(value, Tensor) and value.dim() > 0


def flattened(key: str, value: Any, parameter: Tensor) -> Any:
    """Return an entry of a whole parameter as that of a one-dimensional one."""
    once = isinstance(value, Tensor) and value.dim() == 0 and (parameter.dim() or key in _ONCE)
    check_shape(key, value, parameter)
    return value if once or not isinstance(value, Tensor) else value.detach().reshape(-1)


def check_shape(key: str, value: Any, parameter: Tensor) -> None:
    """Check that an entry which is to be divided has its parameter's shape.

    Raises:
        TaskError: it has another one, or is one of several in a list or a dictionary.
    """
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
