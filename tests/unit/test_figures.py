from __future__ import annotations

from datetime import datetime

import pytest

from dtd import figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-0.1, "0.0s"),
        (3.24, "3.2s"),
        (42.4, "42s"),
        (59.7, "1m00s"),
        (187, "3m07s"),
        (7503, "2h05m"),
        (353_000, "4d02h"),
    ],
)
def test_duration(seconds, text):
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-0.1, "0 ms"),
        (0.0, "0 ms"),
        (0.00042, "0.4 ms"),
        (0.0314, "31 ms"),
        (1.25, "1.25 s"),
        (42.4, "42s"),
    ],
)
def test_span(seconds, text):
    assert figures.span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (20 << 20, "20.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_size(count, text):
    assert figures.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (0.12345, "0.1235"), (float("inf"), "inf")],
)
def test_number(value, text):
    assert figures.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "-"), (2.25, "2.2/s"), (12345.6, "12,346/s")]
)
def test_rate(value, text):
    assert figures.rate(value) == text


def test_moment():
    text = figures.moment(1_700_000_000)
    assert datetime.strptime(text, "%Y-%m-%d %H:%M:%S").astimezone().timestamp() == 1_700_000_000
    assert figures.moment(None) == "-"


def test_ranks():
    assert figures.ranks({"world_size": 1}) == "1 worker"
    assert figures.ranks({"world_size": 3, "servers": 1}) == "2 workers and 1 server"
