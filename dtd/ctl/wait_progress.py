"""A job's progress on stderr while a command waits for its end: a bar, or a line a minute."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import Answer, ask
from dtd.ctl.settings import Settings
from dtd.errors import DtdError
from dtd.shown import one_line
from dtd.wire import messages as m

BAR_EVERY_S: Final = 1.0
LINE_EVERY_S: Final = 60.0


class WaitProgress:
    """Shows one job; what cannot be asked for is shown the next time.

    Args:
        settings: of dtdctl.
        job: its id.

    Attributes:
        every_s: how often `show` is to be called.
    """

    def __init__(self, settings: Settings, job: str) -> None:
        self._settings = settings
        self._job = job
        self._bar: Any = None
        self._is_terminal = output.wants_colour(sys.stderr)
        self.every_s = BAR_EVERY_S if self._is_terminal else LINE_EVERY_S

    def show(self) -> None:
        """Ask how far the job is, and show it."""
        status: Answer = {}
        with contextlib.suppress(DtdError):
            status = ask(self._settings, m.GetStatus())
        found = [one for one in (status.get("job"), *status.get("jobs", ())) if one is not None]
        job = next((one for one in found if one["id"] == self._job), None)
        if job is None:
            if self._job in status.get("queue", ()):
                self._say("queued", 0, 0)
            return
        words = f"{job['state']}, loss {figures.number(job['loss'])}"
        words += f", {figures.rate(job['samples_per_s'])}"
        self._say(words, job["step"], job["total_steps"])

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def _say(self, words: str, step: int, total: int) -> None:
        if not self._is_terminal:
            output.say(f"job {self._job}: step {figures.steps(step, total)}, {words}")
            return
        if self._bar is None:
            self._bar = _bar(self._job)
        self._bar.update(0, completed=step, total=total or None, words=one_line(words))


def _bar(job: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    bar = Progress(
        *columns,
        TextColumn("{task.fields[words]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(one_line(job), total=None, words="")
    bar.start()
    return bar
