"""Kinds of field: what fits, what does not, and how the error names it."""

from __future__ import annotations

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
    Figure,
    Figures,
    Flag,
    Generation,
    Host,
    Hosts,
    Map,
    MemberName,
    Name,
    Names,
    NoticeKind,
    Octets,
    Seconds,
    Shards,
    Text,
    Words,
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
    member: MemberName = "w0"
    notice: NoticeKind = "row_retried"
    text: Text = ""
    octets: Octets = b""
    map: Map
    inner: Annotated[tuple[Inner, ...], list_of(Inner, 2)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    metrics: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    part: Shards = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    others: Hosts = ()


FITS: list[tuple[str, Any]] = [
    *[("u8", n) for n in (0, 255)],
    *[("u16", n) for n in (0, 2**16 - 1)],
    *[("u32", n) for n in (0, 2**32 - 1)],
    *[("u64", n) for n in (0, 2**63 - 1)],
    *[("f64", n) for n in (0.5, -1, 2**63)],
    *[("flag", b) for b in (True, False)],
    *[("name", s) for s in ("", "w0", "ü" * 255)],
    *[("member", s) for s in ("w0", "A.b_c-9", "x" * 64)],
    *[("notice", s) for s in ("row_retried", "checkpoint_failed")],
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
    ("name", "a\nb", 'name: "a\\nb" is not one line of printable characters'),
    ("name", "a\x1b[2J", 'name: "a\\u001b[2J" is not one line of printable characters'),
    ("name", "a\u202eb", "is not one line of printable characters"),
    ("member", "", 'member: "" is not a name: 1 to 64 letters'),
    ("member", "-w", "is not a name: 1 to 64 letters"),
    ("member", "w/../0", "is not a name: 1 to 64 letters"),
    ("member", "w" * 65, "is not a name: 1 to 64 letters"),
    ("member", 7, "expected text, got int"),
    ("notice", "generation_running", '"generation_running" is not a kind that a worker may report'),
    ("notice", "audit", "is not a kind that a worker may report"),
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


@pytest.mark.parametrize(("field", "value", "problem"), DOES_NOT)
def test_value_that_does_not_fit_is_named(field: str, value: Any, problem: str) -> None:
    with pytest.raises(ProtocolError) as error:
        parse_record(Everything, {"map": {}, field: value}, where="X")
    assert error.value.code is ErrorCode.BAD_FIELD
    assert str(error.value).startswith(f"X.{field}")
    assert problem in str(error.value)


def test_a_map_of_figures_holds_numbers_only() -> None:
    assert parse_record(Result, {"metrics": {"loss": 1}}, where="X").metrics == {"loss": 1.0}
    for wrong in ({"loss": "low"}, {"loss": {}}, {"loss": True}):
        with pytest.raises(ProtocolError, match=r"X\.metrics\[loss\]: expected a number"):
            parse_record(Result, {"metrics": wrong}, where="X")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One field of each kind that says what its values mean."""

    generation: Generation = 0
    figure: Figure = 0.0
    seconds: Seconds = 0.0
    words: Words = ""
    host: Host = ""
    names: Names = ()


def checked(**values: Any) -> Checked:
    """As it arrives."""
    made: Checked = parse_record(Checked, values, where="X")
    return made


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("generation", 2**63, "is not in"),
        ("figure", "low", "expected a number"),
        ("seconds", float("inf"), "inf is not finite"),
        ("seconds", float("nan"), "nan is not finite"),
        ("seconds", 1e300, "more than 1e\\+09 s"),
        ("words", "x" * 4097, "text of 4097 characters > 4096"),
        ("host", "a\x1b[2J", "letters, digits and"),
        ("host", "ü", "letters, digits and"),
        ("host", "h" * 254, "254 characters > 253"),
        ("names", {"names": 5}, "expected a list, got dict"),
        ("names", [5], r"names\[0\]: expected text, got int"),
        ("names", ["x"] * 2049, "list of 2049 > 2048"),
    ],
)
def test_what_cannot_be_true_is_refused_by_its_kind(field: str, value: Any, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        checked(**{field: value})


def test_words_for_people_are_cut_by_their_sender() -> None:
    values = record_values(Checked(words="x" * 5000), where="X")
    assert values["words"] == "x" * 4095 + "…"
    assert checked(**values).words == values["words"]
    with pytest.raises(ProtocolError, match="expected text"):
        record_values(Checked(words=5), where="X")  # type: ignore[arg-type]


PLAIN: list[tuple[Any, Any]] = [
    ({"a": [1, "x", None, True, {"b": 1.5}]}, {"a": [1, "x", None, True, {"b": 1.5}]}),
    ({"a": (1, 2)}, {"a": [1, 2]}),
    ({"a": {"b": float("nan")}, "c": [float("inf")]}, {"a": {"b": None}, "c": [None]}),
]


@pytest.mark.parametrize(("said", "kept"), PLAIN)
def test_a_map_is_as_json_can_hold_it_on_both_sides(said: Any, kept: Any) -> None:
    assert parse_record(Everything, {"map": said}, where="X").map == kept
    assert record_values(Everything(map=said), where="X")["map"] == kept


DEEP: Any = "the bottom"
for _level in range(8):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": b"octets"}, "bytes cannot be represented in JSON"),
        ({"a": [object()]}, "object cannot be represented"),
        ({"a": 2**63}, "does not fit 64 bits"),
        ({"a": -(2**63)}, "does not fit 64 bits"),
        ({1: 2}, "a key is not text"),
        ({"k" * 256: 2}, "a key is not text of at most 255"),
        ({"a": {2: 1}}, "a key is not text"),
        (DEEP, "nested more than 7 levels deep"),
    ],
)
def test_a_map_holds_nothing_that_json_cannot(value: Any, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        parse_record(Everything, {"map": value}, where="X")
    with pytest.raises(ProtocolError, match=problem):
        record_values(Everything(map=value), where="X")


def test_further_addresses_are_a_bounded_list_of_literals() -> None:
    known = ["10.0.0.1", "fd00::1", *["10.9.0.1"] * 6]
    assert parse_record(Further, {"others": known}, where="X").others == tuple(known)
    for wrong, problem in (
        ("10.0.0.1", "expected a list, got str"),
        ([*known, "10.0.0.2"], "list of 9 > 8"),
        (
            ["10.0.0.1", "head.example"],
            r"others\[1\]: \"head.example\" is not an IPv4",
        ),
        (["10.0.0.300"], r"others\[0\]: \"10.0.0.300\" is not an IPv4 or IPv6 address"),
        ([7], r"others\[0\]: expected text, got int"),
    ):
        with pytest.raises(ProtocolError, match=problem):
            parse_record(Further, {"others": wrong}, where="X")


def test_a_set_of_shards_is_bounded_integers() -> None:
    fits = [0, 1, 65535, 65536] * 64
    assert parse_record(Part, {"part": fits}, where="X").part == tuple(fits)
    assert record_values(Part(part=(0, 1, 1, 2)), where="X") == {"part": [0, 1, 1, 2]}
    for wrong, problem in (
        ({}, "expected a list, got dict"),
        ([0] * 257, "list of 257 > 256"),
        ([0, 65537], r"part\[1\]: 65537 is not in 0..65536"),
        ([0.5], "expected an integer, got float"),
        ([True], "expected an integer, got bool"),
    ):
        with pytest.raises(ProtocolError, match=problem):
            parse_record(Part, {"part": wrong}, where="X")
    with pytest.raises(ProtocolError, match="70000 is not in"):
        record_values(Part(part=(70000,)), where="X")
