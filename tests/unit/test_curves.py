"""Curves and bars, character by character."""

from __future__ import annotations

import math

import pytest

from dtd.figures import curve, is_logarithmic, shares


def test_a_curve_that_falls():
    assert curve([[step, 8 - step] for step in range(8)], width=8, height=1) == ["█▇▆▅▄▃▂▁"]


def test_what_falls_into_one_column_is_averaged_and_gaps_repeat():
    points = [[0, 0.0], [1, 2.0], [9, 1.0], [10, 8.0]]
    assert curve(points, width=5, height=1) == ["▁▁▁▁█"]


def test_values_that_are_no_numbers_are_left_out():
    assert curve([[0, math.nan], [1, 1.0], [2, 2.0]], width=2, height=1) == ["▁█"]
    assert curve([[0, math.inf]], width=2, height=2) == ["  ", "  "]
    assert curve([[5, 1.0]], width=2, height=1) == ["▁▁"]


def test_values_far_apart_are_drawn_logarithmically():
    points = [[step, 10.0**-step] for step in range(8)]
    assert curve(points, width=8, height=1) == ["█▇▆▅▄▃▂▁"]
    assert curve([*points[:7], [7, 0.0]], width=8, height=1) == ["█▂▁▁▁▁▁▁"]


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ([], False),
        ([1.0, 9.9], False),
        ([1.0, 10.0], True),
        ([0.0, 10.0], False),
        ([-1.0, 10.0], False),
    ],
)
def test_when_an_axis_is_logarithmic(values, logarithmic):
    assert is_logarithmic(values) is logarithmic


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
