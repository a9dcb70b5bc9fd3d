"""Kinds of field: what fits, what does not, and how the error names it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire.fields import (
    F64,
    U8,
    U16,
    U32,
    U64,
    Figures,
    Flag,
    Map,
    Name,
    Octets,
    Text,
    layout,
    list_of,
    parse_record,
    record_values,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A record within a list."""

    number: U8


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """One field of each kind; only the map, which has no default, is required."""

    u8: U8 = 0
    u16: U16 = 0
    u32: U32 = 0
    u64: U64 = 0
    f64: F64 = 0.0
    flag: Flag = False
    name: Name = ""
    text: Text = ""
    octets: Octets = b""
    map: Map
    inner: Annotated[tuple[Inner, ...], list_of(Inner, 2)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    metrics: Figures


class Colour(enum.IntEnum):
    RED = 1


FITS: list[tuple[str, Any]] = [
    *[("u8", n) for n in (0, 255)],
    *[("u16", n) for n in (0, 2**16 - 1)],
    *[("u32", n) for n in (0, 2**32 - 1)],
    *[("u64", n) for n in (0, 2**63 - 1)],
    *[("f64", n) for n in (0.5, -1, 2**63, float("inf"))],
    *[("flag", b) for b in (True, False)],
    *[("name", s) for s in ("", "w0", "ü" * 255)],
    *[("text", s) for s in ("", "x" * 16384)],
    *[("octets", b) for b in (b"", bytes(64))],
    *[("map", d) for d in ({}, {"any": ["thing"]})],
]
DOES_NOT: list[tuple[str, Any, str]] = [
    ("u8", -1, "-1 is not in 0..255"),
    ("u8", 256, "256 is not in 0..255"),
    ("u16", 2**16, "is not in 0..65535"),
    ("u32", 2**32, "is not in"),
    ("u64", 2**63, "is not in"),
    ("u8", True, "expected an integer, got bool"),
    ("u8", 1.0, "expected an integer, got float"),
    ("u8", "1", "expected an integer, got str"),
    ("u8", None, "expected an integer, got NoneType"),
    ("f64", True, "expected a number, got bool"),
    ("f64", "1", "expected a number, got str"),
    ("flag", 1, "expected a boolean, got int"),
    ("name", b"w0", "expected text, got bytes"),
    ("name", "x" * 256, "text of 256 characters > 255"),
    ("text", "x" * 16385, "text of 16385 characters > 16384"),
    ("octets", "text", "expected octets, got str"),
    ("octets", bytes(65), "65 octets > 64"),
    ("map", [], "expected a map, got list"),
    ("inner", {}, "expected a list, got dict"),
    ("inner", [{"number": 1}] * 3, "list of 3 > 2"),
    ("inner", [{"number": 1}, 5], "inner[1]: expected a map, got int"),
    ("inner", [{"number": 256}], "inner[0].number: 256 is not in 0..255"),
    ("inner", [{}], "inner[0]: field 'number' is missing"),
]


@pytest.mark.parametrize(("field", "value"), FITS)
def test_value_that_fits_is_kept(field: str, value: Any) -> None:
    record = parse_record(Everything, {"map": {}, field: value}, where="X")
    assert getattr(record, field) == value
    assert record_values(record, where="X")[field] == value


@pytest.mark.parametrize(("field", "value", "problem"), DOES_NOT)
def test_value_that_does_not_fit_is_named(field: str, value: Any, problem: str) -> None:
    with pytest.raises(ProtocolError) as error:
        parse_record(Everything, {"map": {}, field: value}, where="X")
    assert error.value.code is ErrorCode.BAD_FIELD
    assert str(error.value).startswith(f"X.{field}")
    assert problem in str(error.value)


def test_integers_become_floats_where_a_number_is_meant() -> None:
    value = parse_record(Everything, {"map": {}, "f64": 3}, where="X").f64
    assert (value, type(value)) == (3.0, float)


def test_an_integer_at_a_glance_is_still_a_number_where_one_is_meant() -> None:
    value = parse_record(Everything, {"map": {}, "f64": 0}, where="X").f64
    assert (value, type(value)) == (0.0, float)


@pytest.mark.parametrize(("field", "value", "problem"), [one for one in DOES_NOT if "8" in one[0]])
def test_integer_that_does_not_fit_is_not_sent(field: str, value: Any, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        record_values(Everything(map={}, **{field: value}), where="X")


def test_a_record_is_as_its_constructor_would_make_it() -> None:
    record = parse_record(Everything, {"map": {}, "u8": 7, "inner": [{"number": 1}]}, where="X")
    assert record == Everything(map={}, u8=7, inner=(Inner(number=1),))


def test_unknown_keys_are_ignored_at_every_level() -> None:
    values = {"map": {}, "new": 1, "inner": [{"number": 7, "new": 2}]}
    record = parse_record(Everything, values, where="X")
    assert record.inner == (Inner(number=7),)


def test_missing_field_without_default_is_named() -> None:
    with pytest.raises(ProtocolError, match="X: field 'number' is missing"):
        parse_record(Inner, {"other": 1}, where="X")


def test_records_in_lists_become_maps_again() -> None:
    record = Everything(map={}, inner=(Inner(number=1), Inner(number=2)))
    values = record_values(record, where="X")
    assert values["inner"] == [{"number": 1}, {"number": 2}]
    assert parse_record(Everything, values, where="X") == record


def test_fields_may_be_added_to_what_is_there() -> None:
    values = {"t": 7}
    assert record_values(Inner(number=1), where="X", into=values) is values
    assert list(values.items()) == [("t", 7), ("number", 1)]


def test_enumerations_are_what_they_stand_for() -> None:
    values = record_values(Inner(number=Colour.RED), where="X")
    assert values == {"number": 1}


def test_value_that_would_be_refused_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match=r"X\.inner\.number: 256 is not in"):
        record_values(Everything(map={}, inner=(Inner(number=256),)), where="X")


def test_layout_is_in_order_and_made_once() -> None:
    rows = layout(Everything)
    assert [row[0] for row in rows] == list(Everything.__dataclass_fields__)
    assert [row[1] for row in rows][-2:] == ["map", "list<=2 of Inner"]
    assert [row[0] for row in rows if row[3]] == ["map"]
    assert [row[3] for row in layout(Inner)] == [True]
    assert layout(Everything) is rows


def test_a_map_of_figures_holds_numbers_only() -> None:
    assert parse_record(Result, {"metrics": {"loss": 1}}, where="X").metrics == {"loss": 1.0}
    for wrong in ({"loss": "low"}, {"loss": {}}, {"loss": True}):
        with pytest.raises(ProtocolError, match=r"X\.metrics\[loss\]: expected a number"):
            parse_record(Result, {"metrics": wrong}, where="X")
