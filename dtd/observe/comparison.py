"""Differences between runs: settings, code, data, environment, figures.  Pure.

A run is a job as SHOW_JOB describes it, with its series as GET_METRICS draws them.  The answer has
one value for each run, in the order in which the runs were named; None where a run has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.errors import RequestRefused
from dtd.job.differences import completed, settings
from dtd.job.tables import lower_is_better
from dtd.observe.series import EVALUATION, Kind
from dtd.rules import did_you_mean
from dtd.text.shown import shown

MOST_RUNS: Final = 16
"""Most runs in one comparison."""
MOST_POINTS: Final = 200
"""Most points of one curve."""
_LOSS: Final = "loss"
_NAME: Final = "job.name"
_CODE: Final = ("package", "task_digest")
_DATA: Final = ("dataset_rows", "dataset_fingerprint")
_ORIGIN: Final = ("from_job", "from_step", "from_mode", "weights")
_WORKERS: Final = ("world_size",)
_RESULT: Final = ("steps", "train_loss", "eval_loss", "eval_accuracy", "samples_per_s")

Details = Mapping[str, Any]
Series = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of the runs, as SHOW_JOB and GET_METRICS answer."""

    details: Details
    series: Sequence[Series]


def compare(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """Return the differences between runs, and their results.

    Args:
        runs: in the order of the answer's values.
        names: of the figures that are wanted; none: the loss and those of evaluations.

    Raises:
        RequestRefused: no run has a figure of such a name.
    """
    wanted = _wanted(runs, names)
    return {
        "jobs": [_head(run.details) for run in runs],
        "differences": list(differences([run.details for run in runs])),
        "figures": [_figure(runs, name) for name in wanted],
        "curves": [_curve(runs, name) for name in wanted],
    }


def differences(runs: Sequence[Details]) -> Iterator[dict[str, Any]]:
    """Yield the kind, the key and the values of everything in which the runs differ."""
    tables = [_described(run) for run in runs]
    for kind in tables[0]:
        keys = dict.fromkeys(key for table in tables for key in table[kind])
        for key in keys:
            values = [table[kind].get(key) for table in tables]
            if any(value != values[0] for value in values):
                yield {"of": kind, "key": key, "values": values}


def _described(run: Details) -> dict[str, dict[str, Any]]:
    spec = settings(completed(run["spec"]))
    spec.pop(_NAME, None)
    return {
        "setting": spec,
        "code": {key: run[key] for key in _CODE},
        "data": {key: run[key] for key in _DATA},
        "origin": {key: run[key] for key in _ORIGIN},
        "environment": dict(run["environment"]),
        "workers": {key: run[key] for key in _WORKERS},
    }


def _head(run: Details) -> dict[str, Any]:
    kept = ("id", "name", "task", "state", "step", "total_steps", "tags", "note")
    times = ("submitted_s", "started_s", "ended_s")
    result = {key: run["result"].get(key) for key in _RESULT}
    return {**{key: run[key] for key in (*kept, *times)}, "result": result}


def _wanted(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    known = dict.fromkeys(str(one["name"]) for run in runs for one in run.series)
    if not names:
        return [name for name in known if name == _LOSS or name.startswith(EVALUATION)]
    for name in names:
        if name not in known:
            raise RequestRefused(
                f"{shown(name)} is a figure of none of these jobs{did_you_mean(name, known)}",
                remedy=f"list them: dtdctl metrics {runs[0].details['id']}",
            )
    return list(dict.fromkeys(names))


def _figure(runs: Sequence[Run], name: str) -> dict[str, Any]:
    """The last and the best value of each run; the best one lies in these steps."""
    return {
        "name": name,
        "lower_is_better": _prefers_low(runs, name),
        "of": [_extremes(run, name, low=_prefers_low(runs, name)) for run in runs],
    }


def _prefers_low(runs: Sequence[Run], name: str) -> bool:
    """Return whether low is better, by the first job that keeps its best checkpoint by this."""
    metric = name.removeprefix(EVALUATION)
    tables = [run.details["spec"].get("checkpoint", {}) for run in runs]
    modes = [table.get("best_mode", "") for table in tables if table.get("best_metric") == metric]
    return lower_is_better(metric, modes[0] if modes else "")


def _extremes(run: Run, name: str, *, low: bool) -> dict[str, Any] | None:
    points = _points(run, name)
    if not points:
        return None
    column = 3 if low else 5
    best = (min if low else max)(points, key=lambda point: point[column])
    last = run.details["result"].get("train_loss") if name == _LOSS else None
    return {
        "last": points[-1][4] if last is None else last,
        "best": best[column],
        "begin": best[0],
        "end": best[1],
    }


def _curve(runs: Sequence[Run], name: str) -> dict[str, Any]:
    """The mean of each point, with the step at which it ends."""
    of = [[[point[1], point[4]] for point in _points(run, name)] for run in runs]
    kind = Kind.EVALUATIONS if name.startswith(EVALUATION) else Kind.STEPS
    return {"name": name, "kind": kind.value, "of": of}


def _points(run: Run, name: str) -> list[Sequence[Any]]:
    """The points of a series that have a value: [begin, end, count, least, mean, greatest]."""
    found = (one["points"] for one in run.series if one["name"] == name)
    return [point for points in found for point in points if point[2]]
