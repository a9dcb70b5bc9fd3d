"""Answers as JSON: the same values, escaped, in small pieces."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.observe.web.http import AT_ONCE_S, ROWS_AT_ONCE, encoded, pieces

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | WORDS,
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=200,
)


@given(VALUES)
def test_it_reads_as_what_it_was_made_of(value: Any) -> None:
    assert json.loads("".join(pieces(value))) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value: float) -> None:
    assert json.loads("".join(pieces({"a": [value, 1.5], "b": value}))) == {
        "a": [None, 1.5],
        "b": None,
    }


def test_texts_and_keys_are_escaped() -> None:
    said = {"a\x1b]0;x\x07": ["\u202edlrow", {"k\x00": "tab\tstays"}], "b": b"\x00\xff"}
    assert json.loads("".join(pieces(said))) == {
        "a\\x1b]0;x\\x07": ["\\u202edlrow", {"k\\x00": "tab\tstays"}],
        "b": "00ff",
    }


def test_pieces_stay_small() -> None:
    big = {"series": [{"points": [[1.0] * 6] * 5000}] * 4, "workers": [{"a": 1}] * 1000}
    assert max(len(piece) for piece in pieces(big)) < ROWS_AT_ONCE * 60


async def test_the_event_loop_runs_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a played clock: each piece takes a tenth of the time for which the loop may be kept."""
    loop = asyncio.get_running_loop()
    readings = itertools.count()
    monkeypatch.setattr(loop, "time", lambda: next(readings) * AT_ONCE_S / 10)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    value = [[0.5] * 100] * 1_000
    loop.call_soon(turn)
    await encoded(value)
    assert turns >= sum(1 for _ in pieces(value)) // 20
