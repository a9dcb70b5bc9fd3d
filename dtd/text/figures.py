"""Numbers for people: durations, sizes, rates, times of day, curves of characters.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dtd.text.shown import counted, shown_bytes

NOTHING: Final = "-"
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400
_SHORT_S: Final = 10
_SHORT_MS: Final = 2
_THOUSAND: Final = 1000


def duration(seconds: float | None) -> str:
    """3.2s, 42s, 3m07s, 2h05m, 4d02h."""
    if seconds is None:
        return NOTHING
    if seconds < _SHORT_S:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole}s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S:02d}h"


def span(seconds: float | None) -> str:
    """0.4 ms, 31 ms, 1.25 s, then as `duration`: short spans, told apart."""
    if seconds is None:
        return NOTHING
    if seconds >= _SHORT_S:
        return duration(seconds)
    if seconds >= 1:
        return f"{seconds:.2f} s"
    millis = 1000 * max(seconds, 0.0)
    return f"{millis:.0f} ms" if millis >= _SHORT_MS or not millis else f"{millis:.1f} ms"


size = shown_bytes


def number(value: float | None) -> str:
    """A measurement with four significant digits, or a whole number as it is; `-` for none."""
    if value is None or math.isnan(value):
        return NOTHING
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def rate(samples_per_s: float | None) -> str:
    """1,234/s; small rates keep a decimal."""
    if not samples_per_s:
        return NOTHING
    return f"{samples_per_s:,.0f}/s" if samples_per_s >= _SHORT_S else f"{samples_per_s:.1f}/s"


def moment(unix_s: float | None) -> str:
    """Local date and time, to the second."""
    if not unix_s:
        return NOTHING
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def steps(done: int, total: int | None) -> str:
    """120/600 (20%), or 120 when the total is not known; `-` when nothing is."""
    if total:
        return f"{done}/{total} ({100 * done // total}%)"
    return str(done) if done else NOTHING


def ranks(job: Mapping[str, Any]) -> str:
    """2 workers, or 2 workers and 1 server, by a job's part of a status or its result."""
    world_size, servers = job["world_size"], job.get("servers", 0)
    workers = counted(world_size - servers, "worker")
    return f"{workers} and {counted(servers, 'server')}" if servers else workers


def metrics(values: dict[str, Any] | None) -> str:
    """Accuracy=0.98 loss=0.1, in the order given."""
    if not values:
        return NOTHING
    return " ".join(f"{name}={number(value)}" for name, value in values.items())


def bandwidth(bytes_per_s: float | None) -> str:
    """Format bits per second: 940 Mbit/s, 7.2 Gbit/s."""
    if not bytes_per_s:
        return NOTHING
    value = bytes_per_s * 8 / 1000
    for unit in ("kbit/s", "Mbit/s", "Gbit/s"):
        if value < _THOUSAND or unit == "Gbit/s":
            break
        value /= _THOUSAND
    return f"{value:.0f} {unit}" if value >= _SHORT_S else f"{value:.1f} {unit}"


_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_FULL: Final = len(_EIGHTHS) - 1
_LOGARITHMIC_FROM: Final = 10.0
"""So many times the least value the greatest one is, or more: on a linear axis all but the
greatest would lie on the ground."""


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether finite values are better drawn on a logarithmic axis: all positive, and far apart."""
    return bool(values) and min(values) > 0 and max(values) >= _LOGARITHMIC_FROM * min(values)


def sparklines(curves: Sequence[Sequence[Sequence[float]]], *, width: int) -> list[str]:
    """Several curves of [step, value] points as one line each, on the same axes.

    The steps begin at 0; the axis of values is logarithmic where `is_logarithmic` says so of all.
    """
    finite = [[point for point in points if math.isfinite(point[1])] for points in curves]
    values = [value for points in finite for _, value in points]
    if not values:
        return [" " * width for _ in curves]
    shape = math.log if is_logarithmic(values) else float
    low, high = shape(min(values)), shape(max(values))
    last = max(step for points in finite for step, _ in points)
    return [_sparkline(points, shape, (low, high), last, width) for points in finite]


def _sparkline(
    points: Sequence[Sequence[float]],
    shape: Callable[[float], float],
    bounds: tuple[float, float],
    last: float,
    width: int,
) -> str:
    groups: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        groups[min(width - 1, int(step / max(1.0, last) * width))].append(shape(value))
    low, span = bounds[0], bounds[1] - bounds[0] or 1.0
    line, before = "", " "
    for index, group in enumerate(groups):
        if group:
            before = _EIGHTHS[1 + round((sum(group) / len(group) - low) / span * (_FULL - 1))]
        line += before if any(groups[index:]) else " "
    return line


def shares(parts: Sequence[float], *, whole: float, width: int) -> list[int]:
    """Return the characters that each part of a whole gets; together never more than `width`."""
    if whole <= 0:
        return [0] * len(parts)
    ends, total = [], 0.0
    for part in parts:
        total += max(0.0, part)
        ends.append(min(width, round(total / whole * width)))
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def progress_bar(share: float, *, width: int) -> str:
    """Draw the share that is done, 0 to 1."""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)
