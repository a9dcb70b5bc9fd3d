"""Judgements by the clock: silent workers, pauses of this process itself, and the straggler."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.wire import messages as m

# --- failure detector: workers that have been silent for too long ------------------------------
#
# Silence counts only while this process ran: when nothing was handled for longer than a tick, it
# was stopped or starved, and the gap is deducted from every worker's silence.  Healthy workers are
# late where many share few processors; so the limit grows with the pauses that were no deaths: the
# worker's own, and those that half of the workers make.  Pure; times are seconds of any monotonic
# clock.

PAUSES: Final = 3.0
"""A worker may be silent for this many times the longest recent pause."""
MOST_TIMEOUTS: Final = 10.0
HALF_LIFE_S: Final = 30.0
"""A pause counts half as much after this time."""


class Detector:
    """The last sign of life of every watched worker.

    Args:
        timeout_s: silence after which a worker is suspected.
        tick_s: the detector is called at least this often; longer gaps are pauses of this process.
    """

    def __init__(self, *, timeout_s: float, tick_s: float) -> None:
        self.timeout_s = timeout_s
        self.tick_s = tick_s
        self._heard: dict[str, float] = {}
        self._patience: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._look_at = -math.inf
        self._clock = PauseDetector()

    def watch(self, name: str, now: float, *, timeout_s: float | None = None) -> None:
        """Begin or continue watching; workers that warm up have a longer `timeout_s`."""
        self._heard[name] = now
        self._pauses.pop(name, None)
        self._patience[name] = self.timeout_s if timeout_s is None else timeout_s

    def heard(self, name: str, now: float) -> None:
        """Record a sign of life."""
        before = self._heard.get(name)
        if before is not None:
            pause_s = now - before
            faded_s = self._pauses.get(name, 0.0) * 0.5 ** (pause_s / HALF_LIFE_S)
            self._heard[name], self._pauses[name] = now, max(pause_s, faded_s)

    def forget(self, name: str) -> None:
        """Stop watching."""
        for kept in (self._heard, self._patience, self._pauses):
            kept.pop(name, None)

    def pause_s(self, name: str) -> float:
        """The longest recent pause of a worker, or of half of the workers if that is longer."""
        pauses_s = [self._pauses.get(one, 0.0) for one in self._heard]
        usual_s = statistics.median_low(pauses_s) if pauses_s else 0.0
        return max(usual_s, self._pauses.get(name, 0.0))

    def silence_s(self, name: str, now: float) -> float:
        """Seconds since the last sign of life; 0 for a worker that is not watched."""
        return max(0.0, now - self._heard.get(name, now))

    def awake(self, now: float) -> float:
        """Record that this process runs; returns how long it was paused, which is not silence.

        While no worker is watched there is no tick, and a long interval means nothing.
        """
        gap = self._clock.look(now, tick_s=self.tick_s)
        if not self._heard:
            return 0.0
        if gap:
            self._heard = {name: min(now, heard + gap) for name, heard in self._heard.items()}
        return gap

    def suspects(self, now: float) -> list[tuple[str, str]]:
        """(name, reason) of every worker silent for longer than its limit, in name order."""
        self.awake(now)
        self._look_at = now + self.tick_s
        late = sorted(name for name, at in self._heard.items() if now - at > self._patience[name])
        limits = {name: self._limit_s(name) for name in late}
        silent = [(name, now - self._heard[name]) for name in late]
        return [
            (name, f"no heartbeat for {silent_s:.1f} s (limit {limits[name]:.3g} s)")
            for name, silent_s in silent
            if silent_s > limits[name]
        ]

    def _limit_s(self, name: str) -> float:
        patience_s = self._patience[name]
        return min(max(patience_s, PAUSES * self.pause_s(name)), MOST_TIMEOUTS * patience_s)

    def next_deadline(self, now: float) -> float | None:
        """The time of the next check; a check that is overdue is due now."""
        return max(now, self._look_at) if self._heard else None


# ---
# Whether this process itself ran: only then does the silence of a peer or a thread count.
#
# A process that was stopped, or whose machine slept, sees a long time between two consecutive
# checks.  Pure; times are seconds of any monotonic clock.


LATE_TICKS: Final = 2.0
"""A check that is later than this many ticks means that the process was paused."""


class PauseDetector:
    """Detects pauses of this process.

    Attributes:
        ran_until: time of the last check, up to which the process ran.
    """

    def __init__(self) -> None:
        self.ran_until = math.inf

    def look(self, now: float, *, tick_s: float) -> float:
        """Record that this process runs, and will check again within `tick_s`.

        Returns:
            How long it was paused before, in seconds.
        """
        stood_still_s = max(0.0, now - self.ran_until)
        self.ran_until = now + LATE_TICKS * tick_s
        return stood_still_s


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
