"""The kinds of field a message may have, and the check of each (protocol.md, "Notation").

A message declares `step: U64`; the alias carries the check as `typing.Annotated` metadata.  A value
that does not fit raises ProtocolError BAD_FIELD naming message and field.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Protocol, get_type_hints

from dtd.errors import ErrorCode, ProtocolError

NAME_CHARACTERS: Final = 255
TEXT_CHARACTERS: Final = 16384
OCTETS_BYTES: Final = 64

Check = Callable[[str, Any], Any]


class Record(Protocol):
    """Any frozen, slotted dataclass whose fields are declared with the aliases of this file.

    It is read field by field, past its `__init__`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]


def bad_field(where: str, problem: str) -> ProtocolError:
    """The one error for a value that does not fit its field."""
    return ProtocolError(ErrorCode.BAD_FIELD, f"{where}: {problem}")


@dataclass(frozen=True, slots=True)
class _Integer:
    """The check of an integer from 0 to `highest`."""

    highest: int

    def __call__(self, where: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad_field(where, f"expected an integer, got {type(value).__name__}")
        if not 0 <= value <= self.highest:
            raise bad_field(where, f"{value} is not in 0..{self.highest}")
        return value


def _text(limit: int) -> Check:
    def check(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise bad_field(where, f"expected text, got {type(value).__name__}")
        if len(value) > limit:
            raise bad_field(where, f"text of {len(value)} characters > {limit}")
        return value

    return check


def _octets(limit: int) -> Check:
    def check(where: str, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise bad_field(where, f"expected octets, got {type(value).__name__}")
        if len(value) > limit:
            raise bad_field(where, f"{len(value)} octets > {limit}")
        return value

    return check


def _boolean(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_field(where, f"expected a boolean, got {type(value).__name__}")
    return value


def _number(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise bad_field(where, f"expected a number, got {type(value).__name__}")
    return float(value)


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(where, f"expected a map, got {type(value).__name__}")
    return value


def _figures(where: str, value: Any) -> dict[str, float]:
    return {name: _number(f"{where}[{name}]", one) for name, one in _mapping(where, value).items()}


U8 = Annotated[int, "u8", _Integer(2**8 - 1)]
U16 = Annotated[int, "u16", _Integer(2**16 - 1)]
U32 = Annotated[int, "u32", _Integer(2**32 - 1)]
U64 = Annotated[int, "u64", _Integer(2**63 - 1)]
F64 = Annotated[float, "f64", _number]
Flag = Annotated[bool, "bool", _boolean]
Name = Annotated[str, f"text<={NAME_CHARACTERS}", _text(NAME_CHARACTERS)]
Text = Annotated[str, f"text<={TEXT_CHARACTERS}", _text(TEXT_CHARACTERS)]
Octets = Annotated[bytes, f"octets<={OCTETS_BYTES}", _octets(OCTETS_BYTES)]
Map = Annotated[dict[str, Any], "map", _mapping]
Figures = Annotated[dict[str, float], "map of f64", _figures]


def list_of(record: type[Record], limit: int) -> tuple[str, Check]:
    """Metadata of a field that holds a list of at most `limit` records."""

    def check(where: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise bad_field(where, f"expected a list, got {type(value).__name__}")
        if len(value) > limit:
            raise bad_field(where, f"list of {len(value)} > {limit}")
        return tuple(
            parse_record(record, _mapping(f"{where}[{index}]", item), where=f"{where}[{index}]")
            for index, item in enumerate(value)
        )

    return f"list<={limit} of {record.__name__}", check


Layout = tuple[tuple[str, str, Check, bool], ...]
_layouts: dict[type[Any], Layout] = {}

# (name, highest, check, put) of a field.  Most fields of what travels often are integers: that one
# fits is seen by comparing it with `highest`, which is below 0 where no integer is meant; whatever
# does not fit at a glance is left to the check.  `put` sets the field of a new record: the
# `__init__` of a frozen one takes twice as long.
Row = tuple[str, int, Check, Callable[[Any, Any], None]]
_rows: dict[type[Any], tuple[Row, ...]] = {}


def layout(record: type[Any]) -> Layout:
    """(name, kind, check, required) of every field, in order."""
    cached = _layouts.get(record)
    if cached is None:
        hints = get_type_hints(record, include_extras=True)
        rows = []
        for field in fields(record):
            metadata = hints[field.name].__metadata__
            kind, check = metadata if len(metadata) == 2 else metadata[0]
            rows.append((field.name, kind, check, field.default is MISSING))
        cached = _layouts[record] = tuple(rows)
    return cached


def _rows_of(record: type[Any]) -> tuple[Row, ...]:
    made = _rows[record] = tuple(
        (
            name,
            check.highest if isinstance(check, _Integer) else -1,
            check,
            getattr(record, name).__set__,
        )
        for name, _kind, check, _required in layout(record)
    )
    return made


def parse_record(record: type[Any], values: dict[str, Any], *, where: str) -> Any:
    """Build `record` from a decoded map; unknown keys are ignored.

    Raises:
        ProtocolError: BAD_FIELD when a field is missing or does not fit.
    """
    made = object.__new__(record)
    for name, highest, check, put in _rows.get(record) or _rows_of(record):
        try:
            value = values[name]
        except KeyError:
            value = _default(record, name, where)
        else:
            if type(value) is not int or not 0 <= value <= highest:
                value = check(f"{where}.{name}", value)
        put(made, value)
    return made


def _default(record: type[Any], name: str, where: str) -> Any:
    default = record.__dataclass_fields__[name].default
    if default is MISSING:
        raise bad_field(where, f"field {name!r} is missing") from None
    return default


def record_values(record: Any, *, where: str, into: dict[str, Any] | None = None) -> dict[str, Any]:
    """The map of a record's fields, ready for msgpack; they are added to `into` if that is given.

    Raises:
        ProtocolError: BAD_FIELD when the receiver would refuse a value.
    """
    kind = type(record)
    values = {} if into is None else into
    for name, highest, check, _put in _rows.get(kind) or _rows_of(kind):
        value = getattr(record, name)
        if type(value) is not int or not 0 <= value <= highest:
            if isinstance(value, tuple):
                value = [record_values(item, where=f"{where}.{name}") for item in value]
            check(f"{where}.{name}", value)
        values[name] = value
    return values
