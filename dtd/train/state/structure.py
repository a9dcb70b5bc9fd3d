"""Finds out that a model has other parameters than when training began.

Gradients are collected, and states made, of the parameters that the model had then.  What is added,
put in another's place or unfrozen later would not be trained, or be missing in checkpoints; where
the state is divided, a parameter also has to stay in the memory that it was given.  Nothing is
repaired here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtd.errors import TaskError
from dtd.train.state.weights import plain_name


class Structure:
    """The modules and parameters of one model.

    Args:
        model: as it is trained.
        stay: trained parameters have to stay where they are in memory.
    """

    def __init__(self, model: nn.Module, *, stay: bool) -> None:
        self._modules = [
            (plain_name(name), module, _copied(_own(module)), dict(module._modules))  # noqa: SLF001
            for name, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)
        ]
        named = [(plain_name(name), one) for name, one in model.named_parameters()]
        self._frozen = [(name, one) for name, one in named if not one.requires_grad]
        self._places = [(name, one, _place(one)) for name, one in named if one.requires_grad]
        self._stay = stay

    def check(self, by: str) -> None:
        """See that all is as it was.

        Args:
            by: what has just been called.

        Raises:
            TaskError: it is not.
        """
        found = self._change()
        if found:
            raise TaskError(
                f"the model has changed since training began, in {by} or in a callback: {found}",
                remedy="return the model from build_model() with all parameters that it will have,"
                " change values only in hooks of the optimizer's step, and train other parameters"
                " in another job (--weights-from)",
            )

    def _change(self) -> str:
        for name, module, parameters, children in self._modules:
            for kind, before, now in (
                ("parameter", parameters, _own(module)),
                ("module", children, module._modules),  # noqa: SLF001 - one list for each call
            ):
                key = _first_difference(before, now)
                if key is not None:
                    return f"the {kind} {name + '.' if name else ''}{key} {_how(key, before, now)}"
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                return f"the parameter {name} requires a gradient and did not"
        for name, parameter, place in self._places if self._stay else ():
            if _place(parameter) != place:
                return f"the parameter {name} has other memory (.data was assigned, or .to() used)"
        return ""


def _own(module: nn.Module) -> dict[str, Any]:
    """Return a module's parameters as they are, whether they are in memory or not."""
    own: dict[str, Any] = module._parameters  # noqa: SLF001 - named_parameters() gathers them
    return own


def _copied(own: dict[str, Any]) -> dict[str, Any]:
    return dict(dict.items(own))


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    for key, one in before.items():
        if dict.get(now, key) is not one:
            return key
    return None if len(now) == len(before) else next(key for key in now if key not in before)


def _how(key: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    if dict.get(now, key) is None:
        return "is gone"
    return "was not there" if before.get(key) is None else "is another one"


def _place(parameter: nn.Parameter) -> tuple[int, int]:
    storage = parameter.untyped_storage()  # it may have no memory now
    return storage._cdata, int(parameter.storage_offset())  # noqa: SLF001 - torch has no other name
