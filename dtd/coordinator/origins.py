"""What a job takes over of another one, and whether it can.  Pure.

Here is judged what the two jobs' settings tell; whether a state fits a model is found out where
both are, by the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.core.membership.transitions import JobState
from dtd.errors import RequestRefused
from dtd.job.differences import Difference, obstacles, shown_value

RESUME: Final = "resume"
WEIGHTS: Final = "weights"
MODES: Final = (RESUME, WEIGHTS)


def origin_mode(asked: str, parent_state: str) -> str:
    """Whether everything is taken over, or the weights only.

    Args:
        asked: by whoever submits; empty: the weights of a job that is done, everything of another.
        parent_state: how the job that is started from stands.

    Raises:
        RequestRefused: what is asked for is neither.
    """
    if asked and asked not in MODES:
        raise RequestRefused(f"{asked!r} is not one of {', '.join(MODES)}")
    return asked or (WEIGHTS if parent_state == JobState.DONE else RESUME)


def check_same_course(differs: Sequence[Difference], parent: str) -> None:
    """Refuse to take a whole state over into a job that would go on with it otherwise than it says.

    Raises:
        RequestRefused: settings differ that must be equal; all are named with both values.
    """
    found = obstacles(differs)
    if found:
        named = ", ".join(
            f"{setting} = {shown_value(now)} (was {shown_value(was)})"
            for setting, was, now in found
        )
        raise RequestRefused(
            f"the whole state of {parent} cannot be taken over with other settings: {named}",
            remedy="set them as they were, or start from the weights alone: --weights-from",
        )
