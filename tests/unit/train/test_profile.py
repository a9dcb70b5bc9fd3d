"""Profiles in one process, without a ring's thread."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from threading import Event

import torch

from dtd.observe.profile.spans import COMMIT, COMPUTE, DATA, STEP, WAIT
from dtd.observe.profile.trace import decoded
from dtd.train.profile import _PROFILER as PROFILER
from dtd.train.profile import ProfileOrder, StepProfiler


class Ring:
    """Says what it is told to record."""

    def __init__(self):
        self.told = []

    def record(self, waits, ring):
        self.told.append(waits is not None)
        if waits is not None:
            waits.add(WAIT, 1, 2)


class Asked:
    """An order, and what was said when it was done."""

    def __init__(self, directory, steps=2, **changed):
        self.said = {}
        self.done = Event()
        self.path = directory / "profiles" / "a.json.gz"
        order = ProfileOrder(
            steps=steps, limit_s=60.0, first_step=0, path=self.path, done=self.on_done
        )
        self.order = replace(order, **changed)

    def on_done(self, said):
        self.said = dict(said)
        self.done.set()

    def trace(self):
        assert self.done.wait(60)
        with gzip.open(self.path) as file:
            return decoded(json.load(file), name="w", rank=0, offset_ns=0)


def step(profiler, ring, number):
    profiler.advance(ring, number)
    marks = profiler.marks
    marks.begin_step()
    marks.loaded(0.0)
    torch.zeros(4) + 1
    marks.ended(COMPUTE)
    marks.ended(COMMIT)
    marks.end_step(number + 1)


def kinds(trace):
    return [span.kind for span in trace.spans]


def test_so_many_steps_are_recorded_from_the_first_one_on(tmp_path):
    profiler, ring, asked = StepProfiler(), Ring(), Asked(tmp_path, first_step=2)
    profiler.asked = asked.order
    for number in range(6):
        step(profiler, ring, number)
    trace = asked.trace()
    assert asked.said == {"steps": 2, "dropped": {"spans": 0, "operations": 0}, "note": ""}
    assert kinds(trace) == [WAIT, *[DATA, COMPUTE, COMMIT, STEP] * 2]
    assert [span.number for span in trace.spans if span.kind == STEP] == [3, 4]
    names = [name for track in trace.tracks for name, _, _ in track.rows]
    assert names.count("aten::zeros") == 2
    assert ring.told == [True, False]
    assert profiler.asked is None
    assert not PROFILER.locked()


def test_what_the_profiler_takes_is_work_that_is_new_each_time(tmp_path):
    begun = []
    profiler, ring = StepProfiler(begins=begun.append), Ring()
    for name in ("a.json.gz", "b.json.gz"):
        asked = Asked(tmp_path, steps=1, path=tmp_path / name)
        profiler.asked = asked.order
        step(profiler, ring, 0)
        profiler.advance(ring, 1)
        assert asked.done.wait(60)
        profiler._writer.join()
    assert len(begun) == len(set(begun)) == 4
