"""Traces, the files of workers that they are merged from, and the offsets of their clocks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import ProfileError
from dtd.observe.profile.spans import (
    BUCKET,
    CHUNK,
    STAR_BUCKET,
    STAR_CHUNK,
    STEP,
    WAIT,
    WORD,
    Span,
)
from dtd.observe.profile.trace import (
    Reading,
    Track,
    WorkerTrace,
    decoded,
    encoded,
    offset_of,
    trace_events,
)

SPANS = [
    Span(STEP, 1000, 9000, 12),
    Span(WAIT, 2000, 3000),
    Span(BUCKET, 1500, 5000, 0),
    Span(BUCKET, 2500, 6000, 1),
    Span(WORD, 6000, 7000, 3),
    Span(CHUNK, 1600, 1700, 0, (12, 0, 0)),
    Span(CHUNK, 1800, 1900, 0, (12, 0, 0)),
    Span(CHUNK, 2000, 2100, 0, (12, 7, 1)),
    Span(STAR_BUCKET, 3000, 4000, 2),
    Span(STAR_CHUNK, 3500, 3600, 2, (12, 5, 3)),
]
TRACKS = [Track(name="thread 1", rows=[("aten::mm", 1200, 1300)])]


def rows(events, pid):
    return {
        (one["name"], one["ts"], one["dur"])
        for one in events
        if one["ph"] == "X" and one["pid"] == pid
    }


def test_each_worker_is_a_process_with_its_threads():
    second = [
        span._replace(begin_ns=span.begin_ns + 500, end_ns=span.end_ns + 500) for span in SPANS
    ]
    workers = [
        WorkerTrace(name="a", rank=0, spans=SPANS, tracks=TRACKS),
        WorkerTrace(name="b", rank=1, spans=second),
    ]
    events = list(trace_events(workers))
    assert json.loads(json.dumps(events)) == events
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0: a", "rank 1: b"}
    assert rows(events, 1) == {
        ("step 12", 0.0, 8.0),
        ("exposed communication", 1.0, 1.0),
        ("bucket 0", 0.5, 3.5),
        ("bucket 1", 1.5, 3.5),
        ("word", 5.0, 1.0),
        ("chunk: bucket 0, reduce-scatter, hop 0", 0.6, 0.1),
        ("chunk: bucket 0, reduce-scatter, hop 0", 0.8, 0.1),
        ("chunk: bucket 0, 7, hop 1", 1.0, 0.1),
        ("hop: bucket 0, reduce-scatter, hop 0", 0.6, 0.3),
        ("hop: bucket 0, 7, hop 1", 1.0, 0.1),
        ("bucket 2", 2.0, 1.0),
        ("chunk: bucket 2, pull, from rank 3", 2.5, 0.1),
        ("aten::mm", 0.2, 0.1),
    }
    assert ("step 12", 0.5, 8.0) in rows(events, 2)
    titles = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ring = {"ring: buckets", "ring: words", "ring: chunks", "ring: hops"}
    assert titles == {"training", "torch: thread 1", *ring, "star: buckets", "star: chunks"}
    (pulled,) = [e for e in events if e["name"].endswith("from rank 3") and e["pid"] == 1]
    assert pulled["args"] == {"bucket": 2, "phase": "pull", "rank": 3}


def contents():
    made = encoded(SPANS, TRACKS, ahead_ns=10**6, dropped={"spans": 1})
    return json.loads(json.dumps(made))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("spans", 5),
        ("spans", [["step", "x", 4, 0, []]]),
        ("spans", [["chunk", 0, 4, 0, [1, 2]]]),
        ("spans", ["step"]),
        ("tracks", None),
        ("tracks", [{"name": "a"}]),
        ("tracks", [{"name": "a", "rows": [5]}]),
    ],
)
def test_another_form_is_refused(key, value):
    with pytest.raises(ProfileError, match="the profile of a"):
        decoded({**contents(), key: value}, name="a", rank=0, offset_ns=0)


lengths = st.floats(0, 10)


@given(
    ahead=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(0, 1e6), lengths, lengths), min_size=1, max_size=10),
)
def test_the_true_offset_is_within_the_uncertainty(ahead, trips):
    readings = [
        Reading(sent, sent + there + back, sent + there + ahead) for sent, there, back in trips
    ]
    found = offset_of(readings)
    assert abs(found.seconds - ahead) <= found.uncertainty_s + 1e-6
    shortest = min(there + back for _, there, back in trips)
    assert found.uncertainty_s == pytest.approx(shortest / 2, abs=1e-6)
