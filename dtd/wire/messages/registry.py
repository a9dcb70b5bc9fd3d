"""Declares message classes, finds them, encodes them as a frame's msgpack map, and decodes them.

The other modules declare each message as a class under `@message`; the catalogue's row of that
name holds everything else about it.  Unknown fields are ignored; unknown types are rejected
(protocol.md, "Frames").
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, dataclass_transform

import msgpack

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire import frames
from dtd.wire.fields import parse_record, record_values
from dtd.wire.frames import Header
from dtd.wire.messages.catalogue import (
    BY_NAME,
    BY_NUMBER,
    KINDS,
    Kind,
    Role,
    acceptor_numbers,
    opener_numbers,
)
from dtd.wire.tags import CHECKSUM, Tag

_PACKAGE: Final = "dtd.wire.messages"
TYPE_KEY: Final = "t"


class Message:
    """The type of every message, whatever its fields."""

    __slots__ = ()


MessageT = TypeVar("MessageT", bound=Message)

_types: dict[int, type[Any]] = {}
_kinds: dict[type[Any], Kind] = {}
_names: dict[type[Any], str] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[MessageT]) -> type[MessageT]:
    """Make a class a frozen dataclass and the message of its name.

    Raises:
        ValueError: the catalogue has no such message of this module, or it is declared twice.
    """
    kind = BY_NAME.get(cls.__name__)
    if kind is None or cls.__module__ != f"{_PACKAGE}.{kind.module}":
        raise ValueError(f"{cls.__name__} of {cls.__module__} is not in the catalogue")
    if kind.number in _types:
        raise ValueError(f"{cls.__name__} is declared twice")
    made = dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)(cls)
    # Shared by all: three functions generated for each message would slow every start of dtdctl.
    for name, function in _SHARED.items():
        setattr(made, name, function)
    _types[kind.number] = made
    _kinds[made] = kind
    _names[made] = _upper_name(kind.name)
    return made


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


def message_type(number: object) -> type[Any] | None:
    """The class of a received number; None when no message has it."""
    if type(number) is not int:
        return None
    found = _types.get(number)
    if found is None and number in BY_NUMBER:
        importlib.import_module(f"{_PACKAGE}.{BY_NUMBER[number].module}")
        found = _types[number]
    return found


def message_types() -> dict[int, type[Any]]:
    """Number to class, for every message; loads all modules."""
    return {kind.number: _known(kind.number) for kind in KINDS}


def from_opener(role: Role) -> frozenset[type[Any]]:
    """The messages that an opening side of this role may send on an open connection."""
    return frozenset(_known(number) for number in opener_numbers(role))


def from_acceptor(role: Role) -> frozenset[type[Any]]:
    """The messages that the accepting side may send on an open connection."""
    return frozenset(_known(number) for number in acceptor_numbers(role))


def _known(number: int) -> type[Any]:
    found = message_type(number)
    assert found is not None
    return found


def kind_of(message_type: type[Any]) -> Kind:
    """The catalogue's row for a message's class."""
    return _kinds[message_type]


def message_number(message_type: type[Any]) -> int:
    """The value of "t" in the message's header."""
    return _kinds[message_type].number


def message_name(message_type: type[Any]) -> str:
    """The name protocol.md uses: HEARTBEAT_ACK for HeartbeatAck."""
    return _names[message_type]


def _upper_name(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


def encode_header(message: Message) -> bytes:
    """The msgpack map of a message, its number under "t".

    Text that is not valid Unicode (a file name in a traceback) is sent with question marks.

    Raises:
        LocalProtocolError: the receiver would reject a field's value.
    """
    kind = type(message)
    values = {TYPE_KEY: message_number(kind)}
    try:
        return _packed(record_values(message, where=message_name(kind), into=values))
    except (ProtocolError, ValueError, TypeError, OverflowError) as error:
        raise LocalProtocolError(f"{message_name(kind)} cannot be sent: {error}") from None


def _packed(values: dict[str, Any]) -> bytes:
    try:
        packed: bytes = msgpack.Packer().pack(values)
    except UnicodeEncodeError:
        packed = msgpack.Packer(unicode_errors="replace").pack(values)
    return packed


def decode_message(header: Header) -> Message:
    """The message of a decoded header.

    Raises:
        ProtocolError: UNKNOWN_TYPE or BAD_FIELD.
    """
    number = header.get(TYPE_KEY)
    kind = message_type(number)
    if kind is None:
        shown = number if isinstance(number, int) else type(number).__name__
        raise ProtocolError(ErrorCode.UNKNOWN_TYPE, f"message type {shown} is not known")
    message: Message = parse_record(kind, header, where=message_name(kind))
    return message


def message_bytes(message: Message, payload: bytes = b"", tag: Tag = CHECKSUM) -> bytes:
    """A complete small frame that carries a message."""
    return frames.frame_bytes(encode_header(message), payload, tag)
