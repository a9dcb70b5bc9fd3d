"""Profiles in one process, without a ring's thread."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from threading import Event

import torch

from dtd.observe.profile.spans import COMMIT, COMPUTE, DATA, STEP, WAIT
from dtd.observe.profile.trace import decoded
from dtd.train.profile import _PROFILER as PROFILER
from dtd.train.profile import ProfileOrder, StepProfiler
from dtd.train.profile import _unix_ahead_ns as unix_ahead_ns


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


def test_a_generation_that_ends_ends_it_with_what_it_has(tmp_path):
    profiler, ring, asked = StepProfiler(), Ring(), Asked(tmp_path, steps=50)
    profiler.asked = asked.order
    step(profiler, ring, 0)
    profiler.end_generation(ring, waits=True)
    assert asked.done.is_set()
    assert asked.said["steps"] == 1
    assert ring.told == [True, False]


def test_it_lasts_no_longer_than_its_limit(tmp_path):
    profiler, ring, asked = StepProfiler(), Ring(), Asked(tmp_path, steps=50, limit_s=0.0)
    profiler.asked = asked.order
    for number in range(9):
        step(profiler, ring, number)
    asked.trace()
    assert asked.said["steps"] == 1
    assert ring.told == [True, False], "not once more while the file is written"


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "profiles").write_text("a file")
    profiler, ring, asked = StepProfiler(), Ring(), Asked(tmp_path, steps=1)
    profiler.asked = asked.order
    for number in range(2):
        step(profiler, ring, number)
    assert asked.done.wait(60)
    assert "cannot be written" in asked.said["reason"]
    assert profiler.asked is None


def test_beside_a_process_group_torch_is_not_recorded(tmp_path):
    profiler, ring, asked = StepProfiler(sees_torch=False), Ring(), Asked(tmp_path, steps=1)
    profiler.asked = asked.order
    for number in range(2):
        step(profiler, ring, number)
    assert asked.trace().tracks == []
    assert "does not run beside a process group" in asked.said["note"]
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


class Interrupted:
    """Clocks, between whose readings the training thread may have the processor for 5 ms."""

    def __init__(self):
        self.now_ns = 0
        self.pauses_ns = itertools.cycle([0, 0, 5_000_000, 0, 5_000_000, 0, 0, 0, 0])

    def monotonic_ns(self):
        self.now_ns += next(self.pauses_ns)
        return self.now_ns

    def time_ns(self):
        return self.monotonic_ns() + 1_000_000_000


def test_a_thread_that_waits_between_two_clocks_does_not_shift_the_spans(monkeypatch):
    monkeypatch.setattr("dtd.train.profile.time", Interrupted())
    assert unix_ahead_ns() == 1_000_000_000
