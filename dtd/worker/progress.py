"""Does the training thread get on?  Its own marks say so, and heartbeats carry the answer.

A thread that neither waits for the ring nor makes a mark is stuck in somebody's code.  How long it
may take between two marks is learned: ten times the longest gap so far, at least what the job
allows (`elastic.stall_timeout_s`); and before the first step of the process, which may compile
things, what a warm-up may take (`elastic.warmup_timeout_s`).  While the whole process stands still,
because somebody stopped it or the machine slept, its event loop does too: that time is no gap of
the thread's.
"""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import dtd
from dtd.core.own_clock import OwnClock

PATIENCE_GAPS: Final = 10.0
TELLING_S: Final = 1.0
"""A stall this long is worth saying where."""

MAX_WHERE_CHARACTERS: Final = 200

_LIBRARIES: Final = ("site-packages", "dist-packages", "torch")
_DTD: Final = Path(dtd.__file__).parent
_TASKS: Final = _DTD / "tasks"  # count as the user's own
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))


@dataclass(slots=True)
class ProgressWatch:
    """Marks of one training thread.

    `mark` is called by the training thread, the rest on the event loop; a float is written at once.

    Attributes:
        first_patience_s: what may pass before the first committed step.
        least_patience_s: what may pass at any time.
    """

    first_patience_s: float
    least_patience_s: float
    training: bool = False
    stepped: bool = False
    longest_gap_s: float = 0.0
    marked_at: float = 0.0
    _clock: OwnClock = field(default_factory=OwnClock)

    def begin(self, now: float) -> None:
        """The thread takes part in a generation from now on."""
        self.marked_at = now
        self.training = True

    def end(self) -> None:
        """The thread waits for its next generation."""
        self.training = False

    def mark(self, now: float) -> None:
        """The thread got on."""
        gap_s = min(now, self._clock.ran_until) - self.marked_at
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        self.marked_at = now

    def committed(self) -> None:
        """The thread has committed a step: what it can take is known from here on."""
        if not self.stepped:
            self.longest_gap_s, self.stepped = 0.0, True

    def stalled_s(self, now: float) -> float:
        """Seconds without a mark; 0 outside a generation."""
        return max(0.0, now - self.marked_at) if self.training else 0.0

    def patience_s(self) -> float:
        """Seconds without a mark after which the thread counts as stuck."""
        if not self.stepped:
            return self.first_patience_s
        return max(self.least_patience_s, PATIENCE_GAPS * self.longest_gap_s)

    def heartbeat_fields(
        self, now: float, *, interval_s: float, waits: bool, thread_ident: int | None
    ) -> dict[str, Any]:
        """What a heartbeat says; a thread that waits for the ring has others to blame, if any.

        Args:
            now: a reading of the clock of the marks.
            interval_s: when the next heartbeat follows.
            waits: the thread waits for the ring.
            thread_ident: of the thread; None when there is none.
        """
        stood_still_s = self._clock.look(now, tick_s=interval_s)
        if waits:
            self.marked_at = now
        elif stood_still_s:  # else the mark is left alone: the thread may just be making one
            self.marked_at = min(now, self.marked_at + stood_still_s)
        stalled_s = self.stalled_s(now)
        where = where_is(thread_ident) if stalled_s > TELLING_S else ""
        return {
            "stalled_s": stalled_s,
            "patience_s": self.patience_s(),
            "where": where[:MAX_WHERE_CHARACTERS],
        }


def where_is(thread_ident: int | None) -> str:
    """The line that a thread executes: the innermost of the user's own, if there is one."""
    frame = sys._current_frames().get(thread_ident or 0)  # noqa: SLF001 - its documented name
    if frame is None:
        return ""
    innermost = frame
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return _in_words(frame or innermost)


def _is_library(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    if not file.is_absolute():
        return frame.f_code.co_filename.startswith("<")
    if file.is_relative_to(_TASKS):
        return False
    installed = any(name in file.parts for name in _LIBRARIES)
    return installed or file.is_relative_to(_DTD) or file.is_relative_to(_STANDARD)


def _in_words(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
