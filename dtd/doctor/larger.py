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
from itertools import cycle, islice
from statistics import fmean, linear_regression
from typing import Any, Final

from dtd.doctor.checks import Finding, ok
from dtd.doctor.forecast import Forecast, slowest
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
from dtd.text import figures
from dtd.text.shown import counted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The workers and links of which larger worlds are made.

    Attributes:
        least_workers: of the smallest world that was measured.
        lines: (time with no rows, time for each row) of data, compute, optimizer and each bucket.
    """

    spec: JobSpec
    steps: Mapping[str, Values]
    links: Sequence[Values]
    servers: Sequence[str]
    least_workers: int
    lines: Sequence[tuple[float, float]]

    @classmethod
    def fitted(
        cls,
        steps: Mapping[str, Values],
        links: Sequence[Values],
        *,
        spec: JobSpec,
        servers: Sequence[str] = (),
    ) -> Repeated | None:
        """Fit the slowest worker of each world; None for fewer than two worlds."""
        every = list(steps.values())
        sizes = set.intersection(*(set(step["worlds"]) for step in every)) if every else set()
        times, shares = [], []
        for size in sizes:
            made = slowest([compute_of(step["worlds"][size]) for step in every])
            times.append((made.data_s, made.compute_s, made.optimizer_s, *made.ready_s))
            shares.append(_most_rows(every[0]["rows"], int(size)))
        if len(set(shares)) < 2:
            return None
        return cls(
            spec=spec,
            steps=steps,
            links=links,
            servers=servers,
            least_workers=min(map(int, sizes)),
            lines=[_line(shares, one) for one in zip(*times, strict=True)],
        )

    @property
    def rows(self) -> int:
        return int(next(iter(self.steps.values()))["rows"])

    def world(self, size: int) -> World:
        rows = _most_rows(self.rows, size)
        data_s, compute_s, optimizer_s, *ready_s = (
            at_s + rows * row_s for at_s, row_s in self.lines
        )
        times = {"data_s": data_s, "compute_s": compute_s, "optimizer_s": optimizer_s}
        worlds = {str(size): {**times, "ready_s": ready_s}}
        ranks = cycle([{**step, "worlds": worlds} for step in self.steps.values()])
        routes = divided = self._routes(size, ())
        if self.spec.strategy.has_servers:
            divided = self._routes(size, self.servers) if self.servers else None
        return World(
            spec=self.spec, steps=list(islice(ranks, size)), routes=routes, divided=divided
        )

    def _routes(self, size: int, servers: Sequence[str]) -> Routes | None:
        """Links like the slowest one; None if none, or not all with servers, are known."""
        workers = list(self.steps)
        names = {*workers, *servers}
        speeds = link_speeds(self.links, self.spec)
        known = [speed for way, speed in speeds.items() if names.issuperset(way)]
        mirrors = self.spec.strategy.mirrors
        star = star_of(workers, servers, self.links, mirrors=mirrors, world_size=size)
        if not known or (servers and star is None):
            return None
        narrow = min(known, key=lambda link: link.bytes_per_s)
        worst = replace(narrow, latency_s=max(link.latency_s for link in known))
        ranks = size + len(servers)
        return Routes([worst] * ranks if ranks > 1 else [], star)


def _most_rows(rows: int, world_size: int) -> int:
    return -(-rows // world_size)


def _line(shares: Sequence[int], times_s: Sequence[float]) -> tuple[float, float]:
    """The line of least squares; neither part is negative."""
    row_s, constant_s = linear_regression(shares, times_s)
    if row_s < 0.0:
        return fmean(times_s), 0.0
    if constant_s < 0.0:
        return 0.0, linear_regression(shares, times_s, proportional=True).slope
    return constant_s, row_s


def growth_of(repeated: Repeated) -> Growth | None:
    """Forecast larger worlds; None if not all links that they need were measured."""
    most = min(repeated.rows, SIZES[-1])
    if repeated.world(most).divided is None:
        return None
    sizes = {size for size in COMPARED if repeated.least_workers <= size < most} | {most}
    enough = enough_workers({size: _forecast(repeated.world(size)).step_s for size in sizes})
    larger = [size for size in SIZES if len(repeated.steps) < size <= most]
    return Growth(
        worlds=[_larger(repeated.world(size)) for size in larger],
        most_workers=most,
        enough_workers=enough,
        beyond=None if enough is None else _larger(repeated.world(enough + 1)),
    )


def enough_workers(step_s: Mapping[int, float]) -> int | None:
    """The fewest workers beyond which no larger world is worth its additional workers.

    `step_s` has the steps of some worlds by their size; None if that is the largest of them.
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
        yield ok(
            "workers",
            f"up to {counted(growth.most_workers, 'worker')}, each one more shortens a step"
            f" by {least} or more",
        )
        return
    made, better = growth.beyond.forecast, growth.beyond.better
    message = f"beyond {counted(growth.enough_workers, 'worker')}, each one more shortens a step"
    message += f" by less than {least}, limited by {made.limit}"
    if better is not None:
        message += f"; with strategy {better.strategy} and codec {better.codec}, {made.world_size}"
        message += f" workers take {figures.span(better.step_s)} instead of"
        message += f" {figures.span(made.step_s)}: {better.risk}"
    yield ok("workers", message)


def _forecast(world: World) -> Forecast:
    made = forecast_of(world)
    assert made is not None
    return made


def _larger(world: World) -> Larger:
    return Larger(forecast=_forecast(world), better=recommended(choices_of(world)))
