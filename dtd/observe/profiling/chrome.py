"""A profile in Chrome's trace format, which Perfetto opens: one process for each worker.  Pure.

Times are microseconds since the first span of all workers, on the coordinator's clock.  Spans on
one thread of a trace must nest or follow each other; so what overlaps is divided into lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.observe.profiling.spans import (
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
    """Events that torch recorded on one of its threads, or one stream of a GPU.

    Attributes:
        name: for people.
        rows: (name, begin_ns, end_ns) of each.
    """

    name: str
    rows: Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrace:
    """The recording of one worker, on the coordinator's clock.

    Attributes:
        name: the worker's.
        rank: in the generation.
        spans: of its training thread, its ring and its star.
        tracks: of torch.
    """

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
