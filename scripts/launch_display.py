"""Progress of a local run on stderr: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from dtd.ctl import figures, output
from dtd.shown import escaped

LINE_EVERY_S: Final = 5.0

Status = Mapping[str, Any]


class Display(Protocol):
    """Where progress is shown."""

    def update(self, status: Status) -> None:
        """Show a new status."""
        ...

    def say(self, text: str) -> None:
        """Show a sentence that stays."""
        ...


def progress_words(status: Status) -> str:
    """Loss, rate and workers of a job, or why it waits."""
    job = status["job"]
    if job["state"] != "running":
        return f"{job['state']}: {job['reason'] or status.get('explain') or '...'}"
    return (
        f"loss {figures.number(job['loss'])}  {figures.rate(job['samples_per_s'])}"
        f"  {figures.counted(job['world_size'], 'worker')}  generation {job['generation']}"
    )


class LineDisplay:
    """A line every few seconds, and at once when the state or the roster changes.

    What it said last is not said again.
    """

    def __init__(self) -> None:
        self._shown: tuple[Any, ...] = ()
        self._next_s = 0.0
        self._last = ""

    def update(self, status: Status) -> None:
        """Print a line if it is time for one."""
        job, now_s = status["job"], time.monotonic()
        if job is None:
            return
        state = (job["state"], job["generation"], job["world_size"])
        if state != self._shown or now_s >= self._next_s:
            self._shown, self._next_s = state, now_s + LINE_EVERY_S
            step = figures.steps(job["step"], job["total_steps"])
            line = f"step {step}  epoch {job['epoch']}  {progress_words(status)}"
            if line != self._last:
                self._last = line
                self.say(line)

    def say(self, text: str) -> None:
        """Print a line."""
        output.say(text)


class BarDisplay:
    """A live progress bar; made by `open_display`."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._bar = progress.add_task("starting", total=None, words="")

    def update(self, status: Status) -> None:
        """Move the bar."""
        job = status["job"]
        if job is not None:
            self._progress.update(
                self._bar,
                description=job["id"],
                completed=job["step"],
                total=job["total_steps"] or None,
                words=progress_words(status),
            )

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(escaped(text), markup=False, highlight=False)


@contextmanager
def open_display() -> Iterator[Display]:
    """The display that suits stderr, while the run lasts."""
    if not sys.stderr.isatty():
        yield LineDisplay()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield BarDisplay(progress)
