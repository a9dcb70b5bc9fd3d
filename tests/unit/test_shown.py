"""Values as people typed them, and others' texts wherever they are shown."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.text.shown import (
    SENTENCE_CHARACTERS,
    cut,
    escaped,
    indented,
    json_safe,
    one_line,
    quoted,
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain text, \u00e4\u6f22", "plain text, \u00e4\u6f22"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b[2J\x1b[Hgone", "\\x1b[2J\\x1b[Hgone"),
        ("\x1b]0;title\x07after", "\\x1b]0;title\\x07after"),
        ("\x1b]0;never ends", "\\x1b]0;never ends"),
        ("\x90payload\x9cafter", "\\x90payload\\x9cafter"),
        ("a\x1b", "a\\x1b"),
        ("10%\r50%\r\n", "10%\n50%\n"),
        ("a\x00\x08\x7fb", "a\\x00\\x08\\x7fb"),
        ("user\u202exe.txt", "user\\u202exe.txt"),
        ("one\u2028two\x85three", "one\\u2028two\\x85three"),
        ("\ud800\U000e0041", "\\ud800\\U000e0041"),
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),
    ],
)
def test_nothing_that_steers_a_terminal_is_left(text: str, left: str) -> None:
    assert escaped(text) == left
    assert escaped(escaped(text)) == left


BAD_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ANY_TEXT = st.text(
    alphabet=st.one_of(
        st.characters(codec=None),
        st.sampled_from("\x1b\x9b\x9d[]0m;?J\r\n\t\x00\x7f\x85\u2028\u202e\u2066\ud800\"'=\\ ab"),
    )
)


def unsafe(text: str, but: str = "") -> list[str]:
    """Characters of others' texts that no terminal, log or console may get."""
    return [
        c for c in text if (unicodedata.category(c) in BAD_CATEGORIES or c in BIDI) and c not in but
    ]


@given(ANY_TEXT)
def test_no_text_whatever_gets_through_any_way_of_showing_it(text: str) -> None:
    assert not unsafe(escaped(text), but="\n\t")
    assert not unsafe(indented(text), but="\n\t")
    assert not unsafe(one_line(text))
    assert not unsafe(quoted(text))
    as_json = json_safe(json.dumps([text, {text: text}], ensure_ascii=False))
    assert not unsafe(as_json)
    assert json.loads(as_json) == [text, {text: text}]


def test_a_text_is_cut_to_what_a_message_can_carry() -> None:
    assert cut("short") == "short"
    assert cut("x" * 10**6) == "x" * SENTENCE_CHARACTERS
    half = cut("\udcff" * 10**6)
    assert len(half) == SENTENCE_CHARACTERS
    assert half.encode().startswith(b"\\udcff")
