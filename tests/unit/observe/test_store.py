"""The store of figures on a real file: what it remembers, and what costs only figures."""

from __future__ import annotations

import sqlite3

import pytest

from dtd.errors import RequestRefused
from dtd.observe import query
from dtd.observe.pyramid import FACTOR
from dtd.observe.series import (
    evaluation_entry,
    link_entry,
    step_entry,
    worker_entry,
)
from dtd.observe.store import DAMAGED_NAME, FILE_NAME, GROWING, MetricsStore
from dtd.wire import messages as m
from tests.unit.observe.reports import row

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


def test_a_store_that_is_opened_again_goes_on(box):
    box.steps(1, 11)
    box.store.close()
    box.steps(11, 21)
    assert len(box.loss()) == 20
    (point,) = box.loss(points=1)
    assert point[2:] == [20, 1.0, 10.5, 20.0]


def test_a_plot_of_many_steps_has_their_sums(box):
    box.steps(1, 5001)
    found = box.loss(points=7)
    assert len(found) <= 7
    assert sum(point[2] for point in found) == 5000
    assert sum(point[2] * point[4] for point in found) == pytest.approx(5000 * 5001 / 2)
    assert (min(point[3] for point in found), max(point[5] for point in found)) == (1, 5000)


def test_steps_that_were_trained_again_replace_those_that_were_lost(box):
    box.steps(1, 21)
    box.steps(10, 12, generation=2, gradient_norm=9.0)
    assert len(box.loss()) == 11
    (found,) = box.ask(names=("gradient_norm",), points=1)["series"]
    assert found["points"][0][2:] == [11, 2.0, (9 * 2.0 + 2 * 9.0) / 11, 9.0]


def test_what_is_told_twice_counts_once(box):
    box.steps(1, 11)
    box.steps(5, 13)
    (point,) = box.loss(points=1)
    assert point[2:4] == [12, 1.0]


def test_a_step_committed_at_a_take_over_has_no_times(box):
    box.steps(1, 2, step_s=0.0, compute_s=0.0)
    found = {one["name"]: one["points"][0] for one in box.ask()["series"]}
    assert found["step_s"][2:] == [1, 0.0, 0.0, 0.0]
    assert found["rows_per_s"][2:] == [0, None, None, None]


def test_evaluations_get_columns_as_the_task_names_them(box):
    for step, metrics in ((10, {"loss": 1.0}), (20, {"f1": 0.5, "loss": 0.5}), (20, {"f1": 0.7})):
        box.write(evaluation_entry(m.Evaluated(job="j-1", step=step, metrics=metrics)))
    found = {one["name"]: one["points"] for one in box.ask()["series"]}
    assert [point[2:4] for point in found["eval/f1"]] == [[0, None], [1, 0.7]]
    assert [point[2:4] for point in found["eval/loss"]] == [[1, 1.0], [0, None]]


def beat(**changed):
    return m.Heartbeat(state="training", job="j-1", **changed)


def test_workers_and_links_are_shown_for_the_time_of_the_steps(box):
    box.steps(1, 101)  # step n in second 1000 + n
    for second in range(1000, 1100, 2):
        box.write(worker_entry("w", beat(memory_bytes=second), None, 0.0, second))
        box.write(link_entry("w", "v", beat(rtt_s=0.5), second))
    assert {one["kind"] for one in box.ask()["series"]} == {"steps"}
    request = {"workers": True, "from_step": 10, "to_step": 14, "points": 50}
    found = {one["name"]: one for one in box.ask(**request)["series"]}
    assert (found["round_trip_s"]["source"], found["round_trip_s"]["to"]) == ("w", "v")
    assert [point[0] for point in found["memory_bytes"]["points"]] == [1010, 1012, 1014]


def test_figures_of_workers_go_on_where_steps_do_not(box):
    box.steps(1, 11)  # the last in second 1010, and the next one takes long
    for second in range(1000, 1100, 2):
        box.write(worker_entry("w", beat(memory_bytes=second), None, 0.0, second))
    request = {"workers": True, "names": ("memory_bytes",), "points": 100}

    def seconds(**steps):
        (found,) = box.ask(**request, **steps)["series"]
        return [point[0] for point in found["points"]]

    assert seconds(from_step=10) == list(range(1010, 1100, 2))
    assert seconds(from_step=9, to_step=10) == [1010]
    assert seconds(from_step=11) == []


def test_unknown_figures_are_refused_with_the_nearest_name(box):
    box.steps(1, 3)
    box.write(worker_entry("w", beat(), None, 0.0, 1000.0))
    with pytest.raises(RequestRefused, match='did you mean "loss"'):
        box.ask(names=("los",))
    with pytest.raises(RequestRefused, match="of its workers") as caught:
        box.ask(names=("memory_bytes",))
    assert caught.value.remedy == "add --workers"


def test_an_answer_goes_on_in_the_next_one(box):
    box.steps(1, 3)
    whole = [one["name"] for one in box.ask(points=10)["series"]]
    first = box.ask(points=10_000)
    assert (len(first["series"]), first["next"]) == (2, 2)
    names, after = [one["name"] for one in first["series"]], first["next"]
    while page := box.ask(points=10_000, after=after)["series"]:
        names += [one["name"] for one in page]
        after += len(page)
    assert names == whole


def test_a_job_of_the_same_id_in_a_restored_cluster_begins_anew(box):
    box.steps(1, 11)
    box.write(step_entry("j-1", row(1, loss=7.0), 1.0), identity="another")
    assert box.loss() == [[1, 1, 1, 7.0, 7.0, 7.0]]


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


def test_jobs_are_forgotten_where_nothing_else_can_be_spared(tmp_path):
    box = Box(tmp_path, limit_bytes=1)
    for number in range(3):
        box.steps(1, GROWING // 2, job=f"j-{number}", unix_s=1000.0 + number)
    assert [row[0] for row in box.store.read("SELECT id FROM jobs")] == ["j-2"]
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


def test_a_store_that_is_damaged_while_it_is_open_is_replaced(box, monkeypatch):
    box.steps(1, 3)
    box.store.read("PRAGMA wal_checkpoint(TRUNCATE)")
    path = box.directory / FILE_NAME
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 100] = b"\xee" * 100
    path.write_bytes(content)
    box.store.close()
    box.steps(3, 5)
    assert len(box.told) == 1
    assert [point[0] for point in box.loss()] == [3, 4]


def test_a_store_of_another_release_is_set_aside(tmp_path):
    box = Box(tmp_path)
    box.steps(1, 3)
    box.store.read("PRAGMA user_version=1")
    box.store.close()
    box.steps(1, 2)
    assert "another release" in box.told[0]
    assert len(box.loss()) == 1
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


def test_rows_that_were_given_up_are_still_in_every_plot(tmp_path):
    """Whatever is removed, each position is read once, and the newest steps are whole."""
    box = Box(tmp_path, limit_bytes=1 << 18)
    for begin in range(100, 9000, 100):
        box.steps(begin, begin + 100)
        box.store._make_room()
    for points in (1, 5, 100, 3000, 20_000):
        assert sum(point[2] for point in box.loss(points=points)) == 8900
    assert box.loss(points=20_000)[-1] == [8999, 8999, 1, 8999, 8999, 8999]
    first = box.loss(points=20_000)[0]
    assert first[1] - first[0] >= FACTOR - 1
    assert sum(point[2] for point in box.loss(from_step=8000, points=50)) == 1000
    box.store.close()


def test_steps_trained_again_count_once_at_every_resolution(box):
    box.steps(1, 3001)
    box.steps(1500, 1600, generation=2)
    box.steps(1600, 2001, generation=2)
    for points in (1, 10, 3000):
        found = box.loss(points=points)
        assert sum(point[2] for point in found) == 2000
        assert sum(point[2] * point[4] for point in found) == pytest.approx(2000 * 2001 / 2)
