"""What a local run came to: one JSON object for programs, a few lines for people.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtd.ctl import figures
from scripts.local_cluster import COORDINATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """How a local run ended.

    Attributes:
        job: its id.
        state: done, failed or cancelled.
        reason: why, when it is not done.
        result: the coordinator's record of a done job; may be empty otherwise.
        last: the job part of the last status seen; may be empty.
        restarts: how often each daemon was started again, by name; those that never were may lack.
        took_s: from submission to the end.
        directory: where logs and checkpoints are kept; None when nothing is.
        weights: those of the newest checkpoint; None when there is none.
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


def summary_object(run: LocalRun) -> dict[str, Any]:
    """The one object that `--json` prints; what is not known is null."""
    last, result = run.last, run.result
    of_workers = {name: times for name, times in run.restarts.items() if name != COORDINATOR}
    return {
        "job": run.job,
        "state": run.state,
        "world_size": result.get("world_size", last.get("world_size")),
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
    }


def summary_lines(run: LocalRun) -> list[str]:
    """The same for people."""
    values = summary_object(run)
    head = (
        f"{run.job} is {run.state}: {_count(values['steps'])} steps,"
        f" {_count(values['epochs'])} epochs in {figures.duration(run.took_s)}"
        f" on {_count(values['world_size'])} workers"
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
    return [head, *(f"  {label:<11} {text}" for label, text in rows)]


def _percent(share: float | None) -> str:
    return figures.NOTHING if share is None else f"{100 * share:.1f} %"


def _count(value: int | None) -> str:
    return figures.NOTHING if value is None else str(value)


def _restart_words(restarts: Mapping[str, int]) -> str:
    each = [f"{name} {figures.counted(times, 'time')}" for name, times in sorted(restarts.items())]
    return ", ".join(each) or "none"


def _replica_words(digests: Mapping[str, str]) -> str:
    kinds = set(digests.values())
    if not kinds:
        return figures.NOTHING
    if len(kinds) == 1:
        return f"{len(digests)}, all equal ({kinds.pop()[:16]})"
    return f"{len(digests)}, NOT equal: {len(kinds)} different digests"
