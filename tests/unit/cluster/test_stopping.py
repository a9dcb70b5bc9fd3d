"""A job that is to end does, however long its step takes."""

from __future__ import annotations

from typing import Any

from dtd.cluster.ending import LEAVE_S
from dtd.cluster.events import CancelRequested, Ticked
from dtd.cluster.jobs import BOUNDARY_S
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m


def cancel(driver: Any) -> None:
    driver.handle(CancelRequested(job="j-1"))


def computing(driver: Any) -> Job:
    """Both members compute, and none comes to a step boundary."""
    job: Job = driver.submit()
    driver.run_generation("a", "b")
    return job


def busy(driver: Any, until: float) -> None:
    """Time passes, and the threads get on all the while."""
    figures = {"job": "j-1", "generation": driver.cluster.run.generation, "step": 5}
    driver.silence(until, "a", "b", stalled_s=2.0, patience_s=1e6, **figures)


def test_a_step_that_does_not_end_is_broken_off_at_last(driver: Any) -> None:
    job = computing(driver)
    cancel(driver)
    busy(driver, driver.now + BOUNDARY_S - 1.0)
    assert [freeze.at_boundary for freeze in driver.told("a", m.Freeze)] == [True]
    busy(driver, driver.now + 2.0)
    assert [freeze.at_boundary for freeze in driver.told("a", m.Freeze)] == [True, False]
    for name in "ab":
        driver.froze(name, generation=1, step=5)
    assert driver.told("a", m.Save)
    driver.saved_checkpoint("a", generation=1, step=5)
    assert job.state is JobState.CANCELLED


def test_time_in_which_the_coordinator_slept_is_not_taken_from_a_step(driver: Any) -> None:
    computing(driver)
    cancel(driver)
    busy(driver, driver.now + 1.0)
    driver.now += 2 * BOUNDARY_S
    driver.handle(Ticked())
    assert [freeze.at_boundary for freeze in driver.told("a", m.Freeze)] == [True]


def test_a_second_cancel_breaks_it_off_at_once_and_who_stays_is_put_out(driver: Any) -> None:
    job = computing(driver)
    cancel(driver)
    cancel(driver)
    assert [freeze.at_boundary for freeze in driver.told("a", m.Freeze)] == [True, False]
    driver.froze("b", generation=1, step=5)
    busy(driver, driver.now + LEAVE_S + 1.0)
    assert [release.state for release in driver.told("a", m.Release)] == ["evicted"]
    assert driver.told("b", m.Save)
    driver.saved_checkpoint("b", generation=1, step=5)
    assert job.state is JobState.CANCELLED


def test_a_worker_that_is_told_to_leave_when_the_time_is_nearly_over_still_has_time_to(
    driver: Any,
) -> None:
    """Another member is lost just before the job's generation would have been aborted."""
    job = computing(driver)
    cancel(driver)
    busy(driver, driver.now + BOUNDARY_S - 1.0)
    driver.lost("b")
    assert [freeze.at_boundary for freeze in driver.told("a", m.Freeze)] == [True, False]
    busy(driver, driver.now + LEAVE_S - 1.0)
    assert not driver.told("a", m.Release)
    driver.froze("a", generation=1, step=5)
    driver.saved_checkpoint("a", generation=1, step=5)
    assert (job.state, job.checkpoint_step) == (JobState.CANCELLED, 5)


def test_a_worker_that_does_not_leave_then_is_put_out(driver: Any) -> None:
    job = computing(driver)
    cancel(driver)
    busy(driver, driver.now + BOUNDARY_S - 1.0)
    driver.lost("b")
    busy(driver, driver.now + LEAVE_S + 1.0)
    assert [release.state for release in driver.told("a", m.Release)] == ["evicted"]
    assert job.state is JobState.CANCELLED


def test_a_generation_that_ends_at_a_boundary_already_is_broken_off_too(driver: Any) -> None:
    job = computing(driver)
    driver.say("b", m.Leave(reason="drained"))
    cancel(driver)
    busy(driver, driver.now + BOUNDARY_S + 1.0)
    assert [freeze.at_boundary for freeze in driver.told("a", m.Freeze)][-1] is False
    busy(driver, driver.now + LEAVE_S + 1.0)
    assert job.state is JobState.CANCELLED
    (told,) = driver.told_of("state_discarded")
    assert "no present worker holds it" in told.message


def test_the_next_job_has_its_own_time(driver: Any) -> None:
    computing(driver)
    cancel(driver)
    for name in "ab":
        driver.finished(name, generation=1, step=5)
    driver.submit("j-2")
    assert driver.cluster.ending.stop_by is None


def test_a_worker_that_has_finished_is_not_put_out_with_who_has_not(driver: Any) -> None:
    job = computing(driver)
    cancel(driver)
    driver.finished("a", generation=1, step=5)
    cancel(driver)
    busy(driver, driver.now + LEAVE_S + 1.0)
    assert [release.state for release in driver.told("b", m.Release)] == ["evicted"]
    assert [release.state for release in driver.told("a", m.Release)] == ["cancelled"]
    assert job.state is JobState.CANCELLED


def test_a_worker_that_cancels_again_and_again_gives_no_more_time(driver: Any) -> None:
    job = computing(driver)
    cancel(driver)
    for _ in range(4):
        cancel(driver)
        busy(driver, driver.now + LEAVE_S - 1.0)
        if driver.told("a", m.Release):
            break
    assert driver.now < 2 * LEAVE_S
    assert [release.state for release in driver.told("a", m.Release)] == ["evicted"]
    driver.silence(driver.now + 60.0)
    assert job.state is JobState.CANCELLED


def test_a_stop_that_a_restarted_coordinator_has_forgotten_is_a_stop(driver: Any) -> None:
    """Its store could not write the request, and its workers have followed it."""
    job = computing(driver)
    for name in "ab":
        driver.finished(name, generation=1, step=5, stopped=True)
    assert job.state is JobState.CANCELLED
    assert "a request that was lost with the coordinator's store" in job.reason


def test_a_forgotten_stop_is_a_stop_without_the_rank_that_reports_figures(driver: Any) -> None:
    job = computing(driver)
    driver.finished("b", generation=1, step=5, stopped=True)
    driver.silence(driver.now + 60.0, "b")
    assert job.state is JobState.CANCELLED


def test_a_job_that_ends_early_by_itself_is_done(driver: Any) -> None:
    job = computing(driver)
    for name in "ab":
        driver.finished(name, generation=1, step=5, result={"ended_early": "loss is low enough"})
    assert (job.state, job.reason) == (JobState.DONE, "")
