"""The charts of a report, from its facts.  Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from dtd import figures
from dtd.curves import sparklines
from dtd.report.facts import PARTS, Curve, Facts, WorkerShare, World
from dtd.report.shapes import Chart
from dtd.report.svg import Bar, Line, bar_chart, line_chart

_SPARK: Final = 60
_MILLIS: Final = 1000.0
_MARKED: Final = frozenset({"recovered", "worker_lost", "steps_lost", "replicas_diverged"})
PART_NAMES: Final = ("data", "compute", "exposed communication", "optimizer", "other")


def loss(runs: Sequence[Facts]) -> Chart:
    """The training loss over steps; a stretch's least and greatest value are shaded."""
    return _over_steps([(one.id, one.curves["loss"]) for one in runs], "training loss", runs[0])


def loss_over_time(runs: Sequence[Facts]) -> Chart:
    """The same over the seconds since each job's first step."""
    lines = [
        Line(name=one.id, points=_over_time(one), colour=colour) for colour, one in enumerate(runs)
    ]
    title = "Training loss over time"
    svg = line_chart(lines, title=title, x_label="seconds since its first step")
    return Chart(title, svg)


def evaluation(runs: Sequence[Facts], name: str) -> Chart:
    """A metric of evaluations over steps."""
    curves = [(one.id, one.evaluations.get(name, ())) for one in runs]
    return _over_steps(curves, f"evaluation: {name}", runs[0])


def single(facts: Facts, name: str, title: str) -> Chart:
    """One figure of steps; nothing if it never changes."""
    curve = facts.curves.get(name, ())
    means = [point.mean for point in curve] or [0.0]
    if math.isclose(min(means), max(means)):
        return Chart(title, "")
    return _over_steps([(facts.id, curve)], title, facts)


def rate(facts: Facts) -> Chart:
    """Rows per second over steps."""
    curve = [(facts.id, facts.curves.get("rows_per_s", ()))]
    return _over_steps(curve, "rows per second", facts, from_zero=True)


def times(facts: Facts) -> Chart:
    """The time of a step, and its share of communication."""
    names = (("step", "step_s"), ("exchange", "comm_s"), ("exposed", "exposed_s"))
    lines = [
        Line(
            name=name, points=_points(facts.curves.get(key, ()), _MILLIS, band=False), colour=colour
        )
        for colour, (name, key) in enumerate(names)
    ]
    title = "Time of a step and of its exchange"
    svg = line_chart(lines, title=title, y_label="milliseconds", marks=_marks(facts))
    return Chart(title, svg)


def scaling(worlds: Sequence[World]) -> Chart:
    """Rates by number of workers, and what they would be if each worker were as fast."""
    first = worlds[0].rows_per_s / worlds[0].workers
    real = [(float(one.workers), one.rows_per_s) for one in worlds]
    ideal = [(float(one.workers), one.workers * first) for one in worlds]
    lines = [
        Line(name="measured", points=[(x, y, y, y) for x, y in real], colour=0),
        Line(name="ideal", points=[(x, y, y, y) for x, y in ideal], colour=4, dashed=True),
    ]
    title = "Throughput by number of workers"
    svg = line_chart(lines, title=title, x_label="workers", y_label="rows/s", from_zero=True)
    return Chart(title, svg)


def split(workers: Sequence[WorkerShare]) -> Chart:
    """Each worker's mean step as a bar."""
    bars = []
    for one in workers:
        assert one.step_s is not None
        parts = [_MILLIS * one.parts.get(part, 0.0) for part in PARTS]
        rest = max(0.0, _MILLIS * one.step_s - sum(parts))
        stacked = [(length, colour) for colour, length in enumerate([*parts, rest])]
        bars.append(Bar(name=one.name, parts=stacked, note=figures.span(one.step_s)))
    title = "A mean step of each worker"
    return Chart(title, bar_chart(bars, title=title, parts=PART_NAMES, unit="milliseconds"))


def _over_steps(
    curves: Sequence[tuple[str, Curve]], title: str, facts: Facts, *, from_zero: bool = False
) -> Chart:
    lines = [
        Line(name=name, points=_points(curve, band=len(curves) == 1), colour=colour)
        for colour, (name, curve) in enumerate(curves)
    ]
    svg = line_chart(lines, title=title, marks=_marks(facts), from_zero=from_zero)
    drawn = sparklines([[(p.begin, p.mean) for p in curve] for _, curve in curves], width=_SPARK)
    width = max(len(name) for name, _ in curves)
    labelled = [f"{name:<{width}}  {line}" for (name, _), line in zip(curves, drawn, strict=True)]
    return Chart(title[:1].upper() + title[1:], svg, labelled)


def _points(
    curve: Curve, factor: float = 1.0, *, band: bool = True
) -> list[tuple[float, float, float, float]]:
    return [
        (
            (one.begin + one.end) / 2,
            factor * (one.least if band else one.mean),
            factor * one.mean,
            factor * (one.greatest if band else one.mean),
        )
        for one in curve
    ]


def _over_time(facts: Facts) -> list[tuple[float, float, float, float]]:
    times = {point.begin: point.mean for point in facts.curves.get("unix_s", ())}
    begun = min(times.values(), default=0.0)
    return [
        (times[one.begin] - begun, one.mean, one.mean, one.mean)
        for one in facts.curves["loss"]
        if one.begin in times
    ]


def _marks(facts: Facts) -> Iterable[tuple[float, str]]:
    return [
        (float(one["step"]), f"{one['kind']}: {one['message']}")
        for one in facts.incidents
        if one["kind"] in _MARKED and one["step"]
    ]
