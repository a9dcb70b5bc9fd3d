"""Output of a local run: progress on stderr while it lasts, then a JSON object or a few lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from dtd.ctl import output
from dtd.text import figures
from dtd.text.shown import counted, escaped
from scripts.cluster.networks import COORDINATOR

# --- progress: a live bar on a terminal, a line now and then elsewhere ----------------------------


LINE_EVERY_S: Final = 5.0

Status = Mapping[str, Any]


class Display(Protocol):
    """The display of progress."""

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
        f"  {figures.ranks(job)}  generation {job['generation']}"
    )


class LineDisplay:
    """A line every few seconds, and at once when the state or the roster changes.

    A line that equals the last one is left out.
    """

    def __init__(self) -> None:
        self._shown: tuple[Any, ...] = ()
        self._next_s = 0.0
        self._last = ""

    def update(self, status: Status) -> None:
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
        output.say(text)


class BarDisplay:
    """A live progress bar; made by `open_display`."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._bar = progress.add_task("starting", total=None, words="")

    def update(self, status: Status) -> None:
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
        console = self._progress.console
        console.print(escaped(text), markup=False, highlight=False, soft_wrap=True)


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


# --- result ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """Result of a local run.

    Attributes:
        job: its id.
        state: done, failed or cancelled.
        reason: why, when it is not done.
        result: the coordinator's record of a done job; may be empty otherwise.
        last: the job part of the last status seen; may be empty.
        restarts: restarts of each daemon, by name; those without any may lack.
        took_s: from submission to the end.
        directory: where logs and checkpoints are kept; None when nothing is.
        weights: those of the newest checkpoint; None when there is none.
        web: URL of the web page while the run lasted; empty when there was none.
    """

    job: str
    state: str
    reason: str
    result: Mapping[str, Any]
    last: Mapping[str, Any]
    restarts: Mapping[str, int]
    took_s: float
    directory: Path | None = None
    weights: Path | None = None
    web: str = ""


def summary_object(run: LocalRun) -> dict[str, Any]:
    """The one object that `--json` prints; unknown values are null."""
    last, result = run.last, run.result
    of_workers = {name: times for name, times in run.restarts.items() if name != COORDINATOR}
    return {
        "job": run.job,
        "state": run.state,
        "world_size": result.get("world_size", last.get("world_size")),
        "servers": result.get("servers", last.get("servers", 0)),
        "steps": result.get("steps", last.get("step")),
        "epochs": result.get("epochs", last.get("epoch")),
        "train_loss": result.get("train_loss", last.get("loss")),
        "eval_loss": result.get("eval_loss"),
        "eval_accuracy": result.get("eval_accuracy"),
        "samples_per_s": result.get("samples_per_s", last.get("samples_per_s")),
        "replica_digests": result.get("replica_digests", {}),
        "steps_lost": result.get("steps_lost", last.get("steps_lost")),
        "rows_missing": result.get("rows_missing"),
        "rows_repeated": result.get("rows_repeated"),
        "restarts": sum(of_workers.values()),
        "restarts_of": dict(run.restarts),
        "directory": None if run.directory is None else str(run.directory),
        "weights": None if run.weights is None else str(run.weights),
        "ended_early": result.get("ended_early", ""),
        "web": run.web or None,
    }


def summary_lines(run: LocalRun) -> list[str]:
    """The same for people."""
    values = summary_object(run)
    head = (
        f"{run.job} is {run.state}: {_count(values['steps'])} steps,"
        f" {_count(values['epochs'])} epochs in {figures.duration(run.took_s)}"
        f" on {_ranks(values)}"
    )
    rows = [
        ("train loss", figures.number(values["train_loss"])),
        ("eval loss", figures.number(values["eval_loss"])),
        ("accuracy", _percent(values["eval_accuracy"])),
        ("throughput", figures.rate(values["samples_per_s"])),
        ("replicas", _replica_words(values["replica_digests"])),
        ("steps lost", _count(values["steps_lost"])),
        (
            "rows",
            f"{_count(values['rows_missing'])} missing, {_count(values['rows_repeated'])} twice",
        ),
        ("restarts", _restart_words(run.restarts)),
        ("kept in", str(run.directory or "nowhere (--discard)")),
    ]
    if values["ended_early"]:
        rows.insert(0, ("ended early", values["ended_early"]))
    if run.weights is not None:
        rows.append(("weights", str(run.weights)))
    if run.directory is not None and run.web:
        rows.append(("look again", f"python -m scripts.launch_local --show {run.directory}"))
    return [head, *(f"  {label:<11} {text}" for label, text in rows)]


def _percent(share: float | None) -> str:
    return figures.NOTHING if share is None else f"{100 * share:.1f} %"


def _ranks(values: Mapping[str, Any]) -> str:
    if values["world_size"] is None:
        return f"{figures.NOTHING} workers"
    return figures.ranks(values)


def _count(value: int | None) -> str:
    return figures.NOTHING if value is None else str(value)


def _restart_words(restarts: Mapping[str, int]) -> str:
    each = [f"{name} {counted(times, 'time')}" for name, times in sorted(restarts.items())]
    return ", ".join(each) or "none"


def _replica_words(digests: Mapping[str, str]) -> str:
    kinds = set(digests.values())
    if not kinds:
        return figures.NOTHING
    if len(kinds) == 1:
        return f"{len(digests)}, all equal ({kinds.pop()[:16]})"
    return f"{len(digests)}, NOT equal: {len(kinds)} different digests"
