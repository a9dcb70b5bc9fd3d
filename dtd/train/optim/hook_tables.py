"""The hooks on the gradients of parameters, in the tables in which torch keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import nn

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
