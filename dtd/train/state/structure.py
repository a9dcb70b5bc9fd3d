"""Finds out that a model has other parameters or buffers than when training began.

Gradients are collected, and states made, of the parameters and persistent buffers that the model
had then.  What is added, put in another's place or unfrozen later would not be trained, or be
missing in checkpoints; a worker that joins builds a model without it and cannot load the state.
Where the state is divided, a parameter also has to stay in the memory that it was given.  Extra
state (`get_extra_state()`) differs by rank if the forward pass changes it, and nothing can make it
equal again.  Nothing is repaired here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.state.weights import has_extra_state, persistent_buffers, plain_name


class Structure:
    """The modules, parameters, persistent buffers and extra states of one model.

    Args:
        model: as it is trained.
        stay: trained parameters have to stay where they are in memory.
    """

    def __init__(self, model: nn.Module, *, stay: bool) -> None:
        self._modules = [
            (
                plain_name(name),
                module,
                _copied(_own(module)),
                dict(module._modules),  # noqa: SLF001 - one list for each call
                _buffers(module),
            )
            for name, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)
        ]
        self._extra = [
            (plain_name(name), module, _extra_state(module))
            for name, module in model.named_modules()
            if has_extra_state(module)
        ]
        named = [(plain_name(name), one) for name, one in model.named_parameters()]
        self._frozen = [(name, one) for name, one in named if not one.requires_grad]
        self._places = [(name, one, _place(one)) for name, one in named if one.requires_grad]
        self._stay = stay

    def check(self, by: str) -> None:
        """Check that the model's structure is unchanged.

        Args:
            by: the method that was called.

        Raises:
            TaskError: it is not.
        """
        found = self._change()
        if found:
            raise TaskError(
                f"the model has changed since training began, in {by} or in a callback: {found}",
                remedy="return the model from build_model() with all parameters and buffers that it"
                " will have, in their final shapes (register_buffer(persistent=False) is for what"
                " can be computed again); change values only in hooks of the optimizer's step, and"
                " train other parameters in another job (--weights-from)",
            )
        for name, module, value in self._extra:
            if _extra_state(module) != value:
                raise TaskError(
                    f"the extra state of {f'the module {name}' if name else 'the model'}"
                    f" (get_extra_state()) changes in {by} or in a callback, and ranks"
                    " would differ",
                    remedy="keep it in a buffer, which dtd averages over all workers",
                )

    def _change(self) -> str:
        for name, module, parameters, children, buffers in self._modules:
            prefix = f"{name}." if name else ""
            for kind, before, now in (
                ("parameter", parameters, _own(module)),
                ("module", children, module._modules),  # noqa: SLF001 - one list for each call
            ):
                key = _first_difference(before, now)
                if key is not None:
                    return f"the {kind} {prefix}{key} {_how(key, before, now)}"
            if _buffers(module) != buffers:
                return f"the buffer {prefix}{_changed_buffer(buffers, _buffers(module))}"
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


def _buffers(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (one.shape, one.dtype) for name, one in persistent_buffers(module).items()}


def _changed_buffer(before: dict[str, Any], now: dict[str, Any]) -> str:
    key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
    if key not in now:
        return f"{key} is gone"
    if key not in before:
        return f"{key} was not there"
    (old, old_type), (new, new_type) = before[key], now[key]
    return f"{key} is {tuple(new)} {new_type} and was {tuple(old)} {old_type}"


def _extra_state(module: nn.Module) -> tuple[torch.dtype, torch.Size, bytes]:
    value: Tensor = module.get_extra_state()  # no other kind gets past the check of the model
    return value.dtype, value.shape, bytes(tensor_bytes(value.detach().cpu().contiguous()))


def _place(parameter: nn.Parameter) -> tuple[int, int]:
    storage = parameter.untyped_storage()  # it may have no memory now
    return storage._cdata, int(parameter.storage_offset())  # noqa: SLF001 - torch has no other name
