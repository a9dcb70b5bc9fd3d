"""Answers GET_METRICS from the metrics store, in its thread; sends nothing.

An answer has as many series as fit; `next` is where the following one goes on.  A plot takes the
coarsest level that still has a bucket for every two points.  Where the rows of that level have
been removed, coarser ones stand in for them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from dtd.errors import RequestRefused
from dtd.observe.pyramid import LEVELS, Cell, aligned, merged, unpack_column, width
from dtd.observe.series import (
    EVALUATION,
    LINK_COLUMNS,
    LINK_MARK,
    STEP_COLUMNS,
    WORKER_COLUMNS,
    Kind,
)
from dtd.observe.store import MetricsStore
from dtd.rules import did_you_mean
from dtd.text.shown import shown
from dtd.wire import messages as m

MOST_POINTS: Final = 20_000
"""Most points of all columns of an answer: packing them must not hold the event loop up."""


class Slot(NamedTuple):
    """Buckets from `first` to before `stop`, of those that were read, that become one point."""

    begin: int
    end: int
    first: int
    stop: int


def level_for(begin: int, end: int, points: int) -> int:
    """The coarsest level with a bucket for every two points from `begin` to `end`; else 0."""
    span = end - begin + 1
    fitting = [level for level in range(LEVELS) if 2 * (span // width(level)) >= points]
    return max(fitting, default=0)


def slots_of(buckets: Iterable[tuple[int, int]], begin: int, end: int, points: int) -> list[Slot]:
    """Return at most `points` slots of buckets, which are given in order, by level and number."""
    span = max(1, end - begin + 1)
    made: list[Slot] = []
    newest = -1
    for place, (level, number) in enumerate(buckets):
        first = number * width(level)
        here = max(0, min(points - 1, (first - begin) * points // span))
        last = min(end, first + width(level) - 1)  # the newest bucket is not full
        if here == newest:
            made[-1] = Slot(made[-1].begin, last, made[-1].first, place + 1)
        else:
            made.append(Slot(first, last, place, place + 1))
            newest = here
    return made


_OF_THE_JOB = (Kind.STEPS, Kind.EVALUATIONS)
_TIME = STEP_COLUMNS.index("unix_s")
_EVALUATION_LOSS = f"{EVALUATION}loss"


class _Track(NamedTuple):
    """One track; `first` has the first bucket of each level, None of a level without any."""

    number: int
    kind: Kind
    name: str
    columns: tuple[str, ...]
    newest: int
    first: tuple[int | None, ...]


_Column = tuple[_Track, int]
"""A column of a track, by its place."""


class Point(NamedTuple):
    """One point of a plot: the positions from `begin` to `end`."""

    begin: int
    end: int
    cell: Cell


def answer(store: MetricsStore, request: m.GetMetrics) -> dict[str, Any]:
    """The series that are asked for, and the next cursor.

    Raises:
        RequestRefused: the job has no figure of such a name.
    """
    tracks = _tracks(store, request.job)
    steps = next((one for one in tracks if one.kind is Kind.STEPS), None)
    points = max(1, min(request.points, MOST_POINTS))
    page = _wanted(tracks, request)[request.after :][: max(1, MOST_POINTS // points)]
    found = []
    for track, columns in itertools.groupby(page, lambda column: column[0]):
        begin, end = _range(store, track, steps, request)
        places = [place for _, place in columns]
        curves = _drawn(store, track, places, begin, end, points)
        found += [
            _series(track, track.columns[place], drawn)
            for place, drawn in zip(places, curves, strict=True)
        ]
    return {
        "job": request.job,
        "steps": max(0, steps.newest) if steps is not None else 0,
        "series": found,
        "next": request.after + len(page),
    }


def _tracks(store: MetricsStore, job: str) -> list[_Track]:
    rows = store.read(
        "SELECT tracks.number, kind, name, columns, newest FROM tracks"
        " JOIN jobs ON jobs.number = tracks.job WHERE jobs.id=? ORDER BY tracks.number",
        job,
    )
    made = []
    for number, kind, name, columns, newest in rows:
        query = "SELECT min(bucket) FROM cells WHERE track=? AND level=?"
        first = tuple(store.read(query, number, level)[0][0] for level in range(LEVELS))
        names = tuple(json.loads(columns))
        made.append(_Track(number, Kind(kind), name, names, newest, first))
    order = list(Kind)
    return sorted(made, key=lambda one: (order.index(one.kind), one.name))


def _wanted(tracks: Sequence[_Track], request: m.GetMetrics) -> list[_Column]:
    shown_tracks = [one for one in tracks if request.workers or one.kind in _OF_THE_JOB]
    if tracks:
        _check_names(tracks, shown_tracks, request)
    return [
        (track, place)
        for track in shown_tracks
        for place, name in enumerate(track.columns)
        if not request.names or name in request.names
    ]


def _check_names(
    tracks: Sequence[_Track], shown_tracks: Sequence[_Track], request: m.GetMetrics
) -> None:
    # A job that has just begun, or was short, may have no evaluation and no figures of its workers;
    # one of a single worker has no links.
    of_job, of_workers = {*STEP_COLUMNS, _EVALUATION_LOSS}, {*WORKER_COLUMNS, *LINK_COLUMNS}
    known = {*of_job, *(name for track in shown_tracks for name in track.columns)}
    if request.workers:
        known |= of_workers
    anywhere = {*of_job, *of_workers, *(name for track in tracks for name in track.columns)}
    for name in request.names:
        if name in known:
            continue
        if name in anywhere:
            why, remedy = "is a figure of its workers", "add --workers"
        else:
            why = f"is no figure of job {request.job}{did_you_mean(name, sorted(anywhere))}"
            remedy = f"list them: dtdctl metrics {request.job} --workers"
        raise RequestRefused(f"{shown(name)} {why}", remedy=remedy)


def _range(
    store: MetricsStore, track: _Track, steps: _Track | None, request: m.GetMetrics
) -> tuple[int, int]:
    """First and last position; of workers and links the seconds in which the steps were taken.

    Without a last step they go on to the newest second: workers report between two steps as well.
    """
    first, last = (track.first[-1] or 0) * width(LEVELS - 1), track.newest
    begin, end = request.from_step, request.to_step or last
    if track.kind in _OF_THE_JOB:
        return max(first, begin), min(last, end)
    if steps is None or not (request.from_step or request.to_step):
        return first, last
    until = min(steps.newest, request.to_step or steps.newest)
    (drawn,) = _drawn(store, steps, [_TIME], request.from_step, until, 2)
    cells = [one.cell for one in drawn if one.cell.values]
    if not cells:
        return last + 1, last
    begin = max(first, int(cells[0].least))
    return begin, min(last, int(cells[-1].greatest)) if request.to_step else last


def _drawn(
    store: MetricsStore,
    track: _Track,
    places: Sequence[int],
    begin: int,
    end: int,
    points: int,
) -> Iterator[list[Point]]:
    begin = max(begin, _first_row(track))
    buckets = _buckets(store, track, begin, end, level_for(begin, end, points))
    slots = slots_of(((level, number) for level, number, _data in buckets), begin, end, points)
    rows = [(level, data) for level, _number, data in buckets]
    for place in places:
        cells = unpack_column(rows, place)
        yield [Point(one.begin, one.end, merged(cells[one.first : one.stop])) for one in slots]


def _first_row(track: _Track) -> int:
    """Return the track's first row, as exactly as known: plots begin where there is something."""
    first = 0
    for level in reversed(range(LEVELS)):
        here = (track.first[level] or 0) * width(level)
        is_removed = level < LEVELS - 1 and here >= first + width(level + 1)
        if is_removed:
            break
        first = here
    return first


def _buckets(
    store: MetricsStore, track: _Track, begin: int, end: int, level: int
) -> list[tuple[int, int, bytes]]:
    """Return level, number and data of the buckets, in order and without overlaps.

    Where the rows of a level have been removed, the next one has them, up to the first bucket of
    it that the finer level has whole.
    """
    found: list[tuple[int, int, bytes]] = []
    query = (
        "SELECT level, bucket, data FROM cells WHERE track=? AND level=? AND bucket BETWEEN ? AND ?"
        " ORDER BY bucket"
    )
    for one in range(level, LEVELS):
        first = track.first[one]
        if first is None or end < begin:
            break
        whole_from = aligned(one, first * width(one)) * width(one)
        lower = max(begin, whole_from) // width(one)
        found = store.read(query, track.number, one, lower, end // width(one)) + found
        end = min(end, whole_from - 1)
    return found


def _series(track: _Track, name: str, drawn: Sequence[Point]) -> dict[str, Any]:
    source, _, to = track.name.partition(LINK_MARK)
    return {
        "name": name,
        "kind": track.kind.value,
        "source": source,
        "to": to,
        "points": [_numbers(one) for one in drawn],
    }


def _numbers(point: Point) -> list[Any]:
    cell = point.cell
    figures = [cell.least, cell.mean, cell.greatest] if cell.values else [None, None, None]
    return [point.begin, point.end, cell.values, *figures]
