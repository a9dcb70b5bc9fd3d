"""Hooks on modules, and gates in front of parameters, for a model whose parameters are gathered.

A hook sees that a module's forward begins or ends; a gate, that one of its parameters is read as an
attribute, as by a module that uses those of its submodules directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


class Gates:
    """The hooks and gates of one model, removed together."""

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []
        self._gated: list[nn.Module] = []

    def hold(self, hook: RemovableHandle) -> None:
        """Remove this hook as well when they are closed."""
        self._hooks.append(hook)

    def gate(self, module: nn.Module, before_use: Callable[[Any], None]) -> None:
        """Have this called with a parameter of the module's own before anybody gets it."""
        own = module._parameters  # noqa: SLF001 - as DeepSpeed's ZeRO 3: torch has no other way
        module._parameters = Gated(own, before_use)  # noqa: SLF001
        self._gated.append(module)

    def close(self) -> None:
        """Give the model back as it was."""
        for hook in self._hooks:
            hook.remove()
        for module in self._gated:
            module._parameters = dict(module._parameters.items())  # noqa: SLF001
        self._hooks, self._gated = [], []


class Gated(dict[str, Any]):
    """A module's parameters by name; a read waits until the parameter is current.

    Args:
        given: the parameters.
        before_use: called with a parameter before it is handed out.
    """

    def __init__(self, given: dict[str, Any], before_use: Callable[[Any], None]) -> None:
        super().__init__(given)
        self._before_use = before_use

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        self._before_use(parameter)
        return parameter

    def get(self, name: str, default: Any = None) -> Any:
        """Implement `dict`."""
        return super().get(name, default) if name not in self else self[name]

    def values(self) -> Any:
        """Implement `dict`."""
        self._before_all()
        return super().values()

    def items(self) -> Any:
        """Implement `dict`."""
        self._before_all()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of the model have ordinary parameters."""
        return dict, (dict(self.items()),)

    def _before_all(self) -> None:
        for parameter in super().values():
            self._before_use(parameter)
