"""Spans, lanes, hops, and sets of times."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dtd.observe.profile.spans import (
    BUCKET,
    CHUNK,
    WORD,
    RingSpans,
    Span,
    lanes,
)
from dtd.wire import messages as m

times = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda one: (one[0], sum(one)))
sets = st.lists(times, max_size=8)


@given(sets)
def test_lanes_keep_all_spans_and_none_overlaps(intervals):
    spans = [Span(BUCKET, begin, end, at) for at, (begin, end) in enumerate(intervals)]
    rows = lanes(spans)
    assert sorted(span for row in rows for span in row) == sorted(spans)
    for row in rows:
        assert all(a.end_ns <= b.begin_ns for a, b in itertools.pairwise(row))
    most = max((sum(a <= t < b for a, b in intervals) for t in range(80)), default=0)
    assert len(rows) <= max(most, 1) + sum(begin == end for begin, end in intervals)


def chunk(bucket, hop, source=0):
    return m.Chunk(generation=1, step=9, phase=1, hop=hop, bucket=bucket, chunk=0, source=source)


def test_what_a_node_says_becomes_spans():
    ring = RingSpans()
    ring.ring.bucket_done(7, 1)
    ring.ring.gather_done(3, 1)
    ring.ring.chunk_done(chunk(7, 0), 1)
    assert ring.log.spans == [], "it had begun before"
    ring.ring.bucket_started(0, 10)
    ring.ring.bucket_started(1, 11)
    ring.ring.chunk_announced(0, 12)
    ring.ring.chunk_done(chunk(1, 2), 13)
    ring.ring.bucket_done(1, 14)
    ring.ring.bucket_done(0, 15)
    ring.ring.bucket_done(0, 16)
    ring.ring.gather_offered(17)
    ring.ring.gather_done(4, 18)
    assert ring.log.spans == [
        Span(CHUNK, 12, 13, 1, (9, 1, 2)),
        Span(BUCKET, 11, 14, 1),
        Span(BUCKET, 10, 15, 0),
        Span(WORD, 17, 18, 4),
    ]
