"""Numbers and names of messages; each is given out once.

The modules beside this one declare a message as a class under `@message(number)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, dataclass_transform

MessageT = TypeVar("MessageT")

_registry: dict[int, type[Any]] = {}
_numbers: dict[type[Any], int] = {}
_names: dict[type[Any], str] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(number: int) -> Callable[[type[MessageT]], type[MessageT]]:
    """Make a class a frozen dataclass and register it as message `number`."""

    def register(cls: type[MessageT]) -> type[MessageT]:
        made = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(cls)
        # The same for all: three more made for each message cost every start of dtdctl 10 ms.
        for name, function in _SHARED.items():
            setattr(made, name, function)
        if number in _registry:
            raise ValueError(f"message number {number:#x} is taken twice")
        _registry[number] = made
        _numbers[made] = number
        _names[made] = _upper_name(made.__name__)
        return made

    return register


def _equal(self: object, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: object) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    shown = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr]
    return f"{type(self).__name__}({', '.join(shown)})"


def _values(message: Any) -> tuple[Any, ...]:
    return tuple(getattr(message, one.name) for one in fields(message))


_SHARED: Final[Mapping[str, Callable[..., Any]]] = {
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
}


def _upper_name(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


def message_types() -> dict[int, type[Any]]:
    """Number to class, of every message."""
    return dict(_registry)


def message_type(number: object) -> type[Any] | None:
    """The class of a number as it came; None when no message has it."""
    return _registry.get(number) if type(number) is int else None


def message_number(message_type: type[Any]) -> int:
    """What stands under "t"."""
    return _numbers[message_type]


def message_name(message_type: type[Any]) -> str:
    """The name protocol.md uses: HEARTBEAT_ACK for HeartbeatAck."""
    return _names[message_type]
