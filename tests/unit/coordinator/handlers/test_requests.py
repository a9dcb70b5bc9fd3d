"""Every request of an operator, over a real connection to a real coordinator."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from dtd.coordinator.requests import CTL_REQUESTS
from dtd.coordinator.store.database import Turn
from dtd.coordinator.store.tables import PAGE_ROWS
from dtd.coordinator.throttles import MAX_UNANSWERED
from dtd.errors import RequestRefused
from dtd.wire import messages as m
from tests.unit.coordinator.asking import await_state, refused, submit

# --- jobs ------------------------------------------------------------------------------------


def test_the_status_of_a_coordinator_that_nobody_knows(daemon):
    status = daemon.ask(m.GetStatus())
    assert (status["schema"], status["job"], status["workers"], status["queue"]) == (
        1,
        None,
        [],
        [],
    )
    assert status["coordinator"]["address"] == daemon.coordinator.address
    assert status["coordinator"]["uptime_s"] >= 0
    assert "dtdctl submit" in status["explain"]


def test_submitted_jobs_have_numbers_and_wait_in_line(daemon, spec):
    assert [submit(daemon, spec) for _ in range(3)] == ["digits-1", "digits-2", "digits-3"]
    status = daemon.ask(m.GetStatus())
    assert (status["job"]["id"], status["queue"]) == ("digits-1", ["digits-2", "digits-3"])
    listed = daemon.ask(m.ListJobs())["jobs"]
    assert [job["id"] for job in listed] == ["digits-3", "digits-2", "digits-1"]
    assert listed[0]["state"] == "queued"


def test_an_invalid_job_is_refused_with_everything_that_is_wrong(daemon, spec):
    spec["job"]["task"] = "dgits"
    spec["job"]["global_batch_size"] = 0
    words, _ = refused(daemon, m.SubmitJob(spec=spec))
    assert "submitted job: 2 problems" in words
    assert "global_batch_size" in words
    assert daemon.ask(m.ListJobs()) == {"jobs": []}


def test_an_encrypted_job_needs_credentials(daemon, spec):
    spec["sync"] = {"encryption": "tls"}
    words, remedy = refused(daemon, m.SubmitJob(spec=spec))
    assert words.startswith("[sync] encryption: this coordinator serves its own host only")
    assert "--listen HOST:PORT" in remedy
    assert daemon.ask(m.ListJobs()) == {"jobs": []}


def test_a_job_from_submission_to_its_result(daemon, play, spec):
    worker = play(daemon)
    job = submit(daemon, spec)
    with daemon.connect() as waiting:
        waiting.ask(m.WaitJob(job=job))
        assign = worker.run_alone()
        await_state(daemon, job, "running")
        assert waiting.answer(timeout_s=0) is None
        worker.say(m.Evaluated(job=job, step=20, metrics={"accuracy": 0.5}))
        worker.save(assign, 20)
        worker.finish(assign)
        answer = waiting.answer()
    assert (answer["job"], answer["state"], answer["reason"]) == (job, "done", "")
    result = answer["result"]
    assert (result["steps"], result["metrics"]) == (20, {"accuracy": 0.5})
    assert result["replica_digests"] == {"worker-0": "ab"}
    assert (result["world_size"], result["steps_lost"]) == (1, 0)
    assert worker.hear(m.Release).state == "done"
    assert daemon.ask(m.WaitJob(job=job)) == answer
    assert daemon.ask(m.GetStatus())["job"] is None
    (listed,) = daemon.ask(m.ListJobs())["jobs"]
    assert (listed["state"], listed["step"], listed["total_steps"]) == ("done", 20, 20)


def test_a_failed_job_has_the_traceback_in_its_result(daemon, play, spec):
    worker = play(daemon)
    job = submit(daemon, spec)
    worker.hear(m.Prepare)
    worker.say(m.Failed(job=job, reason="ValueError: no", traceback="Traceback ..."))
    answer = daemon.ask(m.WaitJob(job=job))
    assert (answer["state"], answer["reason"]) == ("failed", "worker-0: ValueError: no")
    assert answer["result"]["traceback"] == "Traceback ..."
    status = daemon.ask(m.GetStatus())
    assert status["job"] is None
    last = status["last_job"]
    assert (last["id"], last["state"], last["reason"]) == (job, "failed", answer["reason"])
    assert last["traceback"] == "Traceback ..."


def test_cancelling_a_running_job_stops_it_at_a_boundary(daemon, play, spec):
    worker = play(daemon)
    job = submit(daemon, spec)
    assign = worker.run_alone()
    await_state(daemon, job, "running")
    assert daemon.ask(m.CancelJob(job=job)) == {"job": job, "state": "stopping"}
    freeze = worker.hear(m.Freeze)
    assert (freeze.at_boundary, freeze.stop) == (True, True)
    worker.finish(assign, 7)
    answer = daemon.ask(m.WaitJob(job=job))
    assert (answer["state"], answer["reason"]) == ("cancelled", "cancelled by the operator")
    assert answer["result"]["steps"] == 7


def test_cancelling_a_queued_job_drops_it(daemon, spec):
    _, second = submit(daemon, spec), submit(daemon, spec)
    daemon.ask(m.CancelJob(job=second))
    answer = daemon.ask(m.WaitJob(job=second))
    assert (answer["state"], answer["reason"]) == ("cancelled", "cancelled while queued")
    assert daemon.ask(m.GetStatus())["queue"] == []


@pytest.mark.parametrize(
    "request_",
    [m.WaitJob(job="x"), m.ShowJob(job="x"), m.ReadLogs(job="x"), m.ListCheckpoints(job="x")],
)
def test_a_job_that_does_not_exist(daemon, request_):
    assert refused(daemon, request_) == ("job 'x' does not exist", "see `dtdctl jobs`")


# --- workers ---------------------------------------------------------------------------------


def test_a_signal_is_passed_on(daemon, play):
    worker = play(daemon, pid=4712)
    answer = daemon.ask(m.KillWorker(name="worker-0", signal="STOP"))
    assert answer == {"name": "worker-0", "pid": 4712, "signal": "STOP"}
    assert worker.hear(m.Signal).signal == "STOP"


# --- logs, events, checkpoints ----------------------------------------------------------------


def test_what_a_job_printed(daemon, play, spec):
    worker = play(daemon)
    job = submit(daemon, spec)
    worker.hear(m.Prepare)
    assert daemon.ask(m.ReadLogs(job=job, after=3)) == {"lines": [], "next": 3}
    worker.say(m.JobOutput(job=job, rank=0), "first\nsecond: é\ufffd".encode())
    worker.say(m.JobOutput(job=job, rank=0), b"broken \xff")
    worker.say(m.Failed(job=job, reason="no", traceback=""))
    daemon.ask(m.WaitJob(job=job))
    answer = daemon.ask(m.ReadLogs(job=job))
    assert [line["text"] for line in answer["lines"]] == [
        "first",
        "second: é\ufffd",
        "broken \ufffd",
    ]
    assert {(line["rank"], line["worker"]) for line in answer["lines"]} == {(0, "worker-0")}
    assert answer["next"] == answer["lines"][-1]["seq"]
    rest = daemon.ask(m.ReadLogs(job=job, after=answer["lines"][0]["seq"]))
    assert len(rest["lines"]) == 2


def test_what_a_job_printed_is_all_there_for_who_asks_later(daemon, play, spec):
    """Lines are written after everything else, so whoever reads them waits for that."""
    worker = play(daemon)
    job = submit(daemon, spec)
    worker.hear(m.Prepare)
    gate = threading.Event()
    daemon.coordinator.store_thread.later(gate.wait)
    try:
        worker.say(m.JobOutput(job=job, rank=0), b"\n".join([b"line"] * 2000))
        worker.say(m.Heartbeat(state="warming"))
        worker.hear(m.HeartbeatAck)
        with daemon.connect() as client, daemon.connect() as other:
            client.ask(m.ReadLogs(job=job, after=1))
            other.ask(m.ShowJob(job=job))
            gate.set()
            answer, shown = client.answer(), other.answer()
    finally:
        gate.set()
    assert (len(answer["lines"]), shown["lines"]) == (PAGE_ROWS, 2000)


def test_a_caller_that_follows_events_is_answered_when_there_is_one(daemon, play):
    with daemon.connect() as following:
        following.ask(m.ReadEvents(follow=True))
        assert following.answer(timeout_s=0.02) is None
        play(daemon)
        (event,) = following.answer()["events"]
    assert (event["kind"], event["worker"]) == ("worker_registered", "worker-0")
    assert event["message"]
    assert event["time_s"] > 0


def test_checkpoints_and_where_they_can_be_had(daemon, play, spec):
    worker = play(daemon)
    job = submit(daemon, spec)
    assign = worker.run_alone()
    worker.save(assign, 10)
    worker.save(assign, 20)
    worker.finish(assign)
    daemon.ask(m.WaitJob(job=job))
    answer = daemon.ask(m.ListCheckpoints(job=job))
    (found,) = answer["checkpoints"]
    name = f"g{assign.generation:06}-s000000020"
    assert found["name"] == name
    assert found["directory"] == f"/state/checkpoints/{job}/{name}"
    assert (found["job"], found["step"], found["worker"]) == (job, 20, "worker-0")
    assert (found["data_host"], found["data_port"], found["alive"]) == ("10.0.0.1", 4000, True)
    assert (found["metrics"], found["verified"]) == ({"accuracy": 0.5}, True)
    assert answer["spec"]["job"]["name"] == "digits"
    worker.close()
    while daemon.ask(m.ListCheckpoints())["checkpoints"][0]["alive"]:
        pass
    assert "spec" not in daemon.ask(m.ListCheckpoints())


# --- connections -----------------------------------------------------------------------------


def test_a_refusal_ends_the_connection(daemon):
    with daemon.connect() as client:
        client.ask(m.WaitJob(job="x"))
        with pytest.raises(RequestRefused):
            client.answer()
    assert daemon.ask(m.GetStatus())["job"] is None


def test_too_many_unanswered_requests_are_refused(daemon, spec):
    job = submit(daemon, spec)
    with daemon.connect() as client:
        client.ask(m.WaitJob(job=job))
        for _ in range(MAX_UNANSWERED + 1):
            client.ask(m.GetStatus())
        with pytest.raises(RequestRefused, match=f"{MAX_UNANSWERED} requests are unanswered"):
            client.answer()
    assert daemon.ask(m.GetStatus())["job"]["id"] == job


def test_a_store_that_fails_is_said_in_words(daemon, monkeypatch):
    def fail(_tag):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(daemon.coordinator.store, "jobs", fail)
    words, _ = refused(daemon, m.ListJobs())
    assert words == "the coordinator's store failed: disk I/O error"
    assert daemon.ask(m.GetStatus())["job"] is None


def test_a_caller_that_leaves_before_the_answer_costs_nothing(daemon, spec, monkeypatch):
    """While the job is written down: the request is entered in the audit log already."""
    go_on = threading.Event()
    thread, table = daemon.coordinator.store_thread, daemon.coordinator.audit._file
    add = table.add

    def add_and_wait(*arguments, **options):
        entered = add(*arguments, **options)
        thread.later(go_on.wait, 30, turn=Turn.URGENT)
        return entered

    monkeypatch.setattr(table, "add", add_and_wait)
    leaving = daemon.connect()
    leaving.ask(m.SubmitJob(spec=spec))
    while daemon.ask(m.GetStatus())["job"] is None:
        pass
    leaving.close()
    while daemon.call(lambda: len(daemon.coordinator.answers._tasks)):
        pass
    go_on.set()
    assert submit(daemon, spec) == "digits-2"
    assert daemon.ask(m.GetStatus())["job"]["id"] == "digits-1"


def test_a_job_that_would_begin_past_its_end_is_refused(daemon, play, spec):
    worker = play(daemon)
    parent = submit(daemon, spec)
    assign = worker.run_alone()
    await_state(daemon, parent, "running")
    worker.save(assign, 5)
    worker.save(assign, 15, f"g{assign.generation:06}-s{5:09}")
    daemon.ask(m.CancelJob(job=parent))
    worker.finish(assign, 15)
    daemon.ask(m.WaitJob(job=parent))

    shorter = {**spec, "job": {**spec["job"], "steps": 8}}
    shorter["job"].pop("epochs", None)
    words, remedy = refused(daemon, m.SubmitJob(spec=shorter, from_job=parent))
    assert words == f"the checkpoint of job {parent} has 15 steps, and this job ends after 8"
    assert "JOB@STEP" in remedy
    submit(daemon, shorter, from_job=parent, from_step=5)


def test_every_request_has_a_handler() -> None:
    assert set(CTL_REQUESTS) == m.from_opener(m.Role.CTL) - {m.Error, m.Goodbye, m.Renew}


@pytest.mark.parametrize(
    "make", [lambda job: m.CancelJob(job=job), lambda job: m.ResumeJob(job=job)]
)
def test_the_nearest_job_is_named_where_there_is_none_of_that_id(daemon, spec, make):
    job = submit(daemon, spec)
    words, _remedy = refused(daemon, make(job.replace("-", "_")))
    assert words == f'job {job.replace("-", "_")!r} does not exist; did you mean "{job}"?'
