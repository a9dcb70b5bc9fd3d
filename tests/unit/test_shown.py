"""Values as people typed them."""

from __future__ import annotations

import pytest

from dtd.shown import shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("a\n", '"a\\n"'),
        (3, "3"),
        (0.5, "0.5"),
        (2**70, "an integer beyond 64 bits"),
        ({}, "a table"),
        ([1], "an array"),
        ((1,), "an array"),
        (None, "nothing"),
        (b"x", "a bytes"),
    ],
)
def test_values_are_shown_as_typed(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_long_value_is_cut() -> None:
    assert len(shown("x" * 1000)) == 60
