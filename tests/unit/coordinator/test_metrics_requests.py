"""A real coordinator is asked for figures that workers reported, and that a liar made up."""

from __future__ import annotations

import dataclasses
import sqlite3

import pytest

from dtd.wire import messages as m
from dtd.wire.step_rows import pack_step_rows
from tests.unit.coordinator.asking import await_event, events, progress
from tests.unit.observe.reports import row


@pytest.fixture
def train(daemon, play, spec):
    """A worker that trains alone, its generation, and the job."""
    honest = play(daemon, "honest")
    job = str(daemon.ask(m.SubmitJob(spec=spec))["job"])
    return honest, honest.run_alone(), job


def with_rows(assign, step, *rows):
    return dataclasses.replace(progress(assign, step), steps=pack_step_rows(rows))


def heard(daemon, worker):
    """Everything that a worker has said was acted on."""
    worker.say(m.Evaluated(job=worker_job(daemon), step=1, metrics={"heard": 1.0}))
    while not any(one["name"] == "eval/heard" for one in ask(daemon)["series"]):
        pass


def worker_job(daemon):
    return daemon.ask(m.GetStatus())["job"]["id"]


def ask(daemon, **request):
    return daemon.ask(m.GetMetrics(job=worker_job(daemon), **request))


def test_a_full_disk_is_in_status_and_training_goes_on(daemon, train, monkeypatch):
    def full(*_arguments):
        raise sqlite3.OperationalError("database or disk is full")

    honest, assign, job = train
    monkeypatch.setattr(daemon.coordinator.history._store, "write", full)
    honest.say(with_rows(assign, 1, row(1, assign.generation)))
    await_event(daemon, "metrics_stopped")
    (found,) = daemon.ask(m.GetStatus())["troubles"]
    assert (found["kind"], found["where"]) == ("disk", "the coordinator")
    assert "metrics: database or disk is full" in found["message"]
    assert events(daemon, "metrics_resumed") == []
    honest.finish(assign)
    assert daemon.ask(m.WaitJob(job=job))["state"] == "done"
