"""The facts of a job's report: the coordinator's records, and what is computed from them.

A figure that is not known is None; nothing is guessed.  Rates are those of training itself: rows
divided by the time of their steps, without evaluations, checkpoints and recoveries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dtd.observe.series import EVALUATION, Kind
from dtd.observe.step_parts import STEP_PARTS
from dtd.wire import messages as m

QUIET: Final = frozenset(
    {
        *("job_started", "worker_registered", "generation_forming", "generation_running"),
        *("job_warming", "job_waiting", "link_good"),
    }
)
"""Events that no report needs to list one by one."""

POINTS: Final = 500
"""Points of each curve: more would not be seen."""

MOST_PAGES: Final = 400
"""Most pages of incidents or of curves; the rest is left out."""


class Point(NamedTuple):
    """A figure over the steps from `begin` to `end`."""

    begin: int
    end: int
    values: int
    least: float
    mean: float
    greatest: float


Curve = Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The speed of a number of workers together.

    Attributes:
        steps: of this many workers that were measured.
        exposed_s: the part of it in which training waited for communication.
        efficiency: rate of each worker, as a share of that with the fewest workers.
    """

    workers: int
    steps: int
    rows_per_s: float
    step_s: float
    exposed_s: float | None
    efficiency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """The parts of a worker's mean step, in seconds; None where they are not known.

    Attributes:
        parts: by field of `STEP_PARTS`.
        memory_bytes: the most that its process had.
    """

    name: str
    step_s: float | None
    parts: Mapping[str, float]
    memory_bytes: float | None
    cores: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """A link of the ring, as its sender measured it."""

    source: str
    to: str
    round_trip_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The content of a report.

    Attributes:
        evaluations: metrics of evaluations that were numbers at least once, by name.
        without_numbers: names of the metrics that never were.
        worlds: rates by number of workers, fewest first.
        incidents: the job's, oldest first, without `QUIET` ones.
        stopped: why figures are not stored at present; empty if they are.
        dropped: rows of figures that were lost since the coordinator started.
    """

    job: Mapping[str, Any]
    curves: Mapping[str, Curve]
    evaluations: Mapping[str, Curve]
    worlds: Sequence[World]
    workers: Sequence[WorkerShare] = ()
    links: Sequence[LinkFigures] = ()
    incidents: Sequence[Mapping[str, Any]] = ()
    stopped: str = ""
    dropped: int = 0
    without_numbers: Sequence[str] = ()

    @property
    def id(self) -> str:
        return str(self.job["id"])

    @property
    def has_trained(self) -> bool:
        return bool(self.curves.get("loss"))

    @property
    def last_loss(self) -> float:
        """That of the last committed step; of a job that has not ended, the curve's newest."""
        known = self.job["result"].get("train_loss")
        return float(self.curves["loss"][-1].mean if known is None else known)

    def mean(self, name: str) -> float | None:
        return _mean(self.curves.get(name, ()))


Look = Callable[[m.Message], Awaitable[dict[str, Any]]]
"""Asks the coordinator."""

Records = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]


async def records_of(look: Look, job: str) -> Records:
    """Ask for what `facts_of` takes.

    Raises:
        DtdError: there is no such job.
    """
    shown = await look(m.ShowJob(job=job))
    metrics = await _pages(
        look, "series", lambda at: m.GetMetrics(job=job, workers=True, points=POINTS, after=at)
    )
    pages = await _pages(look, "events", lambda at: m.ReadEvents(after=at))
    return shown, metrics, [event for page in pages for event in page["events"]]


async def _pages(look: Look, key: str, make: Callable[[int], m.Message]) -> list[dict[str, Any]]:
    """Ask for pages until one has nothing new under `key`."""
    found: list[dict[str, Any]] = []
    after = 0
    while len(found) < MOST_PAGES:
        answer = await look(make(after))
        if not answer[key]:
            break
        found.append(answer)
        after = answer["next"]
    return found


def facts_of(
    job: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
) -> Facts:
    """Compute a report's facts from the answers to SHOW_JOB, GET_METRICS and READ_EVENTS."""
    series = [one for page in metrics for one in page["series"]]
    mine = [event for event in events if event["job"] == job["id"]]
    curves = {one["name"]: _points(one) for one in series if one["kind"] == Kind.STEPS}
    metrics_of = {
        one["name"].removeprefix(EVALUATION): _points(one)
        for one in series
        if one["kind"] == Kind.EVALUATIONS
    }
    return Facts(
        job=job,
        curves=curves,
        evaluations={name: curve for name, curve in metrics_of.items() if curve},
        without_numbers=[name for name, curve in metrics_of.items() if not curve],
        worlds=_worlds(curves, _world_sizes(mine, job)),
        workers=_workers(series),
        links=_links(series),
        incidents=[event for event in mine if event["kind"] not in QUIET],
        stopped=metrics[0]["stopped"] if metrics else "",
        dropped=metrics[0]["dropped"] if metrics else 0,
    )


def _points(series: Mapping[str, Any]) -> list[Point]:
    return [Point(*point) for point in series["points"] if point[2]]


def _world_sizes(events: Iterable[Mapping[str, Any]], job: Mapping[str, Any]) -> dict[int, int]:
    """Number of workers that train by generation, as far as it is remembered."""
    sizes = {}
    for event in events:
        told = event["details"]
        if event["kind"] == "generation_running" and "world_size" in told:
            sizes[int(event["generation"])] = told["world_size"] - told.get("servers", 0)
    if job["generation"] and job["world_size"]:
        servers = job["result"].get("servers", 0)
        sizes.setdefault(job["generation"], job["world_size"] - servers)
    return sizes


def _worlds(curves: Mapping[str, Curve], sizes: Mapping[int, int]) -> list[World]:
    """Buckets of steps that lie within one generation, together by its number of workers."""
    generation_at = {
        point.begin: int(point.mean)
        for point in curves.get("generation", ())
        if point.least == point.greatest
    }
    found: list[World] = []
    first = 0.0  # rows a second of each of the fewest workers
    for workers in sorted(set(sizes.values())):
        here = {at for at, number in generation_at.items() if sizes.get(number) == workers}

        def mean(name: str, here: set[int] = here) -> float | None:
            return _mean(point for point in curves.get(name, ()) if point.begin in here)

        rows, step_s = mean("rows"), mean("step_s")
        if rows is None or not step_s:
            continue
        first = first or rows / step_s / workers
        counted = [point.values for point in curves.get("step_s", ()) if point.begin in here]
        found.append(
            World(
                workers=workers,
                steps=sum(counted),
                rows_per_s=rows / step_s,
                efficiency=rows / step_s / workers / first,
                step_s=step_s,
                exposed_s=mean("exposed_s"),
            )
        )
    return found


def _mean(points: Iterable[Point]) -> float | None:
    count = total = 0.0
    for point in points:
        count += point.values
        total += point.values * point.mean
    return total / count if count else None


def _workers(series: Iterable[Mapping[str, Any]]) -> list[WorkerShare]:
    """Means over the time in which a worker trained: idle heartbeats have no step time."""
    tracks: dict[str, dict[str, Curve]] = {}
    for one in series:
        if one["kind"] == Kind.WORKER:
            tracks.setdefault(one["source"], {})[one["name"]] = _points(one)
    return [_worker(name, tracks[name]) for name in sorted(tracks)]


def _worker(name: str, curves: Mapping[str, Curve]) -> WorkerShare:
    busy = {point.begin for point in curves.get("worker_step_s", ()) if point.least > 0}

    def mean(figure: str) -> float | None:
        return _mean(point for point in curves.get(figure, ()) if point.begin in busy)

    parts = {
        part.field: value
        for part in STEP_PARTS
        if (value := mean(f"worker_{part.field}")) is not None
    }
    memory = [point.greatest for point in curves.get("memory_bytes", ())]
    return WorkerShare(
        name=name,
        step_s=mean("worker_step_s"),
        parts=parts,
        memory_bytes=max(memory, default=None),
        cores=mean("processor_cores"),
    )


def _links(series: Iterable[Mapping[str, Any]]) -> list[LinkFigures]:
    found: dict[tuple[str, str], dict[str, float | None]] = {}
    for one in series:
        if one["kind"] == Kind.LINK:
            busy = [point for point in _points(one) if point.mean > 0]
            found.setdefault((one["source"], one["to"]), {})[one["name"]] = _mean(busy)
    return [
        LinkFigures(
            source=source,
            to=to,
            round_trip_s=figures.get("round_trip_s"),
            bytes_per_s=figures.get("link_bytes_per_s"),
        )
        for (source, to), figures in sorted(found.items())
    ]
