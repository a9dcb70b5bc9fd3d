"""Ended jobs and checkpoints are deleted: by a real coordinator, with played workers."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m
from tests.unit.coordinator.asking import refused


@pytest.fixture
def worker(daemon, play):
    return play(daemon)


@pytest.fixture
def ended(daemon, worker, spec):
    """A job that is done, with checkpoints of steps 10 and 20 on the worker's disk."""
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    assign = worker.run_alone()
    worker.save(assign, 10)
    worker.save(assign, 20, f"g{assign.generation:06}-s{10:09}")
    worker.finish(assign)
    daemon.ask(m.WaitJob(job=job))
    return job


def steps(daemon, job):
    return [one["step"] for one in daemon.ask(m.ListCheckpoints(job=job))["checkpoints"]]


def answer_drops(worker, count, reason=""):
    drops = [worker.hear(m.DropCheckpoint) for _ in range(count)]
    for drop in drops:
        worker.say(m.CheckpointDropped(directory=drop.directory, reason=reason))
    return drops


def test_a_job_is_gone_and_its_number_is_not_given_again(daemon, worker, ended, spec):
    curves = daemon.config.state_dir / "tensorboard" / ended
    curves.mkdir(parents=True, exist_ok=True)
    generation = daemon.ask(m.ShowJob(job=ended))["generation"]
    with daemon.connect() as client:
        client.ask(m.Delete(job=ended))
        answer_drops(worker, 2)
        answer = client.answer()
    assert [one["outcome"] for one in answer["checkpoints"]] == ["deleted", "deleted"]
    assert daemon.ask(m.ListJobs())["jobs"] == []
    assert refused(daemon, m.ShowJob(job=ended))[0] == f"job {ended!r} does not exist"
    assert daemon.ask(m.ListCheckpoints())["checkpoints"] == []
    assert not curves.exists()
    assert daemon.coordinator.store.last_ended() is None
    assert daemon.coordinator.store.last_generation() == generation
    assert daemon.coordinator.store.next_job_number() == 2
    assert daemon.ask(m.SubmitJob(spec=spec))["job"] == "digits-2"


def test_a_worker_that_is_away_deletes_when_it_is_back(daemon, play, worker, ended):
    worker.close()
    while "worker-0" in daemon.call(daemon.coordinator.links.names):
        pass
    answer = daemon.ask(m.Delete(job=ended))
    assert {one["outcome"] for one in answer["checkpoints"]} == {"later"}
    assert {one["reason"] for one in answer["checkpoints"]} == {"it is not connected"}
    back = play(daemon, pid=999)
    assert sorted(drop.step for drop in answer_drops(back, 2)) == [10, 20]
    while daemon.coordinator.store.doomed_on("worker-0"):
        pass


def test_what_is_needed_stays(daemon, worker, ended, spec):
    other = daemon.ask(m.SubmitJob(spec=spec, from_job=ended, from_step=10, from_mode="weights"))
    for request in (m.Delete(job=ended), m.Delete(job=ended, step=10)):
        words, _ = refused(daemon, request)
        assert f"job {other['job']}, which is " in words
        assert words.endswith(f"starts from {ended}")
    words, remedy = refused(daemon, m.Delete(job=other["job"]))
    assert words.startswith(f"job {other['job']} has not ended")
    assert remedy.endswith(f"dtdctl cancel {other['job']}")
    with daemon.connect() as client:
        client.ask(m.Delete(job=ended, step=20))
        answer_drops(worker, 1)
        assert client.answer()["checkpoints"][0]["outcome"] == "deleted"
    assert refused(daemon, m.Delete(job="x"))[0] == "job 'x' does not exist"
