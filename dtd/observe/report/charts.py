"""The charts of a report as SVG, coloured by the page around them, for light and dark.

This file computes places in pixels; the templates draw.  A report has no script, loads nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from dtd.observe.report.facts import Curve, Facts, WorkerShare, World
from dtd.observe.report.render import Chart, to_svg
from dtd.observe.step_parts import OTHER, STEP_PARTS, StepPart
from dtd.text import figures
from dtd.text.figures import is_logarithmic, number, sparklines

WIDTH: Final = 720
HEIGHT: Final = 250
_LEFT: Final = 72
_RIGHT: Final = 14
_TOP: Final = 12
_BOTTOM: Final = 36
_NOTHING: Final = Markup()
_BAR: Final = 22
_GAP: Final = 10
_TICKS: Final = 5
_CHARACTER: Final = 9.6
"""Width of a letter of the charts' text, roughly, in the size that a narrow page needs."""

_DOTS_UP_TO: Final = 24
"""Curves of so few points show each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve: (x, least, mean, greatest) of each point, drawn in the colour of this number."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stacked bar: (length, style) of its parts, from left to right."""

    name: str
    parts: Sequence[tuple[float, str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Axis:
    """A scale from values to pixels."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        shape: Callable[[float], float] = math.log10 if self.logarithmic else float
        low, high = shape(self.low), shape(self.high)
        share = (shape(value) - low) / (high - low or 1.0)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            return _decades(self.low, self.high)
        step = _nice((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [step * count for count in range(first, last + 1)]


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str = "step",
    y_label: str,
    marks: Iterable[tuple[float, str]] = (),
    from_zero: bool = False,
) -> Markup:
    """Curves over the same axes; the axis of values is logarithmic where they are far apart.

    Values that are not finite are left out; `marks` are (x, event).
    """
    lines = [_finite(line) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return _NOTHING
    x, y = _axes(lines, from_zero=from_zero)
    several = len(lines) > 1
    return to_svg(
        "lines.svg",
        title=title,
        width=WIDTH,
        height=HEIGHT + 20 * several,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=_TOP,
        bottom=HEIGHT - _BOTTOM,
        x_label=x_label,
        y_label=f"{y_label} (logarithmic)" if y.logarithmic else y_label,
        x_ticks=[(x.at(value), _short(value)) for value in x.ticks() if value == int(value)],
        y_ticks=[(y.at(value), _short(value)) for value in y.ticks()],
        marks=[(x.at(at), event) for at, event in marks if x.low <= at <= x.high],
        curves=[_curve(line, x, y) for line in lines],
        legend=_legend([(one.name, f"f{one.colour}") for one in lines if several], HEIGHT + 12),
    )


def bar_chart(bars: Sequence[Bar], *, title: str) -> Markup:
    """Stacked bars of milliseconds on one scale, with a legend of the parts of a step."""
    longest = max((sum(length for length, _ in bar.parts) for bar in bars), default=0.0)
    if longest <= 0:
        return _NOTHING
    left = min(200.0, 16 + _CHARACTER * max(len(bar.name) for bar in bars))
    note = 8 + _CHARACTER * max(len(bar.note) for bar in bars)
    scale = _Axis(0.0, longest, left, WIDTH - _RIGHT - note)
    bottom = _TOP + len(bars) * (_BAR + _GAP)
    return to_svg(
        "bars.svg",
        title=title,
        width=WIDTH,
        height=bottom + 64,
        left=left,
        right=WIDTH - _RIGHT,
        top=_TOP - 6,
        bottom=bottom,
        x_label="milliseconds",
        x_ticks=[(scale.at(value), _short(value)) for value in scale.ticks()],
        bars=[_bar(bar, scale, _TOP + at * (_BAR + _GAP)) for at, bar in enumerate(bars)],
        legend=_legend([(part.name, _style(part)) for part in _BAR_PARTS], bottom + 54),
    )


def _bar(bar: Bar, scale: _Axis, top: int) -> dict[str, Any]:
    ends = list(itertools.accumulate((length for length, _ in bar.parts), initial=0.0))
    places = zip(ends, ends[1:], bar.parts, strict=False)
    return {
        "name": bar.name,
        "note": bar.note,
        "top": top,
        "middle": top + _BAR / 2 + 4,
        "height": _BAR,
        "end": scale.at(ends[-1]),
        "parts": [(scale.at(begin), scale.at(end), part[1]) for begin, end, part in places],
    }


def _finite(line: Line) -> Line:
    kept = [point for point in line.points if all(map(math.isfinite, point))]
    return Line(name=line.name, points=kept, colour=line.colour, dashed=line.dashed)


def _axes(lines: Sequence[Line], *, from_zero: bool) -> tuple[_Axis, _Axis]:
    xs = [point[0] for line in lines for point in line.points]
    means = [point[2] for line in lines for point in line.points]
    lows = [point[1] for line in lines for point in line.points]
    highs = [point[3] for line in lines for point in line.points]
    logarithmic = not from_zero and is_logarithmic(means) and min(lows) > 0
    low, high = min(lows), max(highs)
    if from_zero:
        low = min(0.0, low)
    if high == low:
        low, high = (low * 0.9, high * 1.1) if low else (-1.0, 1.0)
        low, high = min(low, high), max(low, high)
    x = _Axis(min(0.0, *xs), max(xs), _LEFT, WIDTH - _RIGHT)
    return x, _Axis(low, high, HEIGHT - _BOTTOM, _TOP + 14, logarithmic)


def _curve(line: Line, x: _Axis, y: _Axis) -> dict[str, Any]:
    upper = [(x.at(at), y.at(high)) for at, _low, _mean, high in line.points]
    lower = [(x.at(at), y.at(low)) for at, low, _mean, _high in line.points]
    middle = [(x.at(at), y.at(mean)) for at, _low, mean, _high in line.points]
    return {
        "colour": line.colour,
        "dashed": line.dashed,
        "band": [*upper, *reversed(lower)] if upper != lower else [],
        "middle": middle,
        "dots": middle if len(middle) <= _DOTS_UP_TO else [],
    }


def _legend(entries: Sequence[tuple[str, str]], y: float) -> list[tuple[float, float, str, str]]:
    widths = [34 + _CHARACTER * len(name) for name, _ in entries]
    places = itertools.accumulate(widths, initial=float(_LEFT))
    return [(x, y, *entry) for x, entry in zip(places, entries, strict=False)]


def _nice(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(power * one for one in (1, 2, 5, 10) if power * one >= step * (1 - 1e-9))


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; powers alone where that would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= _TICKS - 2 else (1,)
    every = [factor * 10.0**power for power in powers for factor in factors]
    found = [value for value in every if low <= value <= high]
    return found[:: max(1, math.ceil(len(found) / (2 * _TICKS)))]


def _short(value: float) -> str:
    """A tick: 1.2M, 30k, 0.05."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and unit != "k"):
            return f"{value / size:g}{unit}"
    return number(int(value) if value == int(value) else float(f"{value:.6g}"))


_SPARK: Final = 60
_MILLIS: Final = 1000.0
_MARKED: Final = frozenset({"recovered", "worker_lost", "steps_lost", "replicas_diverged"})
_BAR_PARTS: Final = (*STEP_PARTS, OTHER)


def loss(runs: Sequence[Facts]) -> Chart:
    """The training loss over steps; a stretch's least and greatest value are shaded."""
    return _over_steps([(one.id, one.curves["loss"]) for one in runs], "training loss", runs[0])


def loss_over_time(runs: Sequence[Facts]) -> Chart:
    """The same over the seconds since each job's first step."""
    lines = [
        Line(name=one.id, points=_over_time(one), colour=colour) for colour, one in enumerate(runs)
    ]
    title = "Training loss over time"
    x_label = "seconds since its first step"
    svg = line_chart(lines, title=title, x_label=x_label, y_label="training loss")
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
        return Chart(title, _NOTHING)
    return _over_steps([(facts.id, curve)], title, facts)


def rate(facts: Facts) -> Chart:
    """Rows per second over steps."""
    curve = [(facts.id, facts.curves.get("rows_per_s", ()))]
    return _over_steps(curve, "throughput", facts, y_label="rows per second", from_zero=True)


def times(facts: Facts) -> Chart:
    """The time of a step, and its share of communication."""
    names = (("step", "step_s"), ("exchange", "comm_s"), ("exposed", "exposed_s"))
    lines = [
        Line(
            name=name,
            points=_band_of(facts.curves.get(key, ()), _MILLIS, band=False),
            colour=colour,
        )
        for colour, (name, key) in enumerate(names)
    ]
    title = "Time of a step and of its exchange"
    svg = line_chart(lines, title=title, y_label="milliseconds", marks=_marks_of(facts))
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
    y_label = "rows per second"
    svg = line_chart(lines, title=title, x_label="workers", y_label=y_label, from_zero=True)
    return Chart(title, svg)


def split(workers: Sequence[WorkerShare]) -> Chart:
    """Each worker's mean step as a bar."""
    bars = []
    for one in workers:
        assert one.step_s is not None
        parts = [_MILLIS * one.parts.get(part.field, 0.0) for part in STEP_PARTS]
        rest = max(0.0, _MILLIS * one.step_s - sum(parts))
        styles = map(_style, _BAR_PARTS)
        stacked = list(zip([*parts, rest], styles, strict=True))
        bars.append(Bar(name=one.name, parts=stacked, note=figures.span(one.step_s)))
    title = "A mean step of each worker"
    return Chart(title, bar_chart(bars, title=title))


def _style(part: StepPart) -> str:
    return f"part-{part.key}"


def _over_steps(
    curves: Sequence[tuple[str, Curve]],
    title: str,
    facts: Facts,
    *,
    y_label: str = "",
    from_zero: bool = False,
) -> Chart:
    lines = [
        Line(name=name, points=_band_of(curve, band=len(curves) == 1), colour=colour)
        for colour, (name, curve) in enumerate(curves)
    ]
    svg = line_chart(
        lines,
        title=title,
        y_label=y_label or title,
        marks=_marks_of(facts),
        from_zero=from_zero,
    )
    drawn = sparklines([[(p.begin, p.mean) for p in curve] for _, curve in curves], width=_SPARK)
    width = max(len(name) for name, _ in curves)
    labelled = [f"{name:<{width}}  {line}" for (name, _), line in zip(curves, drawn, strict=True)]
    return Chart(title[:1].upper() + title[1:], svg, labelled)


def _band_of(
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


def _marks_of(facts: Facts) -> Iterable[tuple[float, str]]:
    return [
        (float(one["step"]), f"{one['kind']}: {one['message']}")
        for one in facts.incidents
        if one["kind"] in _MARKED and one["step"]
    ]
