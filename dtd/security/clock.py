"""The time by which credentials and tokens end, safe from jumps of the system's clock.

The clock of a host can be set, by its operator, by a time server, or by somebody who poses as one.
A jump counts only once it has lasted an hour: until then time goes on from before, measured by what
cannot be set.  So a clock that is a year ahead for a moment ends nobody's credential, and one that
is set back brings none to life again.

What is certain of the time is kept in a file: a process that starts knows the latest time that the
one before it was sure of, so a clock that is set back between two starts is not believed either.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from dtd.errors import ConfigError
from dtd.security.private_files import read_records, write_records

FILE_NAME: Final = "clock.json"
SLACK_S: Final = 300.0
"""Most that a clock is corrected without being doubted."""
HOLD_S: Final = 3600.0
"""Time for which a jump is doubted."""


def steady_s() -> float:
    """A clock that nobody sets, and that goes on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Unix time that does not jump; may be asked from any thread.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        known_s = 0.0
        try:
            for record in read_records(path):
                known_s = max(known_s, float(record["certain_s"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path} is damaged: {error}", remedy="remove it; it only guards against old clocks"
            ) from None
        self._time = TrustedTime(time.time(), steady_s(), known_s=known_s)

    def now_s(self) -> float:
        with self._lock:
            return self._time.now_s(time.time(), steady_s())

    def doubt_s(self) -> float:
        """Return the error of the host's clock in seconds, while that is doubted; else 0."""
        self.now_s()
        return self._time.doubt_s()

    def keep(self) -> None:
        """Write down what is certain.  Blocking.

        Raises:
            ConfigError: it cannot be written.
        """
        certain_s = self._time.certain_s(steady_s())
        if certain_s:
            write_records(self._path, [{"certain_s": certain_s}])


class TrustedTime:
    """Two clocks as one; pure."""

    def __init__(self, wall_s: float, steady_s: float, *, known_s: float = 0.0) -> None:
        self._offset_s = max(wall_s, known_s) - steady_s
        self._began_s = steady_s
        self._doubted: tuple[float, float] | None = None  # since when, and by how much

    def now_s(self, wall_s: float, steady_s: float) -> float:
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
        """Return the error of the host's clock in seconds, while that is doubted; else 0."""
        return self._doubted[1] if self._doubted is not None else 0.0

    def certain_s(self, steady_s: float) -> float:
        """Unix time that is certainly reached, for the next process to know; 0: not yet.

        Not before the clock with which this process began has lasted.
        """
        if steady_s - self._began_s < HOLD_S:
            return 0.0
        return steady_s + self._offset_s
