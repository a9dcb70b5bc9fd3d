"""Spans, lanes, hops, and sets of times."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dtd.observe.profile.spans import (
    BUCKET,
    CHUNK,
    HOP,
    STAR_BUCKET,
    STAR_CHUNK,
    WORD,
    RingSpans,
    Span,
    common,
    hops,
    lanes,
    length_ns,
    union,
)
from dtd.wire import messages as m

times = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda one: (one[0], sum(one)))
sets = st.lists(times, max_size=8)


def points(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(sets)
def test_a_union_has_the_same_moments_in_order_and_apart(intervals):
    found = union(intervals)
    assert points(found) == points(intervals)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
    assert length_ns(found) == len(points(intervals))


@given(sets, sets)
def test_what_is_common_is_in_both(first, second):
    found = common(union(first), union(second))
    assert points(found) == points(first) & points(second)
    assert length_ns(found) == len(points(found))


@given(sets)
def test_lanes_keep_all_spans_and_none_overlaps(intervals):
    spans = [Span(BUCKET, begin, end, at) for at, (begin, end) in enumerate(intervals)]
    rows = lanes(spans)
    assert sorted(span for row in rows for span in row) == sorted(spans)
    for row in rows:
        assert all(a.end_ns <= b.begin_ns for a, b in itertools.pairwise(row))
    most = max((sum(a <= t < b for a, b in intervals) for t in range(80)), default=0)
    assert len(rows) <= max(most, 1) + sum(begin == end for begin, end in intervals)


def test_a_hop_is_all_of_its_chunks():
    chunks = [
        Span(CHUNK, 5, 7, 1, (9, 0, 0)),
        Span(CHUNK, 1, 3, 1, (9, 0, 0)),
        Span(CHUNK, 2, 4, 1, (9, 0, 1)),
        Span(CHUNK, 8, 9, 1, (10, 0, 0)),
    ]
    assert hops(chunks) == [
        Span(HOP, 1, 7, 1, (9, 0, 0)),
        Span(HOP, 2, 4, 1, (9, 0, 1)),
        Span(HOP, 8, 9, 1, (10, 0, 0)),
    ]
    assert hops([]) == []


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


def test_chunks_of_a_star_come_over_several_links_at_once():
    ring = RingSpans()
    ring.star.bucket_done(0, 1)
    ring.star.chunk_done(chunk(0, 0, source=2), 1)
    assert ring.log.spans == [], "it had begun before"
    ring.star.bucket_started(0, 10)
    ring.ring.bucket_started(0, 11)
    ring.star.chunk_announced(1, 12)
    ring.star.chunk_announced(2, 13)
    ring.star.chunk_done(chunk(0, 0, source=1), 14)
    ring.star.chunk_done(chunk(0, 0, source=2), 15)
    ring.star.bucket_done(0, 16)
    assert ring.log.spans == [
        Span(STAR_CHUNK, 12, 14, 0, (9, 1, 1)),
        Span(STAR_CHUNK, 13, 15, 0, (9, 1, 2)),
        Span(STAR_BUCKET, 10, 16, 0),
    ]
