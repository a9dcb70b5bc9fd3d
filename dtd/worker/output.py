"""What the job's own code prints, line by line, on its way to `dtdctl logs`.

The daemon logs to the stream it had at its start; once a job begins, `sys.stdout` and `sys.stderr`
are replaced, so that a `print` in a task is neither lost nor mixed into the daemon's JSON.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Final

MAX_LINE_CHARACTERS: Final = 4096


class LineStream(io.TextIOBase):
    """A text stream that hands over whole lines; any thread may write.

    Args:
        take: called with one line, without its end.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._rest = ""

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str) -> int:
        """Take text; complete lines go on at once, over-long ones are cut."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if len(self._rest) > MAX_LINE_CHARACTERS:
                lines.append(self._rest)
                self._rest = ""
        for line in lines:
            self._take(line[:MAX_LINE_CHARACTERS])
        return len(text)


def capture_output(take: Callable[[str], None]) -> None:
    """From now on, hand over what this process prints."""
    sys.stdout = LineStream(take)
    sys.stderr = LineStream(take)
