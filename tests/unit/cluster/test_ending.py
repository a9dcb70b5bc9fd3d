"""The end of a generation, and what an operator is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, KillRequested, Ticked
from dtd.cluster.generation import ending
from dtd.cluster.generation.ending import LEAVE_S
from dtd.cluster.jobs import BOUNDARY_S
from dtd.cluster.machine import MAX_DEADLY_GENERATIONS
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

# --- who does not freeze ---------------------------------------------------------------------


def test_member_that_does_not_freeze_in_time_is_told_to_start_afresh(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    driver.froze("a", generation=number, step=4)
    assert driver.core.explain() == f"ending generation {number}: waiting for b"
    driver.tick(ending.FREEZE_PATIENCE_S - 0.25)
    assert driver.disconnected == []
    assert driver.core.next_deadline(driver.now) == ending.FREEZE_PATIENCE_S
    driver.tick(ending.FREEZE_PATIENCE_S)
    assert [one.name for one in driver.disconnected] == ["b"]
    assert [one.state for one in driver.told("b", m.Release)] == ["evicted"]
    assert driver.cluster.run.roster == ["a"]


@pytest.mark.parametrize("figures", [{"step_s": 5.0}, {"patience_s": 50.0}])
def test_slow_or_first_steps_give_more_time_to_freeze(driver: Any, figures: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.beat("a", **figures)
    driver.lost("b")
    assert driver.cluster.ending.freeze_by == driver.now + 50.0


def test_time_in_which_the_coordinator_slept_is_not_taken_from_anybody(driver: Any) -> None:
    """The reports lie unread in its sockets."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    driver.now += 60.0
    driver.handle(Ticked())
    assert driver.disconnected == []
    for name in "ab":
        driver.froze(name, generation=number, step=4)
    assert driver.cluster.run.roster == ["a", "b"]


# --- one step that kills ---------------------------------------------------------------------


def die(driver: Any, name: str, *, then: str, last_end: str = "") -> None:
    """One dies in the step at hand and comes back; another goes on."""
    number = driver.cluster.run.generation
    incarnation = driver.cluster.workers[name].incarnation
    driver.lost(name, incarnation=incarnation)
    driver.froze(then, generation=number, step=driver.start_step)
    driver.register(name, incarnation=incarnation + 1, last_end=last_end)
    driver.warmed(name)
    driver.tick(driver.now + 10.0)
    if driver.cluster.run.roster == [then]:
        number = driver.all_run(then)
        driver.froze(then, generation=number, step=driver.start_step)
        driver.tick(driver.now + 10.0)
    driver.all_run("a", "b")


def test_step_that_kills_worker_after_worker_fails_the_job(driver: Any) -> None:
    job = driver.submit(min_workers=2)
    driver.run_generation("a", "b")
    for _ in range(MAX_DEADLY_GENERATIONS - 1):
        die(driver, "b", then="a")
        assert job.state is JobState.RUNNING
    die(driver, "a", then="b")
    assert job.state is JobState.FAILED
    assert job.reason == "step 1 kills worker after worker: b, a died or hung in it"


def test_how_processes_ended_stands_in_the_reason(driver: Any) -> None:
    job = driver.submit(min_workers=2)
    driver.run_generation("a", "b")
    for _ in range(MAX_DEADLY_GENERATIONS - 1):
        die(driver, "b", then="a", last_end="ended by SIGSEGV in f (x.py:3)")
    die(driver, "a", then="b")
    assert "b (ended by SIGSEGV in f (x.py:3)), a died or hung" in job.reason
    told = driver.told_of("worker_crashed")
    assert [incident.message for incident in told] == [
        "b's last process ended by SIGSEGV in f (x.py:3)"
    ] * (MAX_DEADLY_GENERATIONS - 1)


def test_an_end_is_told_of_once_and_not_if_an_operator_asked_for_it(driver: Any) -> None:
    driver.register("a", last_end="ended by SIGSEGV")
    driver.register("a", last_end="ended by SIGSEGV")  # the same process calls again
    assert len(driver.told_of("worker_crashed")) == 1
    assert driver.cluster.setbacks.last_ends == {}  # it has not died in a job's step
    driver.handle(KillRequested(name="a", signal="KILL"))
    driver.register("a", incarnation=2, last_end="ended by SIGKILL")
    assert len(driver.told_of("worker_crashed")) == 1


@pytest.mark.parametrize("why", ["drill", "leaving", "progress", "prepared"])
def test_deaths_that_say_nothing_about_the_step_do_not_count(driver: Any, why: str) -> None:
    job = driver.submit(min_workers=2)
    driver.run_generation("a", "b")
    for step in range(1, 2 * MAX_DEADLY_GENERATIONS):
        if why == "drill":
            driver.handle(KillRequested(name="b", signal="KILL"))
        elif why == "leaving":
            driver.cluster.workers["b"].leaving = True
        elif why == "progress":
            driver.commit(step)
        if why == "prepared":
            number = driver.cluster.run.generation
            driver.lost("b", incarnation=step)
            held = {"step": step - 1, "held_generation": driver.cluster.job.start_generation}
            driver.froze("a", generation=number, prepared=(number, step), **held)
            driver.register("b", incarnation=step + 1)
            driver.warmed("b")
            while (
                driver.cluster.run.roster == []
            ):  # generations of one step follow each other slowly
                driver.tick(driver.now + 0.25)
            driver.all_run("a", "b")
        else:
            die(driver, "b", then="a")
        assert job.state is JobState.RUNNING, step
        assert driver.cluster.setbacks.crash_generations <= 1


# --- finishing -------------------------------------------------------------------------------


def test_job_is_done_when_all_have_finished(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.finished("a", generation=number)
    assert driver.ended == []
    driver.finished("b", generation=number)
    assert driver.ended == [job]


def test_job_without_its_final_checkpoint_goes_on_until_it_is_saved(driver: Any) -> None:
    """Rank 0 died between the last step and its checkpoint: the result would be lost."""
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.finished("b", generation=number, saved=False)
    driver.lost("a")
    assert driver.ended == []
    assert driver.told("b", m.Save) == [m.Save(job="j-1", generation=number, step=10)]
    driver.saved_checkpoint("b", generation=number, step=10)
    assert job.state is JobState.DONE


def test_it_is_told_for_whom_a_job_waits_that_others_have_finished(driver: Any) -> None:
    """One that only sends heartbeats holds it up; the operator may give it up."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    assert driver.core.explain() == ""
    driver.finished("a", generation=number)
    assert driver.core.explain().startswith("waiting for b, c to finish as a says")


# --- as the job recovers -----------------------------------------------------------------------


def test_recovery_is_told_once_when_the_job_commits_again(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.beat("a", step=4)
    driver.now = 0.25
    driver.lost("b")
    driver.now = 0.35
    for name in "ac":
        driver.froze(name, generation=number, step=4)
    driver.all_run("a", "c")
    driver.beat("a", step=4)
    assert driver.told_of("recovered") == []
    driver.now = 0.55
    driver.beat("a", step=5)
    driver.beat("c", step=6)
    (told,) = driver.told_of("recovered")
    assert (told.worker, told.step) == ("b", 5)
    assert told.details == {
        "cause": "b was lost (gone)",
        "detected_after_s": 0.25,
        "recovered_after_s": 0.3,
        "steps_redone": 1,
        "steps_lost": 0,
    }


def test_steps_lost_are_part_of_the_incident(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.beat("a", step=6)
    driver.register("a", incarnation=2)
    driver.warmed("a")
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.details["steps_lost"] == 6


def test_silence_before_an_eviction_is_told(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.silence(1.75, "a")
    driver.froze("a", generation=number, step=0)
    driver.all_run("a")
    driver.beat("a", step=1)
    (told,) = driver.told_of("recovered")
    assert told.worker == "b"
    assert told.details["detected_after_s"] == 1.75


# --- a job that is to end does, however long its step takes --------------------------------------


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


def test_a_worker_that_has_finished_is_not_put_out_with_who_has_not(driver: Any) -> None:
    job = computing(driver)
    cancel(driver)
    driver.finished("a", generation=1, step=5)
    cancel(driver)
    busy(driver, driver.now + LEAVE_S + 1.0)
    assert [release.state for release in driver.told("b", m.Release)] == ["evicted"]
    assert [release.state for release in driver.told("a", m.Release)] == ["cancelled"]
    assert job.state is JobState.CANCELLED


def test_a_stop_that_a_restarted_coordinator_has_forgotten_is_a_stop(driver: Any) -> None:
    """Its store could not write the request, and its workers have followed it."""
    job = computing(driver)
    for name in "ab":
        driver.finished(name, generation=1, step=5, stopped=True)
    assert job.state is JobState.CANCELLED
    assert "a request that was lost with the coordinator's store" in job.reason


def test_a_job_that_ends_early_by_itself_is_done(driver: Any) -> None:
    job = computing(driver)
    for name in "ab":
        driver.finished(name, generation=1, step=5, result={"ended_early": "loss is low enough"})
    assert (job.state, job.reason) == (JobState.DONE, "")
