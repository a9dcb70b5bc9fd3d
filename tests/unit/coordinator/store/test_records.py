"""Jobs as JSON: a snapshot, and read with patience."""

from __future__ import annotations

import json
from dataclasses import fields

from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.coordinator.store.store import completed, job_body, job_from_body, job_row
from dtd.job import parse_job, to_mapping

SPEC = {"job": {"name": "digits", "task": "digits"}}


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


def test_what_an_older_file_lacks_has_its_default():
    found = job_from_body({"id": "digits-1", "spec": SPEC, "state": "running", "roster": ["a"]})
    assert found == Job(id="digits-1", spec=SPEC, state=JobState.RUNNING, roster=("a",))


def test_what_a_newer_file_has_is_passed_over():
    body = {**job_body(Job(id="digits-1", spec=SPEC)), "colour": "blue"}
    assert job_from_body(body) == Job(id="digits-1", spec=SPEC)


def test_a_spec_of_an_older_file_gets_the_keys_that_are_new():
    spec = to_mapping(
        parse_job('job = {name="a", task="digits", steps=3, global_batch_size=8}', source="test")
    )
    older = {**spec, "checkpoint": {"keep": 7}}
    del older["elastic"]
    found = completed(Job(id="a-1", spec=older, step=5))
    assert found.spec == {**spec, "checkpoint": {**spec["checkpoint"], "keep": 7}}
    assert found.step == 5
    refused = Job(id="a-1", spec={"job": {"name": "a"}})
    assert completed(refused) is refused


def test_a_row_of_an_older_job():
    row = job_row({"id": "digits-1", "spec": SPEC, "state": "done"}, 1.0, None, 2.0)
    assert (row["id"], row["name"], row["state"], row["step"]) == ("digits-1", "digits", "done", 0)
    assert (row["submitted_s"], row["started_s"], row["ended_s"]) == (1.0, None, 2.0)


def test_what_is_not_finite_is_null():
    diverged = Job(id="digits-1", spec=SPEC, loss=float("nan"), metrics={"loss": float("inf")})
    text = json.dumps(job_body(diverged), allow_nan=False)
    again = job_from_body(json.loads(text))
    assert (again.loss, again.metrics) == (None, {"loss": None})
