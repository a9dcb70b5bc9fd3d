"""The time by which a cluster's credentials and tokens end (`dtd.security.trusted_time`).

What is certain of it is kept in a file, so that a clock which is set back between two starts brings
nothing to life again.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from dtd.errors import ConfigError
from dtd.security.private_files import read_records, write_records
from dtd.security.trusted_time import TrustedTime

FILE_NAME: Final = "clock.json"


def steady_s() -> float:
    """A clock that nobody sets, and that goes on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Unix time that does not jump; may be asked from any thread.

    Args:
        path: of the file that keeps what is certain; need not exist.

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
        """Unix time."""
        with self._lock:
            return self._time.now_s(time.time(), steady_s())

    def doubt_s(self) -> float:
        """How far the host's clock is off, while that is doubted; else 0."""
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
