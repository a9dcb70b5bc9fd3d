"""The limit of a job's step, from the spans of a profile.  Pure.

Each worker's step is divided into what it does itself (data, compute, optimizer) and what it waits
for the others (exposed).  The worker that does the most itself waits the least, and all others wait
for it.  So the step is

    data + compute + optimizer of a usual worker
    + straggler       what the slowest worker does beyond the usual
    + communication   what even the worker that waits least waits
    + other           what is none of this: evaluation of scalars, callbacks, the loop itself

and whichever is longest limits it, unless all of them are short or most of the step is something
else.  Times are medians over the steps that all workers have whole, without the first one, in which
the profiler itself begins.  Overlap is the share of the time with something on the wire in which
training went on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from dtd.observe.profile.spans import (
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
"""Possible limits, in the order of preference among equals."""
_LEAST_SHARE: Final = 0.25
"""Least share of the step that can limit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one worker's step, or medians over several.

    Attributes:
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
        return self.step_s - self.exposed_s

    @property
    def other_s(self) -> float:
        """Time that is neither waiting nor any of the named parts."""
        return max(0.0, self.own_s - self.data_s - self.compute_s - self.optimizer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The limit of a step.

    Attributes:
        limit: "compute", "communication", "data", "optimizer" or "straggler"; empty if none of
            them stands out.
        parts: seconds of each of these, and of "other".
        overlap: 0 to 1; None if nothing was on the wire.
        slowest: the worker that does the most itself; empty if there is only one.
    """

    limit: str
    parts: Mapping[str, float]
    step_s: float
    overlap: float | None
    slowest: str


def median_times(workers: Mapping[str, Sequence[Span]]) -> dict[str, StepTimes]:
    """Return each worker's medians over the steps that all of them have; empty if they have none.

    The spans of each worker's training thread and of its ring are on one clock.
    """
    steps = {name: found for name, spans in workers.items() if (found := _steps(spans))}
    shared = sorted(set.intersection(*map(set, steps.values()))) if steps else []
    counted = shared[1:] or shared
    if not counted:
        return {}
    return {
        name: _median([_times(workers[name], found[number]) for number in counted])
        for name, found in steps.items()
    }


def _steps(spans: Sequence[Span]) -> dict[int, Span]:
    return {one.number: one for one in spans if one.kind == STEP and one.end_ns > one.begin_ns}


def _median(times: Sequence[StepTimes]) -> StepTimes:
    names = [one.name for one in fields(StepTimes)]
    return StepTimes(**{n: statistics.median([getattr(one, n) for one in times]) for n in names})


def _times(spans: Sequence[Span], step: Span) -> StepTimes:
    inside = [(step.begin_ns, step.end_ns)]

    def within(*kinds: str) -> list[Interval]:
        return common(union((s.begin_ns, s.end_ns) for s in spans if s.kind in kinds), inside)

    waits, data, wire = within(WAIT), within(DATA), within(BUCKET, WORD, STAR_BUCKET)
    apart = union([*waits, *data])
    working = length_ns(within(COMPUTE)) - length_ns(common(within(COMPUTE), apart))
    optimizing = length_ns(within(COMMIT)) - length_ns(common(within(COMMIT), apart))
    exposed, busy = length_ns(waits), length_ns(wire)
    loading = length_ns(data) - length_ns(common(data, waits))
    return StepTimes(
        step_s=length_ns(inside) * _NS,
        data_s=loading * _NS,
        compute_s=working * _NS,
        optimizer_s=optimizing * _NS,
        exposed_s=exposed * _NS,
        busy_s=busy * _NS,
        hidden_s=(busy - length_ns(common(wire, waits))) * _NS,
    )


def verdict(workers: Mapping[str, StepTimes]) -> Verdict:
    """Return the limit of the step of those that train, at least one.

    What a parameter server does shows in their waits.
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
    step_s = max(one.step_s for one in times)
    longest = max(_LIMITS, key=lambda name: parts[name])
    return Verdict(
        limit=longest if parts[longest] >= max(_LEAST_SHARE * step_s, parts["other"]) else "",
        parts=parts,
        step_s=step_s,
        overlap=sum(one.hidden_s for one in times) / busy_s if busy_s else None,
        slowest=slowest if len(workers) > 1 else "",
    )
