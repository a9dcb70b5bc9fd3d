"""Jobs: queued, started, cancelled, ended."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster import jobs
from dtd.cluster.events import (
    DeleteRequested,
    Ticked,
)
from dtd.cluster.machine import MAX_FRUITLESS_GENERATIONS
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m


def test_too_many_jobs_are_refused(driver: Any) -> None:
    for number in range(jobs.MAX_QUEUED_JOBS + 1):
        driver.submit(f"j-{number}")
    with pytest.raises(RequestRefused, match="64 jobs are queued"):
        driver.submit("one-more")


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


# --- jobs, one after another -----------------------------------------------------------------


def test_job_that_never_commits_a_step_fails(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    for _ in range(MAX_FRUITLESS_GENERATIONS):
        assert job.state is JobState.RUNNING
        driver.froze("a", generation=number, step=0)
        driver.tick(driver.now + 10.0)
        number = driver.all_run("a")
    assert job.state is JobState.FAILED
    assert job.reason == "64 generations in a row committed no step"


def test_silence_of_our_own_blames_nobody(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(1.0, "a", "b")
    driver.now = 500.0
    driver.handle(Ticked())
    assert driver.disconnected == []
