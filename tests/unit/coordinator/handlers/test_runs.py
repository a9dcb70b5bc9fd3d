"""Runs beside one another, by a real coordinator with a played worker."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m
from dtd.wire.step_rows import StepRow, pack_step_rows
from tests.unit.coordinator.asking import refused


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


def test_the_environment_is_recorded(daemon, worker, spec):
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    worker.environment = ("torch=2.14", "device=cpu")
    worker.warm_up()
    worker.hear(m.Assign)
    known = daemon.ask(m.ShowJob(job=job))
    assert known["environment"] == {"torch": "2.14", "device": "cpu"}
