"""One value against one field's rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from dtd.rules import Rule, did_you_mean, fault, fields_of, rule

ANY = Rule(meaning="")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (bool, True),
        (int, 3),
        (int, -(2**63 - 1)),
        (float, 3),
        (float, 0.5),
        (str, ""),
        (str, "grün"),
        (int | None, None),
        (int | None, 3),
        (Literal["a", "b"], "b"),
    ],
)
def test_a_value_of_the_right_type_fits(hint: Any, value: object) -> None:
    assert fault(hint, ANY, value) == ""


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (bool, 1),
        (bool, "true"),
        (int, True),
        (int, 1.0),
        (int, 2**63),
        (int, None),
        (int, "1"),
        (float, True),
        (float, "1"),
        (float, float("nan")),
        (float, float("inf")),
        (float, 10**400),
        (str, 3),
        (str, "a\nb"),
        (str, "\0"),
        (str, "\ud800"),
        (str, None),
        (int | None, False),
        (Literal["a", "b"], "c"),
        (Literal["a", "b"], 1),
        (Literal["a", "b"], ["a"]),
    ],
)
def test_types_are_strict(hint: Any, value: object) -> None:
    assert fault(hint, ANY, value).startswith("must be ")


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        ({"minimum": 1}, 1, 0),
        ({"above": 1}, 2, 1),
        ({"maximum": 4}, 4, 5),
        ({"below": 4}, 3, 4),
    ],
)
def test_bounds_are_kept_exactly(limits: dict[str, Any], inside: int, outside: int) -> None:
    checked = Rule(meaning="", **limits)
    for kind in (int, float):
        assert fault(kind, checked, inside) == ""
        assert checked.bounds in fault(kind, checked, outside)


def test_only_a_near_word_is_suggested() -> None:
    assert did_you_mean("momentun", ["momentum", "lr"]) == '; did you mean "momentum"?'
    assert did_you_mean("zzz", ["momentum", "lr"]) == ""
    assert did_you_mean("adamW", ["sgd", "adam", "adamw"]) == '; did you mean "adamw"?'
    assert did_you_mean("TLS", ["none", "tls"]) == '; did you mean "tls"?'
    assert did_you_mean("best", ["BEST"]) == '; did you mean "BEST"?'


def test_fields_carry_their_rule_and_default() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Table:
        needed: int = field(metadata=rule("What.", minimum=1))
        given: str = field(default="x", metadata=rule("Which."))
        plain: int = 0

    needed, given = fields_of(Table).values()
    assert (needed.name, needed.hint, needed.rule.minimum) == ("needed", int, 1)
    assert needed.required
    assert needed.default is dataclasses.MISSING
    assert (given.default, given.required, given.rule.meaning) == ("x", False, "Which.")
