"""Values as people typed them, and others' texts on a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.shown import plain, plain_value, shown


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


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain text, \u00e4\u6f22", "plain text, \u00e4\u6f22"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;cm0gLXJm\x1b\\after", "after"),
        ("\x1b]0;never ends", ""),
        ("\x9b31mred", "red"),
        ("\x90payload\x9cafter", "after"),
        ("a\x1bcb", "ab"),
        ("a\x1b", "a"),
        ("10%\r50%\r\n", "10%\n50%\n"),
        ("a\x00\x08\x7fb", "ab"),
        ("user\u202exe.txt", "userxe.txt"),
    ],
)
def test_nothing_that_steers_a_terminal_is_left(text: str, left: str) -> None:
    assert plain(text) == left
    assert plain(plain(text)) == left


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_no_text_whatever_keeps_a_control_character(text: str) -> None:
    left = plain(text)
    assert not [c for c in left if unicodedata.category(c) == "Cc" and c not in "\n\t"]


def test_all_texts_of_an_answer_are_cleaned() -> None:
    answer = {"a\x1b[1m": ["\x1b[31mx", {"y": "\x07z"}, 3, None, 0.5]}
    assert plain_value(answer) == {"a": ["x", {"y": "z"}, 3, None, 0.5]}
