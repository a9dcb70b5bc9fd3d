"""Lines that the job's own code has printed, kept until the coordinator can be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES

log = structlog.get_logger()

MAX_WAITING_LINES: Final = 1000
"""The newest are kept."""


class JobLines:
    """The lines of one process; belongs to the event loop.

    Args:
        send: sends a message and its payload to the coordinator.
    """

    def __init__(self, send: Callable[[m.Message, bytes], None]) -> None:
        self._send = send
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING_LINES)

    def take(self, line: str) -> None:
        """One more."""
        self._waiting.append(line)

    def tell(self, job: str, rank: int) -> None:
        """Log and send what waits."""
        if not self._waiting:
            return
        lines = [*self._waiting]
        self._waiting.clear()
        for line in lines:
            log.info("job_output", line=line)
        text = "\n".join(lines).encode("utf-8", "replace")[:DEFAULT_MAX_PAYLOAD_BYTES]
        self._send(m.JobOutput(job=job, rank=rank), text)
