"""The coordinator's process: who may speak, its status line, and what survives a restart."""

from __future__ import annotations

import sqlite3

import pytest

import dtd.coordinator.main as main_module
from dtd.cluster.detector import Detector
from dtd.cluster.records import Job, Run, Worker
from dtd.cluster.state import ClusterState
from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.wire import messages as m
from dtd.wire.frames import MAX_HEADER_BYTES
from tests.registrations import registration

# --- the coordinator's process: who may speak, what survives a restart, and its end --------------


def test_nothing_is_heard_before_register(daemon, play):
    worker, other = play(daemon), play(daemon, "worker-1", joins=False)
    other.say(m.Heartbeat(state="idle"))
    with pytest.raises(ProtocolError, match="REGISTER must come first") as caught:
        other.hear(m.HeartbeatAck)
    assert caught.value.code == ErrorCode.WRONG_STATE
    worker.say(m.Heartbeat(state="idle"))
    worker.hear(m.HeartbeatAck)


def test_the_newer_worker_of_a_name_takes_the_place(daemon, play):
    old, new = play(daemon), play(daemon, pid=4712)
    with pytest.raises(RequestRefused, match="another worker registered as worker-0") as caught:
        old.hear(m.Release)
    assert "--name" in caught.value.remedy
    new.say(m.Heartbeat(state="idle"))
    new.hear(m.HeartbeatAck)
    assert [worker["pid"] for worker in daemon.ask(m.GetStatus())["workers"]] == [4712]


def test_how_the_last_job_ended_is_known_after_a_restart(start_daemon, play, spec):
    first = start_daemon()
    job = first.ask(m.SubmitJob(spec=spec))["job"]
    worker = play(first)
    worker.hear(m.Prepare)
    worker.say(m.Failed(job=job, reason="ValueError: no", traceback="Traceback ..."))
    first.ask(m.WaitJob(job=job))
    before = first.ask(m.GetStatus())["last_job"]
    after = start_daemon().ask(m.GetStatus())["last_job"]
    assert (after["id"], after["reason"]) == (job, "worker-0: ValueError: no")
    assert after["traceback"] == "Traceback ..."
    assert after["ended_s"] == pytest.approx(before["ended_s"], abs=30)


def test_generations_go_on_counting_after_a_restart(start_daemon, play, spec):
    first = start_daemon()
    job = first.ask(m.SubmitJob(spec=spec))["job"]
    generation = play(first).run_alone().generation
    second = start_daemon()
    assign = play(second, pid=4712).run_alone()
    assert assign.job == job
    assert assign.generation > generation


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


def test_wrong_settings_are_said_in_words(capsys, tmp_path):
    arguments = ["--listen", "7117", "--state-dir", str(tmp_path)]
    assert main_module.main(arguments) == 78
    assert "dtd-coordinator: " in capsys.readouterr().err


def test_a_job_that_no_worker_can_be_told_of_is_refused(daemon, play, spec):
    """It was written down, and every start of a coordinator ended with its first worker."""
    play(daemon)
    room = MAX_HEADER_BYTES - len(m.encode_header(m.SubmitJob(spec=spec)))
    long = {**spec, "task": {"text": "x" * (room - 20)}}
    with pytest.raises(RequestRefused, match="bytes in a message to a worker; the limit is 65536"):
        daemon.ask(m.SubmitJob(spec=long))
    assert daemon.ask(m.ListJobs())["jobs"] == []
    assert daemon.ask(m.SubmitJob(spec=spec))["job"]


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
        detector=Detector(timeout_s=1.5, tick_s=0.25),
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
