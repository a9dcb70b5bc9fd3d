"""Curves and bars of block characters.  Pure text; a blank is no value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_FULL: Final = len(_EIGHTHS) - 1
_LOGARITHMIC_FROM: Final = 10.0
"""So many times the least value the greatest one is, or more: on a linear axis all but the
greatest would lie on the ground."""


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether finite values are better drawn on a logarithmic axis: all positive, and far apart."""
    return bool(values) and min(values) > 0 and max(values) >= _LOGARITHMIC_FROM * min(values)


def curve(points: Sequence[Sequence[float]], *, width: int, height: int) -> list[str]:
    """[step, value] points as `height` lines of `width` characters, the highest first.

    Steps are spread evenly; what falls into one column is averaged, a column without points repeats
    the one before it.  Values that are not finite are left out.  The axis is logarithmic where
    `is_logarithmic` says so.
    """
    finite = [p for p in points if math.isfinite(p[1])]
    columns = _columns(finite, width)
    if is_logarithmic([value for _, value in finite]):
        columns = [None if value is None else math.log(value) for value in columns]
    known = [value for value in columns if value is not None]
    if not known:
        return [" " * width] * height
    low, high = min(known), max(known)
    span = high - low or 1.0
    heights = [
        0 if value is None else 1 + round((value - low) / span * (height * _FULL - 1))
        for value in columns
    ]
    return [
        "".join(_EIGHTHS[min(_FULL, max(0, level - row * _FULL))] for level in heights)
        for row in reversed(range(height))
    ]


def sparklines(curves: Sequence[Sequence[Sequence[float]]], *, width: int) -> list[str]:
    """Several curves of [step, value] points as one line each, on the same axes.

    The steps begin at 0; the axis of values is logarithmic where `is_logarithmic` says so of all.
    """
    finite = [[point for point in points if math.isfinite(point[1])] for points in curves]
    values = [value for points in finite for _, value in points]
    if not values:
        return [" " * width for _ in curves]
    shape = math.log if is_logarithmic(values) else float
    low, high = shape(min(values)), shape(max(values))
    last = max(step for points in finite for step, _ in points)
    return [_sparkline(points, shape, (low, high), last, width) for points in finite]


def _sparkline(
    points: Sequence[Sequence[float]],
    shape: Callable[[float], float],
    bounds: tuple[float, float],
    last: float,
    width: int,
) -> str:
    groups: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        groups[min(width - 1, int(step / max(1.0, last) * width))].append(shape(value))
    low, span = bounds[0], bounds[1] - bounds[0] or 1.0
    line, before = "", " "
    for index, group in enumerate(groups):
        if group:
            before = _EIGHTHS[1 + round((sum(group) / len(group) - low) / span * (_FULL - 1))]
        line += before if any(groups[index:]) else " "
    return line


def _columns(points: Sequence[Sequence[float]], width: int) -> list[float | None]:
    """Mean value of each column."""
    columns: list[float | None] = [None] * width
    if not points:
        return columns
    first, last = points[0][0], points[-1][0]
    steps = max(1.0, last - first)
    groups: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        groups[min(width - 1, int((step - first) / steps * width))].append(value)
    before: float | None = None
    for index, group in enumerate(groups):
        before = sum(group) / len(group) if group else before
        columns[index] = before
    return columns


def shares(parts: Sequence[float], *, whole: float, width: int) -> list[int]:
    """Return the characters that each part of a whole gets; together never more than `width`."""
    if whole <= 0:
        return [0] * len(parts)
    ends, total = [], 0.0
    for part in parts:
        total += max(0.0, part)
        ends.append(min(width, round(total / whole * width)))
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def progress_bar(share: float, *, width: int) -> str:
    """Draw the share that is done, 0 to 1."""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)
