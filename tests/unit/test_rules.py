"""One value against one field's rule."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from dtd.rules import Rule, fault

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
