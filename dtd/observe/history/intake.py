"""Intake of reported rows: they go behind the others, in place of some, or nowhere.

Steps that were lost are trained again by a later generation: its rows replace all from there on.
What is reported twice of one generation counts once.  A peer's rows are input: those that the
message's sender cannot know of are left out.  Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import Final

from dtd.observe.history.series import Kind
from dtd.wire.fields import MOST_SECONDS
from dtd.wire.step_rows import StepRow

MAX_TRACKS_OF_A_JOB: Final = 512
"""Workers and links together; what a job has beyond is not remembered."""

MAX_COLUMNS: Final = 64
"""Most columns of one track; only evaluations have names of their own."""


class Placement(enum.Enum):
    """The place of a row in its track."""

    APPENDED = enum.auto()
    REPLACES = enum.auto()
    LEFT_OUT = enum.auto()


def placement(
    kind: Kind, position: int, generation: int, *, newest: int, newest_generation: int
) -> Placement:
    """Return the place of a row in its track.

    Args:
        kind: the track's.
        position: the row's.
        generation: the generation that committed it.
        newest: the last position of the track.
        newest_generation: the latest generation that the track has rows of.
    """
    if position > newest:
        return Placement.APPENDED
    again = kind is Kind.STEPS and generation > newest_generation
    return Placement.REPLACES if again or kind is Kind.EVALUATIONS else Placement.LEFT_OUT


def believable(rows: Iterable[StepRow], *, step: int, generation: int) -> list[StepRow]:
    """The rows that the sender of a PROGRESS of this step and generation can have seen.

    Generations only increase, and so do the steps of one generation.
    """
    found: list[StepRow] = []
    before = (0, 0)
    for row in rows:
        key = (row.generation, row.step)
        times = row[9:15]
        sane = all(math.isfinite(one) and 0 <= one <= MOST_SECONDS for one in times)
        sane = sane and row.skipped <= 1 <= row.steps
        if sane and before < key and row.step <= step and row.generation <= generation:
            found.append(row)
            before = key
    return found


def widened(columns: Sequence[str], entry_columns: Sequence[str]) -> tuple[str, ...]:
    """A track's columns with those of a row that are new, as far as there is room for them."""
    known = set(columns)
    new = [name for name in entry_columns if name not in known]
    return (*columns, *new[: max(0, MAX_COLUMNS - len(columns))])
