"""Finds the worker that slows the others down, and its cost in each step.

All members wait for the one that works longest in a step.  One step proves little, so a
member is named only after having been the slowest for a while, and stays named until it has not
been for a while.  Pure; only the status shows it, no decision depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.wire import messages as m

# A straggler is named when its cost exceeds both of these; less is noise.
STRAGGLER_SHARE: Final = 0.05
STRAGGLER_S: Final = 0.001
KEPT_SHARE: Final = 0.5
"""A named straggler stays named while its cost exceeds this share of the threshold."""
HOLD_S: Final = 3.0
LOOK_EVERY_S: Final = 0.5

Beats = Mapping[str, m.Heartbeat]


def cost_s(beats: Beats, name: str) -> float:
    """Return a member's working time in a step beyond the median of the others, in seconds.

    Args:
        beats: the running members' last heartbeats by name.
        name: one of them; there must be at least one other.
    """
    usual_s = _median([beat.own_s for other, beat in beats.items() if other != name])
    return beats[name].own_s - usual_s


def straggler(beats: Beats) -> str:
    """The straggler by these heartbeats: its cost exceeds 5 % of a step, and a millisecond.

    Args:
        beats: the running members' last heartbeats by name.
    """
    measured = _measured(beats)
    if len(measured) < 2:
        return ""
    slowest = max(sorted(measured), key=lambda name: measured[name].own_s)
    return slowest if cost_s(measured, slowest) > _threshold_s(measured) else ""


@dataclass(slots=True)
class StragglerWatch:
    """Tracks the slowest member over time, so that the named one does not change constantly."""

    name: str = ""
    _rival: str = ""
    _rival_since: float = 0.0
    _look_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """Whether the next check is due."""
        return now >= self._look_at

    def look(self, beats: Beats, now: float) -> None:
        """Take the running members' last heartbeats into account."""
        self._look_at = now + LOOK_EVERY_S
        found = straggler(beats)
        if not found and self._still_costs(beats):
            found = self.name
        if found != self._rival:
            self._rival, self._rival_since = found, now
        if found != self.name and now - self._rival_since >= HOLD_S:
            self.name = found

    def named(self, beats: Beats) -> dict[str, Any] | None:
        """The straggler and what it costs now, as the status shows it."""
        measured = _measured(beats)
        if self.name not in measured or len(measured) < 2:
            return None
        cost = cost_s(measured, self.name)
        return {"name": self.name, "cost_s": cost} if cost > 0 else None

    def _still_costs(self, beats: Beats) -> bool:
        measured = _measured(beats)
        if self.name not in measured or len(measured) < 2:
            return False
        return cost_s(measured, self.name) > KEPT_SHARE * _threshold_s(measured)


def _measured(beats: Beats) -> dict[str, m.Heartbeat]:
    return {name: beat for name, beat in beats.items() if beat.own_s > 0 and beat.step_s > 0}


def _threshold_s(measured: Beats) -> float:
    step_s = max(beat.step_s for beat in measured.values())
    return max(STRAGGLER_S, STRAGGLER_SHARE * step_s)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
