"""The kinds of field that a message may have, and the check of each (protocol.md, "Notation").

A message declares `step: U64`; the alias carries the check as `typing.Annotated` metadata.  A value
that does not fit raises ProtocolError BAD_FIELD with the names of message and field.  Received
values are more than well formed: numbers are finite unless a model computed them, times are in a
plausible range, and a map holds only what JSON can represent.  Code that stores a field, calculates
with it or displays it need not check again.  Pure.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Protocol, get_type_hints

from dtd.errors import ErrorCode, ProtocolError
from dtd.event_names import NOTICES
from dtd.text.names import METRIC_WORDS, NAME_WORDS, is_metric, is_name
from dtd.text.shown import shown
from dtd.wire.step_rows import MAX_STEP_ROWS_BYTES, STEP_ROW_BYTES

NAME_CHARACTERS: Final = 255
TEXT_CHARACTERS: Final = 16384
WORDS_CHARACTERS: Final = 4096
PATH_CHARACTERS: Final = 4096
HOST_CHARACTERS: Final = 253
OCTETS_BYTES: Final = 64
MOST_SECONDS: Final = 1e9
LEAST_SECONDS: Final = 1e-9
MAP_NESTING: Final = 7
"""A map within a message's map: a header may be nested one level deeper."""
MAP_KEY_CHARACTERS: Final = 255
FIGURES: Final = 256
NAMES: Final = 2048
SHARD_BOUNDS: Final = 256
MOST_BOUND: Final = 1 << 16

HOSTS: Final = 8

_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]*")
_MOST: Final = 2**63 - 1

Check = Callable[[str, Any], Any]


class Record(Protocol):
    """Any frozen, slotted dataclass whose fields are declared with the aliases of this file.

    The parser sets its fields one by one, without calling its `__init__`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]


def bad_field(where: str, problem: str) -> ProtocolError:
    """The error raised for a value that does not fit its field."""
    return ProtocolError(ErrorCode.BAD_FIELD, f"{where}: {problem}")


@dataclass(frozen=True, slots=True)
class _Integer:
    """The check of an integer from 0 to `highest`, and whether the field may name a generation."""

    highest: int
    names_generation: bool = False

    def __call__(self, where: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad_field(where, f"expected an integer, got {type(value).__name__}")
        if not 0 <= value <= self.highest:
            raise bad_field(where, f"{value} is not in 0..{self.highest}")
        return value


def _text(limit: int) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise bad_field(where, f"expected text, got {type(value).__name__}")
        if len(value) > limit:
            raise bad_field(where, f"text of {len(value)} characters > {limit}")
        return value

    return check


def _name(where: str, value: Any) -> str:
    """One line that can be displayed as it is; longer text belongs in a text field."""
    if not isinstance(value, str):
        raise bad_field(where, f"expected text, got {type(value).__name__}")
    if len(value) > NAME_CHARACTERS:
        raise bad_field(where, f"text of {len(value)} characters > {NAME_CHARACTERS}")
    if not value.isprintable():
        raise bad_field(where, f"{shown(value)} is not one line of printable characters")
    return value


def _member(where: str, value: Any) -> str:
    name = _name(where, value)
    if not is_name(name):
        raise bad_field(where, f"{shown(name)} is not a name: {NAME_WORDS}")
    return name


def _notice(where: str, value: Any) -> str:
    kind = _name(where, value)
    if kind not in NOTICES:
        raise bad_field(where, f"{shown(kind)} is not a kind that a worker may report")
    return kind


@dataclass(frozen=True, slots=True)
class _Words:
    """The check of text meant for people: the sender truncates it when it is too long."""

    limit: int

    def __call__(self, where: str, value: Any) -> str:
        return _text(self.limit)(where, value)

    def cut(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) > self.limit:
            return value[: self.limit - 1] + "…"
        return value


def _host(where: str, value: Any) -> str:
    host = _text(HOST_CHARACTERS)(where, value)
    if not _HOST.fullmatch(host):
        raise bad_field(where, "a host may contain only letters, digits and . _ : % -")
    return host


def _hosts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise bad_field(where, f"expected a list, got {type(value).__name__}")
    if len(value) > HOSTS:
        raise bad_field(where, f"list of {len(value)} > {HOSTS}")
    return tuple(_literal(f"{where}[{index}]", one) for index, one in enumerate(value))


def _literal(where: str, value: Any) -> str:
    host = _host(where, value)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise bad_field(where, f"{shown(host)} is not an IPv4 or IPv6 address") from None
    return host


def _octets(limit: int) -> Check:
    def check(where: str, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise bad_field(where, f"expected octets, got {type(value).__name__}")
        if len(value) > limit:
            raise bad_field(where, f"{len(value)} octets > {limit}")
        return value

    return check


def _step_rows(where: str, value: Any) -> bytes:
    octets: bytes = _octets(MAX_STEP_ROWS_BYTES)(where, value)
    if len(octets) % STEP_ROW_BYTES:
        raise bad_field(where, f"{len(octets)} octets are no rows of {STEP_ROW_BYTES}")
    return octets


def _boolean(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise bad_field(where, f"expected a boolean, got {type(value).__name__}")
    return value


def _figure(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise bad_field(where, f"expected a number, got {type(value).__name__}")
    return float(value)


def _number(where: str, value: Any) -> float:
    number = _figure(where, value)
    if not math.isfinite(number):
        raise bad_field(where, f"{number} is not finite")
    return number


def _seconds(where: str, value: Any) -> float:
    """A time too short to be measured becomes 0, so a rate can be calculated from any other."""
    seconds = _number(where, value)
    if seconds > MOST_SECONDS:
        raise bad_field(where, f"{seconds:g} s is more than {MOST_SECONDS:g} s")
    return seconds if seconds >= LEAST_SECONDS else 0.0


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_field(where, f"expected a map, got {type(value).__name__}")
    return value


def _figures(where: str, value: Any) -> dict[str, float]:
    said = _mapping(where, value)
    if len(said) > FIGURES:
        raise bad_field(where, f"map of {len(said)} > {FIGURES}")
    return {_metric(where, name): _figure(f"{where}[{name}]", one) for name, one in said.items()}


def _metric(where: str, name: Any) -> str:
    if not isinstance(name, str) or not is_metric(name):
        raise bad_field(where, f"{shown(name)} is not a metric's name: {METRIC_WORDS}")
    return name


def _key(where: str, name: Any) -> str:
    if not isinstance(name, str) or len(name) > MAP_KEY_CHARACTERS:
        raise bad_field(where, f"a key is not text of at most {MAP_KEY_CHARACTERS} characters")
    return name


def _plain_map(where: str, value: Any) -> dict[str, Any]:
    made: dict[str, Any] = _plain(where, _mapping(where, value), 1)
    return made


def _plain(where: str, value: Any, depth: int) -> Any:
    """The value as JSON can hold it: None for a number that is not finite."""
    if isinstance(value, dict | list | tuple):
        if depth > MAP_NESTING:
            raise bad_field(where, f"nested more than {MAP_NESTING} levels deep")
        if isinstance(value, dict):
            return {_key(where, k): _plain(where, one, depth + 1) for k, one in value.items()}
        return [_plain(where, one, depth + 1) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not -_MOST <= value <= _MOST:
        raise bad_field(where, f"{value} does not fit 64 bits")
    if value is None or isinstance(value, str | int):
        return value
    raise bad_field(where, f"{type(value).__name__} cannot be represented in JSON")


def _names(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise bad_field(where, f"expected a list, got {type(value).__name__}")
    if len(value) > NAMES:
        raise bad_field(where, f"list of {len(value)} > {NAMES}")
    return tuple(_name(f"{where}[{index}]", one) for index, one in enumerate(value))


def _shards(where: str, value: Any) -> tuple[int, ...]:
    """Bounds of intervals; `dtd.engine.shards` says which sequences are a set of shards."""
    if not isinstance(value, list):
        raise bad_field(where, f"expected a list, got {type(value).__name__}")
    if len(value) > SHARD_BOUNDS:
        raise bad_field(where, f"list of {len(value)} > {SHARD_BOUNDS}")
    return tuple(_BOUND(f"{where}[{index}]", one) for index, one in enumerate(value))


_BOUND: Final = _Integer(MOST_BOUND)

U8 = Annotated[int, "u8", _Integer(2**8 - 1)]
U16 = Annotated[int, "u16", _Integer(2**16 - 1)]
U32 = Annotated[int, "u32", _Integer(2**32 - 1)]
U64 = Annotated[int, "u64", _Integer(_MOST)]
Generation = Annotated[int, "generation", _Integer(_MOST, names_generation=True)]
F64 = Annotated[float, "f64", _number]
Figure = Annotated[float, "figure", _figure]
Seconds = Annotated[float, "seconds", _seconds]
Flag = Annotated[bool, "bool", _boolean]
Name = Annotated[str, f"line<={NAME_CHARACTERS}", _name]
MemberName = Annotated[str, "name", _member]
NoticeKind = Annotated[str, "notice", _notice]
Text = Annotated[str, f"text<={TEXT_CHARACTERS}", _text(TEXT_CHARACTERS)]
Directory = Annotated[str, f"text<={PATH_CHARACTERS}", _text(PATH_CHARACTERS)]
Words = Annotated[str, f"words<={WORDS_CHARACTERS}", _Words(WORDS_CHARACTERS)]
Host = Annotated[str, "host", _host]
Hosts = Annotated[tuple[str, ...], f"hosts<={HOSTS}", _hosts]
Octets = Annotated[bytes, f"octets<={OCTETS_BYTES}", _octets(OCTETS_BYTES)]
StepRows = Annotated[bytes, f"octets<={MAX_STEP_ROWS_BYTES}", _step_rows]
Map = Annotated[dict[str, Any], "map", _plain_map]
Figures = Annotated[dict[str, float], "map of figure", _figures]
Names = Annotated[tuple[str, ...], f"names<={NAMES}", _names]
Shards = Annotated[tuple[int, ...], f"shards<={SHARD_BOUNDS}", _shards]


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

# (name, highest, check, put) of a field.  Most fields of frequent messages are integers: a value
# fits if it is at most `highest`, which is below 0 for fields that are not integers; every other
# value goes through the check.  `put` sets the field of a new record, because the `__init__` of a
# frozen dataclass takes twice as long.
Row = tuple[str, int, Check, Callable[[Any, Any], None]]
_rows: dict[type[Any], tuple[Row, ...]] = {}
_naming: dict[type[Any], tuple[tuple[str, bool], ...]] = {}


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
    """The map of a record's fields, ready for msgpack; added to `into` if it is given.

    Raises:
        ProtocolError: BAD_FIELD when the receiver would reject a value.
    """
    kind = type(record)
    values = {} if into is None else into
    for name, highest, check, _put in _rows.get(kind) or _rows_of(kind):
        value = getattr(record, name)
        if type(value) is not int or not 0 <= value <= highest:
            value = _sendable(f"{where}.{name}", check, value)
        values[name] = value
    return values


_LONG: Final = 16
_long_list: tuple[object, object, list[Any]] = ((), None, [])
"""The last long tuple that was sent, its check, and its items.

All members get the same roster: with 64 of them its 64 records would be checked and converted
64 times in one go.  It depends on nothing but the message, so no caller has to hold it.
"""


def _sendable(where: str, check: Check, value: Any) -> Any:
    global _long_list  # noqa: PLW0603 - replaced as a whole, so that threads need no lock
    if isinstance(value, tuple):
        known, passed, items = _long_list
        if known is value and passed is check:
            return items
        plain = (str, int)
        items = [one if type(one) in plain else record_values(one, where=where) for one in value]
        check(where, items)
        if len(value) >= _LONG:
            _long_list = value, check, items
        return items
    return check(where, check.cut(value) if isinstance(check, _Words) else value)


def generations_in(record: Any) -> Iterator[int]:
    """Every generation number in a message, including those in its lists of records."""
    kind = type(record)
    named = _naming.get(kind)
    if named is None:
        named = _naming[kind] = _naming_generations(kind)
    for name, is_list in named:
        value = getattr(record, name)
        if is_list:
            for one in value:
                yield from generations_in(one)
        else:
            yield value


def _naming_generations(record: type[Any]) -> tuple[tuple[str, bool], ...]:
    """(name, whether it is a list of records) of the fields that can name a generation."""
    rows = layout(record)
    plain = {n for n, _, check, _ in rows if isinstance(check, _Integer) and check.names_generation}
    lists = {name for name, kind, _check, _required in rows if kind.startswith("list<=")}
    return tuple((name, name in lists) for name, *_ in rows if name in plain | lists)
