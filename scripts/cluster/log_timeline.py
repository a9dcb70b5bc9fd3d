"""The daemons' JSON logs, read while they grow, and a timeline of them.

`LogTail` makes one stream of lines with times of one clock.  `LogTimeline` keeps who is in which
generation, who has committed which step, and when: what figures and checks need afterwards.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from scripts.cluster.networks import COORDINATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a daemon's log, at a time in seconds since the epoch."""

    daemon: str
    at_s: float
    event: str
    fields: Mapping[str, Any]


class LogTail:
    """Reads new lines of some logs.

    Attributes:
        unread: lines that are no JSON, by daemon: tracebacks and what libraries print.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._files = {name: os.open(path, os.O_RDONLY) for name, path in paths.items()}
        self._rests = dict.fromkeys(paths, b"")
        self.unread: list[tuple[str, str]] = []

    def poll(self) -> list[Line]:
        """Lines that were completed since the last time, oldest first."""
        found: list[Line] = []
        for name, file in self._files.items():
            while piece := os.read(file, 1 << 20):
                *whole, self._rests[name] = (self._rests[name] + piece).split(b"\n")
                found += [line for text in whole if (line := self._line(name, text)) is not None]
        return sorted(found, key=lambda line: line.at_s)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)

    def _line(self, name: str, text: bytes) -> Line | None:
        try:
            fields = json.loads(text)
            at_s = datetime.fromisoformat(fields.pop("ts")).timestamp()
            return Line(daemon=name, at_s=at_s, event=fields.pop("event"), fields=fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.unread.append((name, text.decode(errors="replace")))
            return None


USUAL_STEP_S: Final = 0.1
RECENT_COMMITS: Final = 400
LIVES: Final = ("worker_started", "worker_ends", "state_received")
ENDS: Final = ("job_done", "job_failed", "job_cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A worker committed a step, or a round of several up to that step.

    `step_s` is 0 if it did so at a take-over, after the step's generation had ended.
    """

    at_s: float
    worker: str
    job: str
    generation: int
    step: int
    loss: float
    grad_norm: float
    step_s: float
    steps: int = 1


class LogTimeline:
    """The run so far.

    Attributes:
        commits: all of them, by time.
        decisions: the coordinator's lines, by time.
        errors: lines of level error, of all daemons.
        lives: lines that tell of a worker's start, of state that it received, and of its end.
        moments: each worker's last line.
        last_s: when each worker last wrote a line of each kind, by (worker, event).
        rosters: by generation, of the newest job.
        assigned_s: when each of those generations was first heard of.
        jobs_ended: how each ended job ended.
    """

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.decisions: list[Line] = []
        self.errors: list[Line] = []
        self.lives: list[Line] = []
        self.moments: dict[str, Line] = {}
        self.last_s: dict[tuple[str, str], float] = {}
        self.rosters: dict[int, tuple[str, ...]] = {}
        self.assigned_s: dict[int, float] = {}
        self.jobs_ended: dict[str, str] = {}
        self._last: dict[str, Commit] = {}

    def see(self, line: Line) -> None:
        if line.fields.get("level") == "error":
            self.errors.append(line)
        if line.daemon == COORDINATOR:
            self.decisions.append(line)
            if line.event in ENDS:
                self.jobs_ended[str(line.fields["job"])] = line.event.removeprefix("job_")
            return
        self.moments[line.daemon] = line
        self.last_s[line.daemon, line.event] = line.at_s
        if line.event == "step_committed":
            self._committed(line)
        elif line.event == "generation_assigned":
            generation = int(line.fields["generation"])
            self.rosters[generation] = tuple(line.fields["roster"])
            self.assigned_s.setdefault(generation, line.at_s)
        elif line.event in LIVES:
            if line.event != "state_received":
                self._last.pop(line.daemon, None)
            self.lives.append(line)

    def _committed(self, line: Line) -> None:
        fields = line.fields
        commit = Commit(
            at_s=line.at_s,
            worker=line.daemon,
            job=str(fields["job"]),
            generation=int(fields["generation"]),
            step=int(fields["step"]),
            loss=float(fields["loss"]),
            grad_norm=float(fields["grad_norm"]),
            step_s=float(fields["step_s"]),
            steps=int(fields.get("steps", 1)),
        )
        self.commits.append(commit)
        self._last[line.daemon] = commit

    @property
    def generation(self) -> int:
        """The newest generation that a worker was assigned to."""
        return max(self.rosters, default=0)

    @property
    def roster(self) -> tuple[str, ...]:
        return self.rosters.get(self.generation, ())

    def training(self) -> list[str]:
        """Members of the newest generation that have committed a step in it."""
        return [name for name in self.roster if self._has_committed(name)]

    def newest_with(self, names: Iterable[str], at_s: float) -> int:
        """Newest generation at that time with one of these in it; 0 is none."""
        wanted = set(names)
        return max(
            (
                generation
                for generation, roster in self.rosters.items()
                if wanted & set(roster) and self.assigned_s[generation] <= at_s
            ),
            default=0,
        )

    def last_commit(self, name: str = "") -> Commit | None:
        """The newest commit of a worker, or of all."""
        if name:
            return self._last.get(name)
        return self.commits[-1] if self.commits else None

    def step_s(self) -> float:
        """Median duration of recent steps."""
        return _median_step_s(self.commits[-RECENT_COMMITS:], USUAL_STEP_S)

    def median_step_s(self) -> float:
        """Median duration of all steps."""
        return _median_step_s(self.commits, 0.0)

    def _has_committed(self, name: str) -> bool:
        last = self._last.get(name)
        return last is not None and last.generation == self.generation


def _median_step_s(commits: Iterable[Commit], otherwise_s: float) -> float:
    measured = [commit.step_s for commit in commits if commit.step_s > 0]
    return statistics.median(measured) if measured else otherwise_s


# --- phase of a worker at some moment -------------------------------------------------------------


FORWARD_SHARE: Final = 1 / 3
BOUNDARY_S: Final = 0.05
"""So long after a step with a checkpoint or an evaluation, that is still under way."""

_BEFORE_TRAINING: Final = {
    "worker_started": "registering",
    "coordinator_connected": "registering",
    "coordinator_lost": "registering",
    "coordinator_unreachable": "registering",
    "job_prepared": "warming",
    "generation_assigned": "forming",
    "state_received": "forming",
    "evaluated": "evaluation",
    "checkpoint_saved": "checkpoint",
    "worker_ends": "leaving",
}


def phase_at(line: Line | None, at_s: float, *, eval_every: int, checkpoint_every: int) -> str:
    """The phase at a time after the worker's last line, or "unknown"."""
    if line is None:
        return "starting"
    if line.event != "step_committed":
        return _BEFORE_TRAINING.get(line.event, "unknown")
    if line.fields.get("step_s") == 0:  # committed at a take-over
        return "forming"
    since_s, step = at_s - line.at_s, int(line.fields["step"])
    steps = int(line.fields.get("steps", 1))
    if fell_due(step, steps, eval_every):
        return "evaluation"
    if fell_due(step, steps, checkpoint_every) and since_s < BOUNDARY_S:
        return "checkpoint"
    return _part_of_step(line.fields, since_s)


def fell_due(step: int, steps: int, every: int) -> bool:
    """Whether what happens every so many steps, 0 is never, was due in the steps up to this one."""
    return every > 0 and step // every > (step - steps) // every


def _part_of_step(record: Mapping[str, Any], since_s: float) -> str:
    compute_s = float(record["compute_s"])
    parts = (
        ("forward", float(record["data_s"]) + FORWARD_SHARE * compute_s),
        ("backward and reduce-scatter", (1 - FORWARD_SHARE) * compute_s),
        ("rest of the ring", float(record["exposed_s"])),
        ("optimizer", float(record["optimizer_s"])),
    )
    for name, lasts_s in parts:
        if since_s < lasts_s:
            return name
        since_s -= lasts_s
    return "rest of the ring"
