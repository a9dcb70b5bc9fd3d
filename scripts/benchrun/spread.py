"""Medians, how far figures lie around them, and ratios of two sides that were measured in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Some measurements of one thing.

    Attributes:
        median: of all.
        mad: median absolute deviation from it.
        lowest: the least of all.
        highest: the greatest.
    """

    median: float
    mad: float
    lowest: float
    highest: float

    @property
    def relative(self) -> float:
        """The deviation as a share of the median."""
        return self.mad / self.median if self.median else math.nan


def spread(values: Sequence[float]) -> Spread:
    """Summarise at least one value."""
    median = statistics.median(values)
    return Spread(
        median=median,
        mad=statistics.median(abs(value - median) for value in values),
        lowest=min(values),
        highest=max(values),
    )


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The ratio of two sides, round by round, so that what both of them met cancels out."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """Who is measured when: A B, B A, A B ... so that a drift hurts all alike."""
    return [*names] if turn % 2 == 0 else [*reversed(names)]
