"""Forecasts for more workers than are connected, and how many of them are worth having.  Pure.

A larger world repeats the workers that were measured.  Each takes as long as the slowest one: a
constant time and a time for each of its rows, which are fitted to the worlds that were measured.
All links are like the slowest one, and carry what the tree, the ring or the star of so many workers
sends.  What is not in the figures: of many workers, some are late by chance.

Workers are worth having while each one more shortens the step by `LEAST_STEP_GAIN`.  Rows are
whole: where one more changes nothing, the next few may change much, so all larger worlds count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from statistics import fmean, linear_regression
from typing import Any, Final, NamedTuple

from dtd import figures
from dtd.doctor.checks import Finding
from dtd.doctor.forecast import Forecast, forecast_step_s, slowest
from dtd.doctor.strategies import (
    Choice,
    Routes,
    World,
    choices_of,
    compute_of,
    forecast_of,
    link_speeds,
    recommended,
    star_of,
)
from dtd.job import JobSpec
from dtd.shown import counted

SIZES: Final = (16, 64, 256)
COMPARED: Final = (*range(1, 32), *range(32, 257, 8))
"""Worlds among which the number of workers is found that is enough."""

LEAST_STEP_GAIN: Final = 0.01

ASSUMED: Final = (
    "Larger worlds: all workers and links like the slowest one,"
    " compute as a + b * rows of a worker."
)

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Larger:
    """The job in a larger world.

    Attributes:
        forecast: of the job as it is.
        better: the strategy and codec that is recommended there, if there is one.
    """

    forecast: Forecast
    better: Choice | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The job with more and more workers.

    Attributes:
        worlds: the larger ones of `SIZES` in which each worker has a row.
        most_workers: of all worlds that were compared.
        enough_workers: more are not worth having; None if all are, up to `most_workers`.
        beyond: the world with one more than enough.
    """

    worlds: list[Larger]
    most_workers: int
    enough_workers: int | None
    beyond: Larger | None


def growth_of(
    steps: Mapping[str, Values],
    links: Sequence[Values],
    *,
    spec: JobSpec,
    servers: Sequence[str] = (),
) -> Growth | None:
    """Forecast larger worlds; arguments as for `dtd.doctor.strategies.world_of`.

    Returns:
        None if fewer than two worlds were measured, or not all that the links need.
    """
    lines = _Lines.fitted(list(steps.values()))
    if lines is None:
        return None
    world = partial(_world, lines=lines, steps=steps, links=links, spec=spec, servers=servers)
    most = min(lines.rows, SIZES[-1])
    if world(most).divided is None:
        return None
    sizes = {size for size in COMPARED if lines.least_workers <= size < most} | {most}
    enough = enough_workers({size: _step_s(world(size)) for size in sizes})
    return Growth(
        worlds=[_larger(world(size)) for size in SIZES if len(steps) < size <= most],
        most_workers=most,
        enough_workers=enough,
        beyond=None if enough is None else _larger(world(enough + 1)),
    )


def enough_workers(step_s: Mapping[int, float]) -> int | None:
    """The fewest workers beyond which no larger world is worth its additional workers.

    Args:
        step_s: of some worlds, by their size.

    Returns:
        None if that is the largest of them.
    """
    sizes = sorted(step_s)
    for size in sizes[:-1]:
        most_s = {more: step_s[size] * (1 - LEAST_STEP_GAIN) ** (more - size) for more in sizes}
        if all(step_s[more] > most_s[more] for more in sizes if more > size):
            return size
    return None


def check_growth(growth: Growth) -> Iterator[Finding]:
    """How many workers are worth having, and the strategy with which more would be."""
    least = f"{LEAST_STEP_GAIN * 100:g} %"
    if growth.enough_workers is None or growth.beyond is None:
        yield Finding(
            check="workers",
            state="ok",
            message=f"up to {counted(growth.most_workers, 'worker')}, each one more shortens a step"
            f" by {least} or more",
            remedy="",
        )
        return
    made, better = growth.beyond.forecast, growth.beyond.better
    message = f"beyond {counted(growth.enough_workers, 'worker')}, each one more shortens a step"
    message += f" by less than {least}, limited by {made.limit}"
    if better is not None:
        message += f"; with strategy {better.strategy} and codec {better.codec}, {made.world_size}"
        message += f" workers take {figures.span(better.step_s)} instead of"
        message += f" {figures.span(made.step_s)}: {better.risk}"
    yield Finding(check="workers", state="ok", message=message, remedy="")


class _Lines(NamedTuple):
    """All times of a step, as lines over the rows of a worker.

    Attributes:
        rows: of a batch.
        least_workers: of the smallest world.
        lines: (time with no rows, time for each row) of data, compute, optimizer and each bucket.
    """

    rows: int
    least_workers: int
    lines: list[tuple[float, float]]

    @classmethod
    def fitted(cls, steps: Sequence[Values]) -> _Lines | None:
        """Fit the slowest worker of each world; None for fewer than two worlds."""
        sizes = set.intersection(*(set(step["worlds"]) for step in steps)) if steps else set()
        times, shares = [], []
        for size in sizes:
            made = slowest([compute_of(step["worlds"][size]) for step in steps])
            times.append((made.data_s, made.compute_s, made.optimizer_s, *made.ready_s))
            shares.append(_most_rows(steps[0]["rows"], int(size)))
        if len(set(shares)) < 2:
            return None
        lines = [_line(shares, one) for one in zip(*times, strict=True)]
        return cls(steps[0]["rows"], min(map(int, sizes)), lines)

    def world(self, size: int) -> Values:
        """Return a step in a world of this size, as workers measure it."""
        rows = _most_rows(self.rows, size)
        data_s, compute_s, optimizer_s, *ready_s = (
            at_s + rows * row_s for at_s, row_s in self.lines
        )
        return {
            "data_s": data_s,
            "compute_s": compute_s,
            "optimizer_s": optimizer_s,
            "ready_s": ready_s,
        }


def _most_rows(rows: int, world_size: int) -> int:
    """Rows of the worker that has most."""
    return -(-rows // world_size)


def _line(shares: Sequence[int], times_s: Sequence[float]) -> tuple[float, float]:
    """The line of least squares; neither part is negative."""
    row_s, constant_s = linear_regression(shares, times_s)
    if row_s < 0.0:
        return fmean(times_s), 0.0
    if constant_s < 0.0:
        return 0.0, linear_regression(shares, times_s, proportional=True).slope
    return constant_s, row_s


def _world(
    size: int,
    *,
    lines: _Lines,
    steps: Mapping[str, Values],
    links: Sequence[Values],
    spec: JobSpec,
    servers: Sequence[str],
) -> World:
    ranks = [{**step, "worlds": {str(size): lines.world(size)}} for step in steps.values()]
    routes = divided = _routes(size, list(steps), (), links, spec)
    if spec.strategy.has_servers:
        divided = _routes(size, list(steps), servers, links, spec) if servers else None
    return World(spec=spec, steps=list(islice(cycle(ranks), size)), routes=routes, divided=divided)


def _routes(
    size: int,
    workers: Sequence[str],
    servers: Sequence[str],
    links: Sequence[Values],
    spec: JobSpec,
) -> Routes | None:
    """Links like the slowest one among these; None if none or not all with servers are known."""
    names = {*workers, *servers}
    speeds = link_speeds(links, spec.sync.lossless)
    known = [speed for way, speed in speeds.items() if names.issuperset(way)]
    star = star_of(workers, servers, links, mirrors=spec.strategy.mirrors, world_size=size)
    if not known or (servers and star is None):
        return None
    narrow = min(known, key=lambda link: link.bytes_per_s)
    worst = replace(narrow, latency_s=max(link.latency_s for link in known))
    ranks = size + len(servers)
    return Routes([worst] * ranks if ranks > 1 else [], star)


def _step_s(world: World) -> float:
    assert world.divided is not None
    what, routes = world.own_exchanges(), world.divided
    return forecast_step_s(world.workers(), routes.ring, what=what, star=routes.star)


def _larger(world: World) -> Larger:
    made = forecast_of(world)
    assert made is not None
    return Larger(forecast=made, better=recommended(choices_of(world)))
