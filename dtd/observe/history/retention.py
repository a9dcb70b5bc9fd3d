"""Retention of buckets: by age, and by the size that the operator allows.

Age: the rows of every step are kept for a week, coarser buckets longer; the coarsest levels have no
age.  Size: the largest job gives up its oldest rows of its finest level first, so that one job,
or one worker that floods its own, cannot push out the others.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dtd.observe.history.pyramid import LEVELS, width

DAY_S: Final = 86_400.0
KEPT_S: Final = (7 * DAY_S, 30 * DAY_S, 180 * DAY_S)
"""Ages at which buckets of the finest levels are removed; others stay as long as they fit."""

GROWING: Final = 64
"""Newest buckets of each level that are never removed: a job may have to go back over them."""

SHARE: Final = 8
"""One removal takes one part in so many of a level's positions."""


class Extent(NamedTuple):
    """The stored buckets of a track at one level.

    Attributes:
        track: its number.
        job: the job's number.
        level: the level.
        first: the first bucket.
        newest: the last one.
        size_bytes: of all of them.
    """

    track: int
    job: int
    level: int
    first: int
    newest: int
    size_bytes: int


class Removal(NamedTuple):
    """The buckets of a level below `below` are to be removed."""

    track: int
    level: int
    below: int


def aligned(level: int, position: int) -> int:
    """The last bucket of a level, at or before a position, with which one of the next begins."""
    above = width(min(level + 1, LEVELS - 1))
    return position // above * above // width(level)


def outdated(extent: Extent, positions: Sequence[int]) -> Removal | None:
    """Return the removal of the buckets that are too old; None if there are none.

    Args:
        extent: of one level.
        positions: of each level that has an age, the first position that is young enough.
    """
    if extent.level >= len(positions):
        return None
    below = aligned(extent.level, positions[extent.level])
    below = min(below, _removable(extent))
    return Removal(extent.track, extent.level, below) if below > extent.first else None


def to_shrink(extents: Sequence[Extent]) -> Removal | None:
    """Return the next removal when the store is too large; None if nothing can be spared."""
    sizes: dict[int, int] = {}
    for one in extents:
        sizes[one.job] = sizes.get(one.job, 0) + one.size_bytes
    spare = [one for one in extents if one.level < LEVELS - 1 and _removable(one) > one.first]
    if not spare:
        return None
    chosen = min(spare, key=lambda one: (-sizes[one.job], one.level, -one.size_bytes, one.track))
    step = max(1, (chosen.newest - chosen.first) // SHARE)
    wanted = aligned(chosen.level, (chosen.first + step) * width(chosen.level))
    nearest = aligned(chosen.level, chosen.first * width(chosen.level) + width(chosen.level + 1))
    return Removal(chosen.track, chosen.level, min(max(wanted, nearest), _removable(chosen)))


def to_forget(last_written_s: Mapping[int, float], writing: int) -> int | None:
    """The job to forget when no rows can be spared: the oldest but the one that is written."""
    others = [job for job in last_written_s if job != writing]
    return min(others, key=lambda job: (last_written_s[job], job), default=None)


def _removable(extent: Extent) -> int:
    """The bucket below which everything may go."""
    newest = (extent.newest - GROWING) * width(extent.level)
    return aligned(extent.level, max(0, newest))
