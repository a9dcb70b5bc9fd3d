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


# --- what a commit promises ------------------------------------------------------------------


def statements(store, function, *arguments):
    """The database statements of a call, without the values."""
    seen = []
    store._database._connection.set_trace_callback(seen.append)
    function(*arguments)
    store._database._connection.set_trace_callback(None)
    return [" ".join(text.split()[:2]) for text in seen]


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


# --- jobs as JSON --------------------------------------------------------------------------------


def test_every_field_survives_json():
    whole = Job(id="digits-1", spec=SPEC, state=JobState.RUNNING, roster=("a", "b"), roster_id=7)
    again = job_from_body(json.loads(json.dumps(job_body(whole))))
    for field in fields(Job):
        assert getattr(again, field.name) == getattr(whole, field.name), field.name
    assert isinstance(again.state, JobState)
