"""Two threads that take turns: the user's, which runs the loop, and the training thread.

    user: next(batches) ...... forward, backward() ............. clip, optimizer.step() ....
    training:          rows                     ring, vote, commit                  update

Only one of the two runs at a time, as with coroutines, so neither needs a lock for model, gradients
or optimizer.  The user's thread *arrives* at one of four points and is blocked there until the
training thread lets it go on.  The training thread waits for it at the point where it needs it
(`dtd.own_loop.task`); whatever happens meanwhile, such as a lost worker or another generation,
happens while the user's thread stands still.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, Final

_HERE: Final = str(Path(__file__).parent)

_waits_for: dict[int, int] = {}
"""Threads that wait for their turn, by identifier, and those whose turn it is."""


def turn_of(thread: int) -> int:
    """Return the thread that a thread waits for; itself if it waits for none."""
    return _waits_for.get(thread, thread)


class Point(Enum):
    """A point of the user's loop at which it waits for the training thread."""

    NEXT = "the next batch"
    BACKWARD = "backward()"
    STEP = "optimizer.step()"
    LEFT = "the end of the run"


@dataclass(slots=True, eq=False)
class Arrival:
    """The user's thread is at a point.

    Attributes:
        point: which one.
        value: the loss at BACKWARD, the optimizer's name at STEP, an exception or None at LEFT.
        place: "file.py:12", the line of the user's code.
        taken: the training thread has used it; it still has to let the user's thread go on.
    """

    point: Point
    value: Any
    place: str
    taken: bool = False


class Turns:
    """The turns of one run; made by the user's thread.

    Attributes:
        on_left: called in the user's thread, with the reason, before it arrives at the end of the
            run; the training thread may be waiting for something else then.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._user = threading.get_ident()
        self._arrival: Arrival | None = None
        self._seen: Arrival | None = None
        self._end: Arrival | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self.on_left: Callable[[BaseException | None], None] = lambda _: None

    # --- the user's thread -------------------------------------------------------------------

    def arrive(self, point: Point, value: Any = None) -> Any:
        """Arrive at a point; returns the training thread's answer when it is this thread's turn.

        Raises:
            BaseException: the training has failed with it.
        """
        if point is Point.LEFT:
            self.on_left(value)
        arrival = Arrival(point, value, place_in_user_code())
        with self._changed:
            if self._error is None:
                self._arrival = arrival
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._arrival is not arrival or self._error)
            if self._error is not None:
                raise self._error
            answer, self._answer = self._answer, None
            return answer

    # --- the training thread -----------------------------------------------------------------

    @property
    def place(self) -> str:
        """The line of the user's code at which its thread was seen last; "" if it never was."""
        return self._seen.place if self._seen is not None else ""

    def arrival(self) -> Arrival:
        """Wait until the user's thread is at a point; once the run was left, at its end."""
        own = threading.get_ident()
        with self._changed:
            _waits_for[own] = self._user
            self._changed.wait_for(lambda: self._arrival or self._end)
            del _waits_for[own]
            self._seen = self._arrival or self._end
            assert self._seen is not None
            return self._seen

    def go_on(self, answer: Any = None) -> None:
        """Let the user's thread go on, with an answer, from where it was seen.

        An interrupt may have taken it from there to the end of the run.
        """
        with self._changed:
            if self._seen is not None and self._arrival is self._seen:
                self._end = self._seen if self._seen.point is Point.LEFT else None
                self._arrival, self._answer = None, answer
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The training is over: the user's thread, now or when it arrives, raises this."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


def place_in_user_code() -> str:
    """Return file and line of the innermost frame outside of dtd and torch; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a whole stack takes 100 times as long
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HERE) and "/torch/" not in file:
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
