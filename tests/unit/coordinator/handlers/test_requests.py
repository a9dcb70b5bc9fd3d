"""Every request of an operator, over a real connection to a real coordinator."""

from __future__ import annotations

import threading

import pytest

from dtd.coordinator.requests import CTL_REQUESTS
from dtd.coordinator.store.database import Turn
from dtd.wire import messages as m
from dtd.wire.step_rows import StepRow, pack_step_rows
from tests.unit.coordinator.asking import await_state, refused, submit

# --- jobs ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "request_",
    [m.WaitJob(job="x"), m.ShowJob(job="x"), m.ReadLogs(job="x"), m.ListCheckpoints(job="x")],
)
def test_a_job_that_does_not_exist(daemon, request_):
    assert refused(daemon, request_) == ("job 'x' does not exist", "see `dtdctl jobs`")


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


# --- runs beside one another, by a real coordinator with a played worker -------------------------


def row(generation, loss):
    """The first step of a job."""
    return StepRow(
        step=1,
        generation=generation,
        epoch=0,
        steps=1,
        rows=64,
        loss=loss,
        learning_rate=0.1,
        gradient_norm=1.0,
        sent_bytes=0,
        step_s=0.1,
        data_s=0.0,
        compute_s=0.05,
        comm_s=0.0,
        exposed_s=0.0,
        optimizer_s=0.0,
        skipped=0,
    )


@pytest.fixture
def worker(daemon, play):
    return play(daemon)


@pytest.fixture
def two_jobs(daemon, worker, play, spec):
    """Two ended jobs that differ in their seed."""
    ids = []
    for seed in (1, 2):
        changed = {**spec, "job": {**spec["job"], "seed": seed}}
        ids.append(daemon.ask(m.SubmitJob(spec=changed))["job"])
        assign = worker.run_alone()
        worker.say(
            m.Progress(
                job=assign.job,
                generation=assign.generation,
                step=1,
                epoch=0,
                loss=float(seed),
                rows=64,
                step_s=0.1,
                learning_rate=0.1,
                grad_norm=1.0,
                compute_s=0.05,
                comm_s=0.0,
                exposed_s=0.0,
                skipped=False,
                skipped_steps=0,
                steps=pack_step_rows([row(assign.generation, float(seed))]),
            )
        )
        worker.finish(assign)
        daemon.ask(m.WaitJob(job=ids[-1]))
        worker.close()
        worker = play(daemon, pid=5000 + seed)
    return ids


def test_two_jobs_are_compared(daemon, two_jobs):
    told = daemon.ask(m.CompareJobs(jobs=tuple(two_jobs)))
    assert {"of": "setting", "key": "job.seed", "values": [1, 2]} in told["differences"]
    (loss,) = [one for one in told["figures"] if one["name"] == "loss"]
    assert [one["best"] for one in loss["of"]] == [1.0, 2.0]
    (curve,) = [one for one in told["curves"] if one["name"] == "loss"]
    assert curve["of"] == [[[1, 1.0]], [[1, 2.0]]]


def test_tags_and_a_note_survive_and_go_with_the_job(start_daemon, spec, play):
    daemon = start_daemon()
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    other = daemon.ask(m.SubmitJob(spec=spec))["job"]
    daemon.ask(m.AnnotateJob(job=job, add=("b", "a")))
    told = daemon.ask(m.AnnotateJob(job=job, remove=("b",), note="tried", sets_note=True))
    assert told == {"job": job, "tags": ["a"], "note": "tried"}
    words, remedy = refused(daemon, m.AnnotateJob(job=job, add=("c",), remove=("x",)))
    assert words == 'the job has no tag "x"'
    assert remedy == "its tags: a"
    assert refused(daemon, m.AnnotateJob(job="nobody", add=("c",)))[0].startswith("job 'nobody'")
    daemon = start_daemon()
    known = daemon.ask(m.ShowJob(job=job))
    assert (known["tags"], known["note"]) == (["a"], "tried")
    assert [one["id"] for one in daemon.ask(m.ListJobs(tag="a"))["jobs"]] == [job]
    assert daemon.ask(m.ListJobs(tag="b"))["jobs"] == []
    listed = {one["id"]: one["tags"] for one in daemon.ask(m.ListJobs())["jobs"]}
    assert listed == {job: ["a"], other: []}
    daemon.ask(m.CancelJob(job=job))
    daemon.ask(m.Delete(job=job))
    assert daemon.coordinator.store.annotations.all() == {}
