"""Every request of an operator, over a real connection to a real coordinator."""

from __future__ import annotations

import pytest

from dtd.coordinator.handlers.requests import CTL_REQUESTS
from dtd.wire import messages as m
from tests.unit.coordinator.asking import await_state, refused, submit

# --- jobs ------------------------------------------------------------------------------------


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


# --- connections -----------------------------------------------------------------------------


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
    assert "@STEP" in remedy
    submit(daemon, shorter, from_job=parent, from_step=5)


def test_every_request_has_a_handler() -> None:
    assert set(CTL_REQUESTS) == m.from_opener(m.Role.CTL) - {m.Error, m.Goodbye, m.Renew}


# --- runs beside one another, by a real coordinator with a played worker -------------------------


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
