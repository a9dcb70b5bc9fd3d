"""The coordinator's process: who may speak, its status line, and what survives a restart."""

from __future__ import annotations

import sqlite3

import pytest

from dtd.cluster.records import Job, Worker
from dtd.cluster.run import Run
from dtd.cluster.state import ClusterState
from dtd.errors import RequestRefused
from dtd.wire import messages as m
from tests.registrations import registration

# --- the coordinator's process: who may speak, what survives a restart, and its end --------------


def test_a_full_disk_does_not_end_the_training(daemon, play, spec, monkeypatch):
    def fail(*_arguments):
        raise sqlite3.OperationalError("database or disk is full")

    worker = play(daemon)
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    assign = worker.run_alone()
    for method in ("save_job", "save_checkpoint", "add_incident", "add_lines"):
        monkeypatch.setattr(daemon.coordinator.store, method, fail)
    worker.save(assign, 20)
    worker.say(m.JobOutput(job=job, rank=0), b"a line")
    with daemon.connect() as waiting:
        waiting.ask(m.WaitJob(job=job))
        waiting.ask(m.GetStatus())
        assert waiting.answer(timeout_s=0.02) is None
        worker.finish(assign)
        assert worker.hear(m.Release).state == "done"
        assert waiting.answer()["state"] == "done"


def test_an_error_while_a_message_is_handled_ends_its_connection_alone(daemon, play, monkeypatch):
    """Whatever it is: the peer is told, the operator can read of it, and all others go on."""

    def fail(*_arguments):
        raise KeyError("a defect")

    other, hostile = play(daemon), play(daemon, "worker-1")
    monkeypatch.setattr(daemon.coordinator.broker, "measured", fail)
    hostile.say(m.Measured(number=1, figures={}))
    with pytest.raises(RequestRefused, match="the coordinator failed at MEASURED"):
        hostile.hear(m.Release)
    other.say(m.Heartbeat(state="idle"))
    other.hear(m.HeartbeatAck)
    events = daemon.ask(m.ReadEvents())["events"]
    (told,) = [one for one in events if one["kind"] == "internal_error"]
    assert told["worker"] == "worker-1"
    assert "worker-1: MEASURED failed at" in told["message"]
    assert "KeyError" in told["message"]


# --- the status line of `systemctl status dtd-coordinator`, and the limit of open files ----------


SPEC = {"job": {"name": "digits", "task": "digits", "global_batch_size": 64, "epochs": 2}}


def job(number, **more):
    return Job(id=f"digits-{number}", spec=SPEC, **more)


def cluster(*states):
    made = ClusterState(
        heartbeat_interval_s=0.25,
        heartbeat_timeout_s=1.5,
        run=Run(generation=0),
    )
    for rank, state in enumerate(states):
        made.workers[f"w-{rank}"] = Worker(
            registration=registration(
                name=f"w-{rank}",
                incarnation=1,
                pid=1,
                host="h",
                device="cpu",
                data_host="h",
                data_port=1,
                version="0",
            ),
            state=state,
        )
    return made
