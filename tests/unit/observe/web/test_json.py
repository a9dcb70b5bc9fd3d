"""Answers as JSON: the same values, escaped."""

from __future__ import annotations

import json
import math

from dtd.observe.web.http import encoded


async def test_what_is_not_finite_is_null() -> None:
    said = {"a": [math.nan, 1.5], "b": {"c": (-math.inf, None)}}
    assert json.loads(await encoded(said)) == {"a": [None, 1.5], "b": {"c": [None, None]}}


async def test_texts_and_keys_are_escaped() -> None:
    said = {"a\x1b]0;x\x07": ["\u202edlrow", {"k\x00": "tab\tstays"}], "b": b"\x00\xff"}
    assert json.loads(await encoded(said)) == {
        "a\\x1b]0;x\\x07": ["\\u202edlrow", {"k\\x00": "tab\tstays"}],
        "b": "00ff",
    }
