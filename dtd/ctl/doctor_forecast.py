"""A job's step in worlds of every size, from the steps and links that `dtdctl doctor` measured.

Puts measurements in the form that `dtd.core.forecast` reckons with.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtd.core.forecast import Compute, Forecast, LinkSpeed, forecast

Values = Mapping[str, Any]


def forecasts(steps: Mapping[str, Values], links: Sequence[Values], *, most: int) -> list[Forecast]:
    """One for each world of the first 1, 2, ... workers, as far as links are known.

    Args:
        steps: what each worker measured, by name, in the order of ranks.
        links: {"from", "to", "rtt_s", "bytes_per_s"} of each direction.
        most: the largest world.
    """
    speeds = {
        (link["from"], link["to"]): LinkSpeed(
            sender=link["from"],
            receiver=link["to"],
            latency_s=link["rtt_s"] / 2,
            bytes_per_s=link["bytes_per_s"],
        )
        for link in links
        if link["bytes_per_s"]
    }
    names = list(steps)
    made: list[Forecast] = []
    for size in range(1, min(len(names), most) + 1):
        ring = [(names[rank], names[(rank + 1) % size]) for rank in range(size)] if size > 1 else []
        if not all(way in speeds for way in ring):
            break
        first = steps[names[0]]
        made.append(
            forecast(
                [_compute(steps[name], size) for name in names[:size]],
                [speeds[way] for way in ring],
                bucket_bytes=first["buckets"],
                rows=first["rows"],
                overhead_s=max((speeds[way].latency_s for way in ring), default=0.0),
            )
        )
    return made


def _compute(step: Values, world_size: int) -> Compute:
    world = step["worlds"][str(world_size)]
    return Compute(
        data_s=world["data_s"],
        compute_s=world["compute_s"],
        ready_s=tuple(world["ready_s"]),
        optimizer_s=world["optimizer_s"],
    )
