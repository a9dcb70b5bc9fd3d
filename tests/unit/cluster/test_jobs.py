"""Jobs: queued, started, cancelled, ended."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster import jobs
from dtd.cluster.events import (
    CancelRequested,
    DeleteRequested,
    KillRequested,
    Submitted,
    Ticked,
)
from dtd.cluster.machine import MAX_FRUITLESS_GENERATIONS
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GenerationState, JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m


def cancel(driver: Any, job: str = "j-1") -> None:
    driver.handle(CancelRequested(job=job))


def progress(generation: int, step: int, **more: Any) -> m.Progress:
    values = {"rows": 32, "step_s": 0.5, "skipped_steps": 0, **more}
    return m.Progress(
        job="j-1",
        generation=generation,
        step=step,
        epoch=2,
        loss=0.25,
        learning_rate=0.1,
        grad_norm=1.0,
        compute_s=0.1,
        comm_s=0.1,
        exposed_s=0.0,
        skipped=False,
        **values,
    )


def test_too_many_jobs_are_refused(driver: Any) -> None:
    for number in range(jobs.MAX_QUEUED_JOBS + 1):
        driver.submit(f"j-{number}")
    with pytest.raises(RequestRefused, match="64 jobs are queued"):
        driver.submit("one-more")


def test_queued_job_is_dropped_by_cancel(driver: Any) -> None:
    driver.submit("j-1")
    second = driver.submit("j-2")
    third = driver.submit("j-3")
    cancel(driver, "j-3")
    assert (third.state, third.reason) == (JobState.CANCELLED, "cancelled while queued")
    assert driver.ended == [third]
    assert list(driver.cluster.queue) == [second]


def test_running_job_is_stopped_at_its_next_step_boundary(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    cancel(driver)
    (freeze,) = driver.told("b", m.Freeze)
    assert (freeze.at_boundary, freeze.stop, freeze.leave) == (True, True, False)
    assert driver.core.explain() == (
        "stopping at the next step boundary; a second `dtdctl cancel` does not wait for that"
    )
    for name in "ab":
        driver.finished(name, generation=number, step=4)
    assert (job.state, job.reason, job.step) == (
        JobState.CANCELLED,
        "cancelled by the operator",
        4,
    )


def test_cancel_after_the_last_step_comes_too_late(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    cancel(driver)
    driver.finished("a", generation=number, step=10_000)
    assert job.state is JobState.DONE


def test_progress_gives_the_figures_of_the_newest_step(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    driver.say("a", progress(number, 3))
    assert (job.step, job.epoch, job.loss, job.samples_per_s) == (3, 2, 0.25, 64.0)
    driver.say("a", progress(number, 4, step_s=0.0))
    assert (job.step, job.step_s, job.samples_per_s) == (4, 0.5, 64.0)  # not measured
    driver.say("a", progress(number - 1, 9))
    assert job.step == 4


def test_result_has_the_digests_of_all_who_finished(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    job.loss = 0.25
    driver.finished("a", generation=number, result={"steps": 10, "ended_early": "by its task"})
    driver.finished("b", generation=number)
    assert job.result == {
        "steps": 10,
        "ended_early": "by its task",
        "train_loss": 0.25,
        "replica_digests": {"a": "x", "b": "x"},
        "world_size": 2,
        "servers": 0,
        "steps_lost": 0,
        "metrics": {},
    }
    assert driver.told("a", m.Release) == [m.Release(job="j-1", state="done", reason="")]
    assert driver.told("b", m.Release) == driver.told("a", m.Release)


def test_failure_of_the_task_ends_the_job_with_its_traceback(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("b")
    driver.say("b", m.Failed(job="j-1", reason="boom", traceback="line 1"))
    driver.say("b", m.Failed(job="j-1", reason="because of that", traceback="line 9"))
    driver.froze("b", generation=1, step=0)
    assert (job.state, job.reason) == (JobState.FAILED, "b: boom")
    assert job.result["traceback"] == "line 1"
    assert driver.state("b") == "released"


def test_worker_that_was_leaving_leaves_when_the_job_ends_first(driver: Any) -> None:
    """Otherwise a drained worker starts afresh and registers again."""
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.say("b", m.Leave(reason="drained"))
    driver.saved_checkpoint("a", generation=number, step=10)
    for name in "ab":
        driver.finished(name, generation=number)
    assert [one.state for one in driver.told("a", m.Release)] == ["done"]
    assert [one.state for one in driver.told("b", m.Release)] == ["left"]


def delete(driver: Any, job: str, step: int = 0) -> None:
    driver.handle(DeleteRequested(job=job, step=step))


def test_an_ended_job_may_be_deleted_and_that_is_told(driver: Any) -> None:
    driver.submit("j-2")
    delete(driver, "j-1")
    delete(driver, "j-1", step=7)
    told = [(one.kind, one.job, one.step) for one in driver.incidents if "deleted" in one.kind]
    assert told == [("job_deleted", "j-1", 0), ("checkpoint_deleted", "j-1", 7)]


def test_a_job_that_has_not_ended_is_not_deleted(driver: Any) -> None:
    driver.submit("j-1")
    driver.submit("j-2")
    for job in ("j-1", "j-2"):
        with pytest.raises(RequestRefused, match=f"job {job} has not ended"):
            delete(driver, job)


@pytest.mark.parametrize(
    ("from_step", "step", "needed"),
    [(0, 0, True), (0, 5, True), (5, 0, True), (5, 5, True), (5, 6, False)],
)
def test_what_a_job_may_still_start_from_is_not_deleted(
    driver: Any, from_step: int, step: int, needed: bool
) -> None:
    job = driver.submit("j-2")
    job.from_job, job.from_step = "j-1", from_step
    if needed:
        with pytest.raises(RequestRefused, match="job j-2, which is waiting, starts from j-1"):
            delete(driver, "j-1", step)
    else:
        delete(driver, "j-1", step)


# --- memory lost after an error of the membership's own, and jobs that no worker can be sent -----


def test_all_but_what_was_given_out_is_forgotten(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    (left,) = driver.core.begin_again(given_up=False)
    assert left is job
    cluster: ClusterState = driver.cluster
    assert (cluster.job, cluster.workers, cluster.run.roster) == (None, {}, [])
    assert cluster.run.highest == number
    driver.core.check_invariants()
    driver.handle(Submitted(job=left))
    assert (cluster.run.phase, cluster.run.roster) == (GenerationState.RUNNING, ["a", "b"])
    assert driver.state("a") == "away"


def test_a_job_that_is_given_up_has_failed_and_the_next_one_is_left(driver: Any) -> None:
    job, other = driver.submit(), driver.submit("j-2")
    assert driver.core.begin_again(given_up=True) == [other]
    assert (job.state, other.state) == (JobState.FAILED, JobState.QUEUED)
    assert "internal_error" in job.reason


# --- operators -------------------------------------------------------------------------------


def test_signal_is_sent_and_remembered(driver: Any) -> None:
    driver.register("a")
    driver.handle(KillRequested(name="a", signal="STOP"))
    assert driver.told("a", m.Signal) == [m.Signal(signal="STOP")]
    assert "SIGSTOP sent to a (pid 1)" in driver.incidents[-1].message


# --- jobs, one after another -----------------------------------------------------------------


def test_next_job_begins_when_the_last_one_has_ended(driver: Any) -> None:
    """Even if nothing else happens: all workers are gone, and no deadline would come."""
    driver.submit("j-1")
    second = driver.submit("j-2")
    number = driver.run_generation("a")
    driver.finished("a", generation=number)
    assert driver.cluster.job is second
    assert second.state is not JobState.QUEUED


def test_job_that_never_commits_a_step_fails(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    for _ in range(MAX_FRUITLESS_GENERATIONS):
        assert job.state is JobState.RUNNING
        driver.froze("a", generation=number, step=0, reason="no process group")
        driver.tick(driver.now + 10.0)
        number = driver.all_run("a")
    assert job.state is JobState.FAILED
    assert job.reason == (
        "64 generations in a row committed no step;"
        " the last one ended because a has frozen: no process group"
    )


def test_silence_of_our_own_blames_nobody(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(1.0, "a", "b")
    driver.now = 500.0
    driver.handle(Ticked())
    assert driver.disconnected == []
