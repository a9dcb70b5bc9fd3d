"""Passes lines that the job's own code prints to `dtdctl logs`.

The daemon logs to the stream it had at its start; once a job begins, `sys.stdout` and `sys.stderr`
are replaced, so that a `print` in a task is neither lost nor mixed into the daemon's JSON.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES

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


# --- lines that the job's own code has printed, kept until the coordinator can be told ---------
#
# They are sent together, at once, so that whoever waits for a job's end finds all that was printed
# before it; this daemon's own log gets them a slice at a time, so that a job that prints a lot
# holds up neither heartbeats nor the ring.


log = structlog.get_logger()

MAX_WAITING_LINES: Final = 1000
"""The newest are kept."""

MAX_UNLOGGED_LINES: Final = 4 * MAX_WAITING_LINES
"""The newest are kept: of a flood of the longest lines a slow disk may not see all."""

SLICE_S: Final = 0.002
"""After so long the event loop gets its turn; the longest line takes about 0.1 ms."""


class JobLines:
    """The lines of one process; belongs to the event loop.

    Args:
        send: sends a message and its payload to the coordinator.
        clock: the time in seconds.
    """

    def __init__(
        self,
        send: Callable[[m.Message, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING_LINES)
        self._unlogged: deque[str] = deque(maxlen=MAX_UNLOGGED_LINES)
        self._logging: asyncio.Task[None] | None = None

    def take(self, line: str) -> None:
        """One more."""
        self._waiting.append(line)

    def tell(self, job: str, rank: int) -> None:
        """Send what waits, and log it: what takes longer than a slice is left to a task."""
        if not self._waiting:
            return
        self._send(m.JobOutput(job=job, rank=rank), _payload(self._waiting))
        self._unlogged += self._waiting
        self._waiting.clear()
        if self._logging is None:
            self._log_slice()
        if self._unlogged and self._logging is None:
            self._logging = asyncio.create_task(self._log_slices())

    def _log_slice(self) -> None:
        end_s = self._clock() + SLICE_S
        while self._unlogged:
            self._log_line()
            if self._clock() >= end_s:
                return

    def _log_line(self) -> None:
        log.info("job_output", line=self._unlogged.popleft())

    async def _log_slices(self) -> None:
        try:
            while self._unlogged:
                await asyncio.sleep(0)
                self._log_slice()
        finally:
            while self._unlogged:  # cancelled: the process ends, and nothing waits for the loop
                self._log_line()
            self._logging = None


def _payload(lines: Iterable[str]) -> bytes:
    """Text of the first lines, as much as a frame holds."""
    kept: list[str] = []
    room = DEFAULT_MAX_PAYLOAD_BYTES
    for line in lines:
        if room <= 0:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(kept).encode("utf-8", "replace")[:DEFAULT_MAX_PAYLOAD_BYTES]
