"""Spans of time that a worker records while it is profiled, bounded in number.  Pure.

A span is (kind, begin, end, number, detail), with times in nanoseconds of one clock.  Spans of the
training thread nest: a step contains its phases, and phases contain the waits for the ring.  Those
of the ring overlap as its buckets do; they are recorded in the thread of the nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dtd.observe.step_parts import STEP_PARTS
from dtd.wire.messages import Chunk

MAX_SPANS: Final = 100_000
"""Most spans of one kind of track in one profile."""

NS: Final = 1e9
"""Nanoseconds of a second."""

STEP: Final = "step"
DATA, COMPUTE, WAIT, COMMIT = (part.name for part in STEP_PARTS)
COLLECT: Final = "collect"
VOTE: Final = "vote"
BUCKET: Final = "bucket"
WORD: Final = "word"
CHUNK: Final = "chunk"
HOP: Final = "hop"
STAR_BUCKET: Final = "star bucket"
STAR_CHUNK: Final = "star chunk"

TRAINING_KINDS: Final = (STEP, DATA, COMPUTE, COLLECT, VOTE, COMMIT, WAIT)
RING_KINDS: Final = (BUCKET, WORD, HOP, CHUNK)


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        kind: what, one of the constants above.
        number: of the step, the bucket or the exchange.
        detail: what else is known: of a chunk and a hop (step, phase, hop), of a star's chunk
            (step, phase, the rank it comes from).
    """

    kind: str
    begin_ns: int
    end_ns: int
    number: int = 0
    detail: tuple[int, ...] = ()


class SpanLog:
    """The first spans in the order in which they ended; belongs to one thread.

    Attributes:
        dropped: how many were not kept.
    """

    def __init__(self, limit: int = MAX_SPANS) -> None:
        self.spans: list[Span] = []
        self.dropped = 0
        self._limit = limit

    def add(
        self, kind: str, begin_ns: int, end_ns: int, number: int = 0, detail: tuple[int, ...] = ()
    ) -> None:
        if len(self.spans) < self._limit:
            self.spans.append(Span(kind, begin_ns, end_ns, number, detail))
        else:
            self.dropped += 1


def hops(chunks: Iterable[Span]) -> list[Span]:
    """Return a span for each hop: from its first chunk's begin to its last chunk's end."""
    found: dict[tuple[int, tuple[int, ...]], Span] = {}
    for one in chunks:
        known = found.get((one.number, one.detail), one)
        found[one.number, one.detail] = Span(
            HOP,
            min(known.begin_ns, one.begin_ns),
            max(known.end_ns, one.end_ns),
            one.number,
            one.detail,
        )
    return sorted(found.values(), key=lambda span: span.begin_ns)


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Divide spans that overlap into rows in which none does, as few as possible."""
    rows: list[list[Span]] = []
    ends: list[tuple[int, int]] = []  # (end of a row, its index), the earliest first
    for span in sorted(spans, key=lambda one: (one.begin_ns, one.end_ns)):
        if ends and ends[0][0] <= span.begin_ns:
            _, at = heapq.heapreplace(ends, (span.end_ns, ends[0][1]))
            rows[at].append(span)
        else:
            heapq.heappush(ends, (span.end_ns, len(rows)))
            rows.append([span])
    return rows


# --- sets of times, as sorted intervals that do not touch ----------------------------------------

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same times as intervals that neither overlap nor touch."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def common(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the times in both of two unions."""
    found: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def length_ns(intervals: Iterable[Interval]) -> int:
    """Return the sum of the lengths of a union."""
    return sum(end - begin for begin, end in intervals)


class RingSpans:
    """The spans of one generation, of its ring and its star; those begun earlier are left out."""

    def __init__(self) -> None:
        self.log = SpanLog()
        self.ring = NodeSpans(self.log, is_star=False)
        self.star = NodeSpans(self.log, is_star=True)


class NodeSpans:
    """Turns the events of one node, a ring's or a star's, into spans of a log."""

    def __init__(self, log: SpanLog, *, is_star: bool) -> None:
        self._log = log
        self._is_star = is_star
        self._buckets: dict[int, int] = {}
        self._chunks: dict[int, int] = {}
        self._gather_ns: int | None = None

    def bucket_started(self, bucket: int, now_ns: int) -> None:
        """This rank's contribution is complete, or its memory may be written to."""
        self._buckets[bucket] = now_ns

    def bucket_done(self, bucket: int, now_ns: int) -> None:
        """The bucket holds the result."""
        begun_ns = self._buckets.pop(bucket, None)
        if begun_ns is not None:
            self._log.add(STAR_BUCKET if self._is_star else BUCKET, begun_ns, now_ns, bucket)

    def gather_offered(self, now_ns: int) -> None:
        """A small gather begins; there is one at a time."""
        self._gather_ns = now_ns

    def gather_done(self, sequence: int, now_ns: int) -> None:
        """All entries of a small gather are here."""
        if self._gather_ns is not None:
            self._log.add(WORD, self._gather_ns, now_ns, sequence)
        self._gather_ns = None

    def chunk_announced(self, source: int, now_ns: int) -> None:
        """A chunk's header has arrived; those of one rank come one after the other."""
        self._chunks[source] = now_ns

    def chunk_done(self, chunk: Chunk, now_ns: int) -> None:
        """The chunk is here, and added where it is to be."""
        begun_ns = self._chunks.pop(chunk.source, None)
        if begun_ns is not None:
            kind = STAR_CHUNK if self._is_star else CHUNK
            last = chunk.source if self._is_star else chunk.hop
            self._log.add(kind, begun_ns, now_ns, chunk.bucket, (chunk.step, chunk.phase, last))
