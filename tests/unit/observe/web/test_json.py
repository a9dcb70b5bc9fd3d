"""Answers as JSON: the same values, escaped."""

from __future__ import annotations

import json
import math

from dtd.observe.web.http import encoded, safe


async def test_what_is_not_finite_is_null() -> None:
    said = {"a": [math.nan, 1.5], "b": {"c": (-math.inf, None)}}
    assert json.loads(await encoded(said)) == {"a": [None, 1.5], "b": {"c": [None, None]}}


async def test_texts_and_keys_are_escaped() -> None:
    said = {"a\x1b]0;x\x07": ["\u202edlrow", {"k\x00": "tab\tstays"}], "b": b"\x00\xff"}
    assert json.loads(await encoded(said)) == {
        "a\\x1b]0;x\\x07": ["\\u202edlrow", {"k\\x00": "tab\tstays"}],
        "b": "00ff",
    }


def test_fractions_are_rounded_and_times_of_day_keep_milliseconds() -> None:
    said = {"loss": 0.123456, "time_s": 1795845013.3924093, "step": 123456}
    shown = {"loss": 0.1235, "time_s": 1795845013.392, "step": 123456}
    assert safe(said, shortened=True) == shown
