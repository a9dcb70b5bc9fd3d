"""What limits the step of a job, from the spans of a profile.  Pure.

Each worker's step is divided into what it does itself (data, compute, optimizer) and what it waits
for the others (exposed).  The worker that does the most itself waits the least, and all others wait
for it.  So the step is

    data + compute + optimizer of a usual worker
    + straggler       what the slowest worker does beyond the usual
    + communication   what even the worker that waits least waits
    + other           what is none of this: evaluation of scalars, callbacks, the loop itself

and whichever is longest limits it.  Overlap is the share of the time with something on the wire in
which training went on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dtd.core.observe.profiling.spans import (
    BUCKET,
    COMMIT,
    COMPUTE,
    DATA,
    STAR_BUCKET,
    STEP,
    WAIT,
    WORD,
    Interval,
    Span,
    common,
    length_ns,
    union,
)

_NS: Final = 1e-9
_LIMITS: Final = ("compute", "communication", "data", "optimizer", "straggler")
"""What may be named as the limit, in the order of preference among equals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Mean seconds of one worker's steps.

    Attributes:
        step_s: from begin to end.
        data_s: waiting for rows.
        compute_s: forward and backward, without rows and waits.
        optimizer_s: the commit, without waits.
        exposed_s: waiting for other workers.
        busy_s: something was on the wire.
        hidden_s: the part of it in which training did not wait.
    """

    step_s: float
    data_s: float
    compute_s: float
    optimizer_s: float
    exposed_s: float
    busy_s: float
    hidden_s: float

    @property
    def own_s(self) -> float:
        """What it does itself."""
        return self.step_s - self.exposed_s

    @property
    def other_s(self) -> float:
        """What is neither waiting nor any of the named parts."""
        return max(0.0, self.own_s - self.data_s - self.compute_s - self.optimizer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits a step.

    Attributes:
        limit: "compute", "communication", "data", "optimizer" or "straggler".
        parts: seconds of each of these, and of "other".
        step_s: mean duration of a step, of the slowest worker.
        overlap: 0 to 1; None if nothing was on the wire.
        slowest: the worker that does the most itself; empty if there is only one.
    """

    limit: str
    parts: Mapping[str, float]
    step_s: float
    overlap: float | None
    slowest: str


def step_times(spans: Sequence[Span]) -> StepTimes | None:
    """Return a worker's means over its steps; None if no step was recorded as a whole.

    Args:
        spans: of its training thread and of its ring, on one clock.
    """
    steps = [span for span in spans if span.kind == STEP and span.end_ns > span.begin_ns]
    if not steps:
        return None
    inside = union((one.begin_ns, one.end_ns) for one in steps)

    def within(*kinds: str) -> list[Interval]:
        return common(union((s.begin_ns, s.end_ns) for s in spans if s.kind in kinds), inside)

    waits, data, wire = within(WAIT), within(DATA), within(BUCKET, WORD, STAR_BUCKET)
    apart = union([*waits, *data])
    working = length_ns(within(COMPUTE)) - length_ns(common(within(COMPUTE), apart))
    optimizing = length_ns(within(COMMIT)) - length_ns(common(within(COMMIT), apart))
    exposed, busy = length_ns(waits), length_ns(wire)
    loading = length_ns(data) - length_ns(common(data, waits))
    scale = _NS / len(steps)
    return StepTimes(
        step_s=length_ns(inside) * scale,
        data_s=loading * scale,
        compute_s=working * scale,
        optimizer_s=optimizing * scale,
        exposed_s=exposed * scale,
        busy_s=busy * scale,
        hidden_s=(busy - length_ns(common(wire, waits))) * scale,
    )


def verdict(workers: Mapping[str, StepTimes]) -> Verdict:
    """Return what limits the step.

    Args:
        workers: times of those that train, by name; at least one.  What a parameter server does
            shows in their waits.
    """
    times = list(workers.values())
    slowest = max(workers, key=lambda name: workers[name].own_s)
    usual_s = statistics.median_low([one.own_s for one in times])
    usual = next(one for one in times if one.own_s == usual_s)
    parts = {
        "compute": usual.compute_s,
        "communication": min(one.exposed_s for one in times),
        "data": usual.data_s,
        "optimizer": usual.optimizer_s,
        "straggler": workers[slowest].own_s - usual_s,
        "other": usual.other_s,
    }
    busy_s = sum(one.busy_s for one in times)
    return Verdict(
        limit=max(_LIMITS, key=lambda name: parts[name]),
        parts=parts,
        step_s=max(one.step_s for one in times),
        overlap=sum(one.hidden_s for one in times) / busy_s if busy_s else None,
        slowest=slowest if len(workers) > 1 else "",
    )
