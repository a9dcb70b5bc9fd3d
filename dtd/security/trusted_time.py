"""What time it is, for what ends by time: credentials and tokens.  Pure.

The clock of a host can be set, by its operator, by a time server, or by somebody who poses as one.
A jump counts only once it has lasted an hour: until then time goes on from before, measured by what
cannot be set.  So a clock that is a year ahead for a moment ends nobody's credential, and one that
is set back brings none to life again.  A process that starts knows the latest time that the one
before it was sure of.
"""

from __future__ import annotations

from typing import Final

SLACK_S: Final = 300.0
"""By so much a clock is corrected without being doubted."""
HOLD_S: Final = 3600.0
"""So long a jump is doubted."""


class TrustedTime:
    """Two clocks as one.

    Args:
        wall_s: what the host's clock shows, Unix seconds.
        steady_s: a clock that nobody sets, in seconds.
        known_s: Unix time that was certainly reached before; 0: not known.
    """

    def __init__(self, wall_s: float, steady_s: float, *, known_s: float = 0.0) -> None:
        self._offset_s = max(wall_s, known_s) - steady_s
        self._began_s = steady_s
        self._doubted: tuple[float, float] | None = None  # since when, and by how much

    def now_s(self, wall_s: float, steady_s: float) -> float:
        """Unix time, as both clocks together say."""
        ours_s = steady_s + self._offset_s
        off_s = wall_s - ours_s
        if abs(off_s) <= SLACK_S:
            self._offset_s, self._doubted = wall_s - steady_s, None
            return wall_s
        if self._doubted is None or abs(self._doubted[1] - off_s) > SLACK_S:
            self._doubted = steady_s, off_s
        if steady_s - self._doubted[0] < HOLD_S:
            return ours_s
        self._offset_s, self._doubted = wall_s - steady_s, None
        return wall_s

    def doubt_s(self) -> float:
        """How far the host's clock is off, while that is doubted; else 0."""
        return self._doubted[1] if self._doubted is not None else 0.0

    def certain_s(self, steady_s: float) -> float:
        """Unix time that is certainly reached, for the next process to know; 0: not yet.

        Not before the clock with which this process began has lasted.
        """
        if steady_s - self._began_s < HOLD_S:
            return 0.0
        return steady_s + self._offset_s
