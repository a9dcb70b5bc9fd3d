"""Formats numbers for people: durations, sizes, rates, times of day.  Pure text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from dtd.shown import counted, shown_bytes

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


def size(count_bytes: int) -> str:
    """512 B, 1.5 KiB, 20.0 MiB."""
    return shown_bytes(count_bytes)


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
    """120/600 (20%), or 120 when the total is not known yet."""
    return f"{done}/{total} ({100 * done // total}%)" if total else str(done)


def ranks(job: Mapping[str, Any]) -> str:
    """2 workers, or 2 workers and 1 server.

    Args:
        job: a job's part of a status, or its result.
    """
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
