"""The store of figures on a real file: what it remembers, and what costs only figures."""

from __future__ import annotations

import sqlite3

import pytest

from dtd.errors import RequestRefused
from dtd.observe import query
from dtd.observe.series import step_entries, step_entry
from dtd.observe.store import DAMAGED_NAME, FILE_NAME, MetricsStore
from dtd.wire import messages as m
from dtd.wire.step_rows import pack_step_rows
from tests.unit.observe.reports import progress, row

LIMIT_BYTES = 1 << 30


class Box:
    """A store, and short ways to fill it and to ask."""

    def __init__(self, directory, limit_bytes=LIMIT_BYTES):
        self.told = []
        self.directory = directory
        self.store = MetricsStore(directory, limit_bytes, self.told.append)

    def write(self, *entries, identity="i", unix_s=1000.0):
        self.store.write([(identity, one) for one in entries], unix_s)

    def steps(self, begin, end, *, job="j-1", generation=1, unix_s=1000.0, **changed):
        rows = (row(step, generation, loss=float(step), **changed) for step in range(begin, end))
        entries = [step_entry(job, one, unix_s + one.step) for one in rows]
        self.write(*entries, unix_s=unix_s)

    def ask(self, job="j-1", **request):
        return query.answer(self.store, m.GetMetrics(job=job, **request))

    def loss(self, **request):
        (found,) = self.ask(names=("loss",), **request)["series"]
        return found["points"]


@pytest.fixture
def box(tmp_path):
    made = Box(tmp_path)
    yield made
    made.store.close()


def test_every_step_is_remembered(box):
    box.steps(1, 30)
    assert box.loss() == [[step, step, 1, step, step, step] for step in range(1, 30)]
    assert box.ask()["steps"] == 29


def test_steps_of_one_report_ended_one_after_another(box):
    steps = pack_step_rows([row(step, 1, step_s=0.5) for step in (7, 8, 9)])
    box.write(*step_entries(progress(job="j-1", step=9, steps=steps), 1000.0))
    (times,) = box.ask(names=("unix_s",))["series"]
    assert [point[4] for point in times["points"]] == [999.0, 999.5, 1000.0]


def test_a_short_job_has_no_figures_of_workers_and_no_evaluations_yet(box):
    box.steps(1, 3)
    names = ("memory_bytes", "round_trip_s", "eval/loss")
    assert box.ask(names=names, workers=True)["series"] == []
    with pytest.raises(RequestRefused, match="is a figure of its workers"):
        box.ask(names=names)


def test_a_plot_of_many_steps_has_their_sums(box):
    box.steps(1, 5001)
    found = box.loss(points=7)
    assert len(found) <= 7
    assert found[-1][1] == 5000  # and not where its bucket ends
    assert sum(point[2] for point in found) == 5000
    assert sum(point[2] * point[4] for point in found) == pytest.approx(5000 * 5001 / 2)
    assert (min(point[3] for point in found), max(point[5] for point in found)) == (1, 5000)


def test_steps_that_were_trained_again_replace_those_that_were_lost(box):
    box.steps(1, 21)
    box.steps(10, 12, generation=2, gradient_norm=9.0)
    assert len(box.loss()) == 11
    (found,) = box.ask(names=("gradient_norm",), points=1)["series"]
    assert found["points"][0][2:] == [11, 2.0, (9 * 2.0 + 2 * 9.0) / 11, 9.0]


def test_a_deleted_job_leaves_nothing(box):
    box.steps(1, 11)
    box.steps(1, 11, job="j-2")
    box.store.forget("j-1")
    box.store.forget("unknown")
    assert box.ask()["series"] == []
    assert len(box.loss(job="j-2")) == 10
    box.steps(1, 3)
    assert len(box.loss()) == 2


# --- room --------------------------------------------------------------------------------------


def test_a_store_that_is_full_keeps_coarser_steps_of_the_job_that_holds_most(tmp_path):
    box = Box(tmp_path)
    box.steps(1, 101, job="small")
    box.steps(1, 5001)
    before = box.store.used_bytes()
    box.store.close()
    box.store = MetricsStore(tmp_path, before // 2, box.told.append)
    for step in range(5001, 5011):
        box.steps(step, step + 1)
    assert box.store.used_bytes() <= before // 2
    assert len(box.loss(job="small")) == 100
    assert sum(point[2] for point in box.loss(points=20_000)) == 5010
    box.store.close()


# --- the file ----------------------------------------------------------------------------------


def test_a_damaged_store_is_set_aside_and_replaced(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    box = Box(tmp_path)
    box.steps(1, 3)
    assert len(box.loss()) == 2
    assert (tmp_path / DAMAGED_NAME).read_bytes().startswith(b"no database")
    assert DAMAGED_NAME in box.told[0]
    box.store.close()


def test_a_full_disk_loses_no_row_that_is_written_again(box):
    box.steps(1, 3)
    pages = box.store.read("PRAGMA page_count")[0][0]
    box.store.read(f"PRAGMA max_page_count={pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        box.steps(3, 2000)
    assert len(box.loss()) == 2
    box.store.read("PRAGMA max_page_count=1000000")
    box.steps(3, 2000)
    (point,) = box.loss(points=1)
    assert point[2] == 1999


def test_steps_trained_again_count_once_at_every_resolution(box):
    box.steps(1, 3001)
    box.steps(1500, 1600, generation=2)
    box.steps(1600, 2001, generation=2)
    for points in (1, 10, 3000):
        found = box.loss(points=points)
        assert sum(point[2] for point in found) == 2000
        assert sum(point[2] * point[4] for point in found) == pytest.approx(2000 * 2001 / 2)
