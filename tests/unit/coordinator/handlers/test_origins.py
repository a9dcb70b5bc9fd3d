"""Jobs that start from another one's checkpoint, over a real connection to a real coordinator."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m
from tests.unit.coordinator.asking import await_state, refused, submit


def trained(daemon, play, spec):
    """A job that is done, with a checkpoint of its last step."""
    parent = submit(daemon, spec)
    worker = play(daemon)
    assign = worker.run_alone()
    worker.save(assign, 20)
    worker.finish(assign)
    daemon.ask(m.WaitJob(job=parent))
    return parent


@pytest.mark.parametrize(("stopped", "mode"), [(False, "weights"), (True, "resume")])
def test_a_job_from_another_ones_checkpoint(daemon, play, spec, stopped, mode):
    worker = play(daemon)
    parent = submit(daemon, spec)
    words, remedy = refused(daemon, m.SubmitJob(spec=spec, from_job=parent))
    assert words == f"job {parent} has no checkpoint"
    assert remedy.startswith("start from the beginning with: dtdctl submit --like ")
    assign = worker.run_alone()
    await_state(daemon, parent, "running")
    worker.save(assign, 5)
    worker.save(assign, 10, f"g{assign.generation:06}-s{5:09}")
    if stopped:
        daemon.ask(m.CancelJob(job=parent))
        worker.finish(assign, 12)
    else:
        worker.save(assign, 20, *(f"g{assign.generation:06}-s{step:09}" for step in (5, 10)))
        worker.finish(assign)
    daemon.ask(m.WaitJob(job=parent))

    words, remedy = refused(daemon, m.SubmitJob(spec=spec, from_job=parent, from_step=11))
    assert words == f"job {parent} has no checkpoint of step 11"
    assert remedy.startswith("kept steps: 5, 10")
    job = submit(daemon, spec, from_job=parent, from_step=10)
    prepare = play(daemon, "worker-1").hear(m.Prepare)
    assert (prepare.job, prepare.from_job, prepare.from_step) == (job, parent, 10)
    assert prepare.from_mode == mode


def test_a_whole_state_goes_on_with_its_own_settings_only(daemon, play, spec):
    parent = trained(daemon, play, spec)
    other = {**spec, "job": {**spec["job"], "epochs": None, "steps": 40, "seed": 5}}
    other["optimizer"] = {"momentum": 0.5}
    request = {"spec": other, "from_job": parent}
    words, remedy = refused(daemon, m.SubmitJob(**request, from_mode="resume"))
    assert words.startswith(f"the whole state of {parent} cannot be taken over")
    assert "job.seed = 5 (was 0)" in words
    assert "optimizer.momentum = 0.5 (was 0.0)" in words
    assert "--weights-from" in remedy
    assert daemon.ask(m.SubmitJob(**request, from_mode="weights"))["from_mode"] == "weights"


def test_everything_about_a_job(daemon, play, spec):
    worker = play(daemon)
    job = submit(daemon, spec)
    assert daemon.ask(m.ShowJob(job=job))["checkpoints"] == []
    assign = worker.run_alone()
    worker.say(m.Evaluated(job=job, step=10, metrics={"accuracy": 0.25}))
    worker.save(assign, 10)
    worker.say(m.JobOutput(job=job, rank=0), b"one\ntwo")
    await_state(daemon, job, "running")
    shown = daemon.ask(m.ShowJob(job=job))
    while not (shown["metrics"] and shown["checkpoints"] and shown["lines"]):
        shown = daemon.ask(m.ShowJob(job=job))
    assert (shown["id"], shown["state"], shown["workers"]) == (job, "running", ["worker-0"])
    assert shown["metrics"] == {"accuracy": 0.25}
    assert (shown["dataset_rows"], shown["dataset_fingerprint"]) == (100, "f")
    assert shown["spec"]["train"]["digest_every"] == 25
    assert [one["step"] for one in shown["checkpoints"]] == [10]
    assert shown["lines"] == 2
    assert shown["incidents"]["job_started"] == 1
    worker.save(assign, 20)
    worker.finish(assign)
    daemon.ask(m.WaitJob(job=job))
    done = daemon.ask(m.ShowJob(job=job))
    assert (done["state"], done["step"], done["metrics"]) == ("done", 20, {"accuracy": 0.25})


def test_jobs_are_listed_with_the_settings_that_differ(daemon, spec):
    submit(daemon, spec)
    submit(daemon, {**spec, "train": {"threads": 2}})
    listed = daemon.ask(m.ListJobs())["jobs"]
    assert [job["settings"] for job in listed] == [{"train.threads": 2}, {"train.threads": 1}]
