"""A profile: each worker's file, and all of them in Chrome's trace format on one clock.  Pure.

A worker's file is a JSON object: `spans` of the training thread and the ring, `tracks` of torch,
both with Unix times in nanoseconds by that worker's clock, and what was left out.  Perfetto opens
the merged trace: one process for each worker, times in microseconds since the first span on the
coordinator's clock.  Spans on one thread of a trace must nest or follow each other; so what
overlaps is divided into lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dtd.errors import ProfileError
from dtd.observe.profile.spans import (
    BUCKET,
    CHUNK,
    HOP,
    MAX_SPANS,
    RING_KINDS,
    STAR_BUCKET,
    STAR_CHUNK,
    STEP,
    TRAINING_KINDS,
    Span,
    hops,
    lanes,
)


class Reading(NamedTuple):
    """One round trip, in seconds: question and answer by our clock, `theirs_s` by the other."""

    sent_s: float
    received_s: float
    theirs_s: float


class Offset(NamedTuple):
    """The offset of another clock from the coordinator's; negative if it is behind.

    The true offset differs by no more than `uncertainty_s`, if both clocks run evenly.
    """

    seconds: float
    uncertainty_s: float


def offset_of(readings: Sequence[Reading]) -> Offset:
    """Return the offset by the reading that took the least time; there is at least one."""
    best = min(readings, key=lambda one: one.received_s - one.sent_s)
    half_s = max(0.0, best.received_s - best.sent_s) / 2
    return Offset(best.theirs_s - (best.sent_s + half_s), half_s)


_PHASES: Final = ("reduce-scatter", "all-gather", "exchange", "push", "summed", "pull")
_TRAINING_THREAD: Final = 1
_TITLES: Final = {
    **{kind: f"ring: {kind}s" for kind in RING_KINDS},
    STAR_BUCKET: "star: buckets",
    STAR_CHUNK: "star: chunks",
}
_WIRE_THREADS: Final = {kind: MAX_SPANS * (at + 1) for at, kind in enumerate(_TITLES)}
"""The first lane's number; there are never more lanes than spans."""
_TORCH_THREADS: Final = MAX_SPANS * (len(_TITLES) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Spans of torch on a thread, or a stream of a GPU: (name, begin_ns, end_ns) of each."""

    name: str
    rows: Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrace:
    """The recording of one worker, on the coordinator's clock: of dtd's threads, and of torch."""

    name: str
    rank: int
    spans: Sequence[Span]
    tracks: Sequence[Track] = ()


def trace_events(workers: Sequence[WorkerTrace]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, those that name processes and threads before their spans."""
    begin_ns = min(
        (begin for worker in workers for begin in _begins(worker)),
        default=0,
    )
    for worker in workers:
        pid = worker.rank + 1
        yield _named("process_name", pid, 0, f"rank {worker.rank}: {worker.name}")
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid, title, rows in _threads(worker):
            yield _named("thread_name", pid, tid, title)
            place = {"pid": pid, "tid": tid, "args": {"sort_index": tid}}
            yield {"ph": "M", "name": "thread_sort_index", **place}
            for name, begin, end, arguments in rows:
                yield {
                    "ph": "X",
                    "name": name,
                    "cat": title,
                    "pid": pid,
                    "tid": tid,
                    "ts": (begin - begin_ns) / 1000,
                    "dur": (end - begin) / 1000,
                    **({"args": arguments} if arguments else {}),
                }


_Row = tuple[str, int, int, Mapping[str, Any]]


def _begins(worker: WorkerTrace) -> Iterator[int]:
    yield from (span.begin_ns for span in worker.spans)
    yield from (begin for track in worker.tracks for _, begin, _ in track.rows)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _threads(worker: WorkerTrace) -> Iterator[tuple[int, str, Iterable[_Row]]]:
    """Yield (thread, title, rows) of everything that a worker recorded."""
    training = [span for span in worker.spans if span.kind in TRAINING_KINDS]
    yield _TRAINING_THREAD, "training", map(_row, training)
    for kind in _TITLES:
        of_kind = [span for span in worker.spans if span.kind == kind]
        if kind == HOP:
            of_kind = hops(span for span in worker.spans if span.kind == CHUNK)
        for at, lane in enumerate(lanes(of_kind)):
            yield _WIRE_THREADS[kind] + at, _TITLES[kind], map(_row, lane)
    for at, track in enumerate(worker.tracks):
        rows: Iterable[_Row] = ((name, begin, end, {}) for name, begin, end in track.rows)
        yield _TORCH_THREADS + at, f"torch: {track.name}", rows


def _row(span: Span) -> _Row:
    name, arguments = span.kind, dict[str, Any]()
    if span.kind in (STEP, BUCKET):
        name = f"{span.kind} {span.number}"
    elif span.kind == STAR_BUCKET:
        name = f"bucket {span.number}"
    elif span.kind in (CHUNK, HOP, STAR_CHUNK):
        _, phase, where = span.detail
        phase_name = _PHASES[phase] if phase < len(_PHASES) else str(phase)
        if span.kind == STAR_CHUNK:
            name, place = f"chunk: bucket {span.number}, {phase_name}, from rank {where}", "rank"
        else:
            name, place = f"{span.kind}: bucket {span.number}, {phase_name}, hop {where}", "hop"
        arguments = {"bucket": span.number, "phase": phase_name, place: where}
    return name, span.begin_ns, span.end_ns, arguments


FORMAT: Final = 1
MAX_TRACKS: Final = 256
MAX_ROWS: Final = 200_000
"""Most rows of all of torch's tracks together."""
MAX_NAME_CHARACTERS: Final = 200
MAX_JSON_BYTES: Final = 128 << 20
_CHUNK_DETAIL: Final = 3


def encoded(
    spans: Sequence[Span], tracks: Sequence[Track], *, ahead_ns: int, dropped: Mapping[str, int]
) -> dict[str, Any]:
    """Return the contents of a file.

    Spans are by the monotonic clock, tracks by the Unix clock, which is `ahead_ns` ahead of it.
    """
    return {
        "format": FORMAT,
        "spans": [
            [one.kind, one.begin_ns + ahead_ns, one.end_ns + ahead_ns, one.number, [*one.detail]]
            for one in spans
        ],
        "tracks": [
            {
                "name": track.name[:MAX_NAME_CHARACTERS],
                "rows": [[name[:MAX_NAME_CHARACTERS], *times] for name, *times in track.rows],
            }
            for track in tracks
        ],
        "dropped": dict(dropped),
    }


def decoded(contents: Any, *, name: str, rank: int, offset_ns: int) -> WorkerTrace:
    """Return a worker's recording on the coordinator's clock; its own is `offset_ns` ahead.

    Raises:
        ProfileError: it has another form.
    """
    try:
        if contents["format"] != FORMAT:
            raise ProfileError(
                f"the profile of {name} has an unknown format",
                remedy="install the same dtd version on all hosts",
            )
        return WorkerTrace(
            name=name,
            rank=rank,
            spans=[_span(offset_ns, *row) for row in contents["spans"]],
            tracks=[
                Track(name=str(one["name"]), rows=[_row_of(offset_ns, *row) for row in one["rows"]])
                for one in contents["tracks"]
            ],
        )
    except (KeyError, TypeError, ValueError):
        raise ProfileError(f"the profile of {name} is no recording of a worker") from None


def _span(
    offset_ns: int, kind: str, begin_ns: int, end_ns: int, number: int, detail: Sequence[int]
) -> Span:
    if len(detail) != (_CHUNK_DETAIL if kind in (CHUNK, STAR_CHUNK) else 0):
        raise ValueError(kind)
    return Span(kind, begin_ns - offset_ns, end_ns - offset_ns, int(number), tuple(detail))


def _row_of(offset_ns: int, name: str, begin_ns: int, end_ns: int) -> tuple[str, int, int]:
    return str(name), begin_ns - offset_ns, end_ns - offset_ns
