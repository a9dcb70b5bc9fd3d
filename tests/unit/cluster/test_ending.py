from typing import Any

import pytest

from dtd.cluster import ending
from dtd.cluster.events import KillRequested, Ticked
from dtd.cluster.machine import MAX_DEADLY_GENERATIONS
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

# --- by a loss -------------------------------------------------------------------------------


def test_lost_member_ends_the_generation_and_survivors_go_on_from_what_they_hold(
    driver: Any,
) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("b")
    assert [one.at_boundary for one in driver.told("a", m.Freeze)] == [False]
    driver.froze("a", generation=number, step=4, suspect="b", evidence="reset")
    assert driver.told("a", m.Assign)[-1].generation == number
    driver.froze("c", generation=number, step=4)
    assign = driver.told("a", m.Assign)[-1]
    assert (assign.generation, assign.held_generation, assign.held_step) == (number + 1, number, 4)
    (incident,) = driver.told_of("ring_broken")
    assert incident.details == {"suspect": "b", "evidence": "reset"}


def test_frozen_member_ends_the_generation_of_all(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number, step=4)
    assert "a has frozen" in driver.told("b", m.Freeze)[-1].reason
    driver.froze("b", generation=number, step=4)
    assert driver.cluster.run.generation == number + 1


def test_report_of_an_older_generation_is_ignored(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number - 1, step=4)
    driver.finished("a", generation=number - 1)
    assert driver.state("a") == "running"


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


def test_only_those_that_have_not_finished_are_evicted(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.finished("a", generation=number)
    driver.lost("c")
    driver.tick(ending.FREEZE_PATIENCE_S)
    assert [one.name for one in driver.disconnected] == ["b"]


# --- at a boundary ---------------------------------------------------------------------------


def test_ring_that_breaks_before_the_boundary_gives_the_others_a_deadline(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    assert driver.cluster.ending.freeze_by is None
    driver.froze("a", generation=number, step=0, suspect="b", evidence="silent")
    assert driver.cluster.ending.freeze_by is not None
    assert [one.at_boundary for one in driver.told("b", m.Freeze)] == [True, False]


def test_a_worker_that_leaves_first_at_the_boundary_breaks_nothing(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    driver.froze("a", generation=number, step=1, suspect="b", evidence="reset")
    assert [one.at_boundary for one in driver.told("b", m.Freeze)] == [True]


# --- one step that kills ---------------------------------------------------------------------


def die(driver: Any, name: str, *, then: str, last_end: str = "") -> None:
    """One dies in the step at hand and comes back; another goes on."""
    number = driver.cluster.run.generation
    incarnation = driver.cluster.workers[name].incarnation
    driver.lost(name, incarnation=incarnation)
    driver.froze(then, generation=number, step=driver.cluster.run.start_step)
    driver.register(name, incarnation=incarnation + 1, last_end=last_end)
    driver.warmed(name)
    driver.tick(driver.now + 10.0)
    if driver.cluster.run.roster == [then]:
        number = driver.all_run(then)
        driver.froze(then, generation=number, step=driver.cluster.run.start_step)
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


def test_generations_that_end_without_a_death_do_not_count(driver: Any) -> None:
    job = driver.submit(min_workers=2)
    driver.run_generation("a", "b")
    die(driver, "b", then="a")
    for _ in range(MAX_DEADLY_GENERATIONS):
        number = driver.cluster.run.generation
        for name in "ab":
            driver.froze(name, generation=number, step=0)
        driver.tick(driver.now + 10.0)
        driver.all_run("a", "b")
    assert (job.state, driver.cluster.setbacks.crash_generations) == (JobState.RUNNING, 1)


def test_a_step_that_kills_everybody_at_once_fails_the_job_too(driver: Any) -> None:
    """The job goes back to a checkpoint and commits steps again, but never gets further."""
    job = driver.submit()
    driver.run_generation("a")
    driver.saved_checkpoint("a", generation=1, step=2)
    for life in range(2, MAX_DEADLY_GENERATIONS + 2):
        assert job.state is JobState.RUNNING
        for step in range(driver.cluster.run.start_step + 1, 6):
            driver.beat("a", generation=driver.cluster.run.generation, step=step)
        driver.register("a", incarnation=life)
        held = m.Held(job="j-1", generation=1, step=2, digest="", where="checkpoint")
        driver.warmed("a", held=(held,))
        if job.state is JobState.FORMING:
            driver.all_run("a")
    assert job.state is JobState.FAILED
    assert job.reason == "step 6 kills worker after worker: a died or hung in it"


def test_death_while_forming_says_nothing_about_a_step(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a", "b")
    driver.lost("b")
    assert driver.cluster.setbacks.crashed_workers == []


# --- finishing -------------------------------------------------------------------------------


def test_job_is_done_when_all_have_finished(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.finished("a", generation=number)
    assert driver.ended == []
    driver.finished("b", generation=number)
    assert driver.ended == [job]


def test_job_is_done_when_a_member_dies_after_the_final_checkpoint(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.saved_checkpoint("a", generation=number, step=10)
    driver.finished("a", generation=number)
    driver.lost("b")
    assert (job.state, job.result["replica_digests"]) == (JobState.DONE, {"a": "x"})


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


def test_released_member_does_not_keep_the_job_from_ending(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    driver.froze("b", generation=number, step=9)
    driver.saved_checkpoint("a", generation=number, step=9)
    driver.say("b", m.Leave(reason="stop"))
    assert driver.state("b") == "released"
    driver.finished("a", generation=number)
    assert job.state is JobState.DONE


def test_members_that_finished_go_on_with_those_that_did_not(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.finished("a", generation=number)
    driver.lost("c")
    assert "waiting for b" in driver.core.explain()
    driver.froze("b", generation=number, step=9, prepared=(number, 10))
    assign = driver.told("b", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (number + 1, 10)
    assert [one.holds for one in assign.roster] == [True, True]


def test_it_is_told_for_whom_a_job_waits_that_others_have_finished(driver: Any) -> None:
    """One that only sends heartbeats holds it up; the operator may give it up."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    assert driver.core.explain() == ""
    driver.finished("a", generation=number)
    assert driver.core.explain().startswith("waiting for b, c to finish as a says")
