"""The store keeps its records across closing, and stays bounded."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields

import pytest

import dtd.coordinator.store.store as store_module
from dtd.cluster.events import Incident
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.coordinator.store.store import job_body, job_from_body
from dtd.wire import messages as m

SPEC = {"job": {"name": "digits", "task": "digits"}}


def job(number=1, **changed):
    return Job(id=f"digits-{number}", spec=SPEC, **changed)


def saved(step, *kept, generation=1, **changed):
    values = {
        "job": "digits-1",
        "generation": generation,
        "step": step,
        "digest": f"digest of {step}",
        "size_bytes": 1000 + step,
        "directory": f"/state/checkpoints/digits-1/step-{step}",
        "metrics": {"accuracy": 0.5},
        "kept": (*kept, f"step-{step}"),
    }
    return m.CheckpointSaved(**(values | changed))


# --- jobs ------------------------------------------------------------------------------------


def test_what_is_in_use_is_found_without_reading_ended_jobs(store):
    """Every upload asks; a store may have thousands of ended jobs."""
    for number in (1, 2, 3):
        store.save_job(number, job_body(job(number, package=f"p{number}", weights=f"w{number}")))
    store.save_job(3, job_body(job(3, state=JobState.DONE, package="p3")))
    with store._database.transaction(synced=False) as cursor:
        cursor.execute("UPDATE jobs SET body = 'not read' WHERE number = 3")
    assert store.packages_in_use() == {"p1", "p2"}
    assert store.weights_in_use() == {"w1", "w2"}
    assert [one.id for _, one in store.unfinished_jobs()] == ["digits-1", "digits-2"]


def test_jobs_that_have_ended_are_kept_but_not_taken_up(store):
    for number, state in enumerate(JobState, start=1):
        store.save_job(number, job_body(job(number, state=state)))
    ended = {JobState.DONE, JobState.FAILED, JobState.CANCELLED}
    unfinished = [found.state for _, found in store.unfinished_jobs()]
    assert unfinished == [state for state in JobState if state not in ended]
    assert [row["id"] for row in store.jobs()][:2] == ["digits-10", "digits-9"]
    assert len(store.jobs()) == len(JobState)


# --- what a commit promises ------------------------------------------------------------------


def statements(store, function, *arguments):
    """The database statements of a call, without the values."""
    seen = []
    store._database._connection.set_trace_callback(seen.append)
    function(*arguments)
    store._database._connection.set_trace_callback(None)
    return [" ".join(text.split()[:2]) for text in seen]


def test_only_jobs_and_checkpoints_wait_for_the_disk(store):
    incident = Incident(kind="k", message="m")
    for call, kind in (
        ((store.add_incident, incident), "NORMAL"),
        ((store.add_lines, "digits-1", 0, "worker-0", ["a"]), "NORMAL"),
        ((store.save_checkpoint, "worker-0", saved(10)), "FULL"),
    ):
        assert statements(store, *call)[0] == f"PRAGMA synchronous={kind}"


# --- events and lines ------------------------------------------------------------------------


def test_events_are_read_from_a_cursor_on(store, monkeypatch):
    monkeypatch.setattr(store_module, "PAGE_ROWS", 3)
    for number in range(1, 8):
        store.add_incident(Incident(kind="k", message=f"{number}", job="digits-1", step=number))
    assert [event["message"] for event in store.events(0)] == ["5", "6", "7"]
    page = store.events(2)
    assert [event["message"] for event in page] == ["3", "4", "5"]
    assert [event["message"] for event in store.events(page[-1]["seq"])] == ["6", "7"]
    assert store.events(7) == []
    assert set(page[0]) == {
        *("seq", "time_s", "kind", "job", "worker", "generation", "step", "message", "details")
    }


def test_lines_are_read_per_job_from_a_cursor_on(store, monkeypatch):
    monkeypatch.setattr(store_module, "PAGE_ROWS", 2)
    store.add_lines("digits-1", 0, "worker-0", ["a", "b"])
    store.add_lines("digits-2", 0, "worker-0", ["other"])
    store.add_lines("digits-1", 1, "worker-1", ["c"])
    first = store.lines("digits-1", 0)
    assert [(line["text"], line["rank"], line["worker"]) for line in first] == [
        ("a", 0, "worker-0"),
        ("b", 0, "worker-0"),
    ]
    assert [line["text"] for line in store.lines("digits-1", first[-1]["seq"])] == ["c"]
    assert [line["text"] for line in store.lines("digits-2", 0)] == ["other"]


# --- checkpoints -----------------------------------------------------------------------------


def steps(store, name=""):
    return [(one["worker"], one["generation"], one["step"]) for one in store.checkpoints(name)]


def test_checkpoints_are_those_that_workers_keep(store):
    store.save_checkpoint("worker-0", saved(10))
    store.save_checkpoint("worker-0", saved(20, "step-10"))
    store.save_checkpoint("worker-1", saved(20, generation=2))
    assert steps(store) == [("worker-1", 2, 20), ("worker-0", 1, 20), ("worker-0", 1, 10)]
    store.save_checkpoint("worker-0", saved(30, "step-20", generation=3))
    assert steps(store) == [("worker-0", 3, 30), ("worker-1", 2, 20), ("worker-0", 1, 20)]
    newest = store.checkpoints("digits-1")[0]
    assert newest["metrics"] == {"accuracy": 0.5}
    assert newest["directory"] == "/state/checkpoints/digits-1/step-30"
    assert store.checkpoints("digits-2") == []


@pytest.mark.parametrize("broken", ["checkpoint", "lines"])
def test_what_fails_half_way_leaves_nothing_and_what_follows_is_durable(state_dir, store, broken):
    store.save_checkpoint("worker-0", saved(10))
    if broken == "checkpoint":
        with pytest.raises(TypeError):
            store.save_checkpoint("worker-0", saved(20, kept=5))
    else:
        with pytest.raises(sqlite3.Error):
            store.add_lines("digits-1", 0, "worker-0", ["good", object()])
    assert steps(store) == [("worker-0", 1, 10)]
    assert store.lines("digits-1", 0) == []
    store.save_job(1, job_body(job()))
    store.add_lines("digits-1", 0, "worker-0", ["after"])
    # As another process would find it after a crash of this one.
    reader = sqlite3.connect(state_dir / "coordinator.sqlite3")
    assert reader.execute("SELECT id FROM jobs").fetchall() == [("digits-1",)]
    assert reader.execute("SELECT text FROM logs").fetchall() == [("after",)]
    reader.close()


def test_checkpoints_that_a_job_has_left_behind_are_marked(store):
    store.save_job(1, job_body(job(branches=((1, 10, 3),))))
    store.save_checkpoint("worker-0", saved(10))
    store.save_checkpoint("worker-0", saved(40, "step-10"))
    store.save_checkpoint("worker-0", saved(20, "step-10", "step-40", generation=3))
    store.save_checkpoint("worker-0", saved(5, job="of-no-known-job"))
    marks = {(one["generation"], one["step"]): one["left_behind"] for one in store.checkpoints("")}
    assert marks == {(3, 20): False, (1, 40): True, (1, 10): False, (1, 5): False}
    (unfinished,) = store.unfinished_jobs()
    assert [list(one) for one in unfinished[1].branches] == [[1, 10, 3]]


# --- jobs as JSON --------------------------------------------------------------------------------


def test_a_body_is_a_snapshot():
    changing = Job(id="digits-1", spec=SPEC, metrics={"accuracy": 0.5})
    body = job_body(changing)
    changing.metrics["accuracy"] = 0.9
    changing.result["steps"] = 3
    changing.step = 3
    assert (body["metrics"], body["result"], body["step"]) == ({"accuracy": 0.5}, {}, 0)
    assert job_from_body(body).metrics == {"accuracy": 0.5}


def test_every_field_survives_json():
    whole = Job(id="digits-1", spec=SPEC, state=JobState.RUNNING, roster=("a", "b"), roster_id=7)
    again = job_from_body(json.loads(json.dumps(job_body(whole))))
    for field in fields(Job):
        assert getattr(again, field.name) == getattr(whole, field.name), field.name
    assert isinstance(again.state, JobState)
