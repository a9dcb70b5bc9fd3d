"""Numbers for people, and curves of characters."""

from __future__ import annotations

import pytest

from dtd.text import figures
from dtd.text.figures import shares


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (figures.duration, None, "-"),
        (figures.duration, -0.1, "0.0s"),
        (figures.duration, 3.24, "3.2s"),
        (figures.duration, 42.4, "42s"),
        (figures.duration, 59.7, "1m00s"),
        (figures.duration, 7503, "2h05m"),
        (figures.duration, 353_000, "4d02h"),
        (figures.span, None, "-"),
        (figures.span, -0.1, "0 ms"),
        (figures.span, 0.00042, "0.4 ms"),
        (figures.span, 0.0314, "31 ms"),
        (figures.span, 1.25, "1.25 s"),
        (figures.span, 42.4, "42s"),
        (figures.size, 1023, "1023 B"),
        (figures.size, 1536, "1.5 KiB"),
        (figures.size, 20 << 20, "20.0 MiB"),
        (figures.size, 5 << 40, "5.0 TiB"),
        (figures.number, None, "-"),
        (figures.number, float("nan"), "-"),
        (figures.number, 0.12345, "0.1235"),
        (figures.rate, 0.0, "-"),
        (figures.rate, 2.25, "2.2/s"),
        (figures.rate, 12345.6, "12,346/s"),
        (figures.bandwidth, 117e6, "936 Mbit/s"),
        (figures.ranks, {"world_size": 1}, "1 worker"),
        (figures.ranks, {"world_size": 3, "servers": 1}, "2 workers and 1 server"),
    ],
)
def test_numbers(show, value, text):
    assert show(value) == text


# --- curves of characters ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "whole", "expected"),
    [
        ([0.25, 0.5], 1.0, [2, 6]),
        ([0.34, 0.33, 0.33], 1.0, [3, 4, 3]),
        ([2.0, 1.0], 1.0, [10, 0]),
        ([-1.0, 1.0], 1.0, [0, 10]),
        ([1.0], 0.0, [0]),
    ],
)
def test_parts_of_a_bar_never_exceed_it(parts, whole, expected):
    made = shares(parts, whole=whole, width=10)
    assert made == expected
    assert sum(made) <= 10
