from typing import Any

import pytest

from dtd.cluster import ending
from dtd.cluster.events import KillRequested, Ticked
from dtd.cluster.machine import MAX_DEADLY_GENERATIONS
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

# --- by a loss -------------------------------------------------------------------------------


def test_lost_member_ends_the_generation_and_survivors_go_on_from_what_they_hold(
    desk: Any,
) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("b")
    assert [one.at_boundary for one in desk.told("a", m.Freeze)] == [False]
    desk.froze("a", generation=number, step=4, suspect="b", evidence="reset")
    assert desk.told("a", m.Assign)[-1].generation == number
    desk.froze("c", generation=number, step=4)
    assign = desk.told("a", m.Assign)[-1]
    assert (assign.generation, assign.held_generation, assign.held_step) == (number + 1, number, 4)
    (incident,) = desk.told_of("ring_broken")
    assert incident.details == {"suspect": "b", "evidence": "reset"}


def test_frozen_member_ends_the_generation_of_all(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=4)
    assert "a has frozen" in desk.told("b", m.Freeze)[-1].reason
    desk.froze("b", generation=number, step=4)
    assert desk.cluster.run.generation == number + 1


def test_report_of_an_older_generation_is_ignored(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number - 1, step=4)
    desk.finished("a", generation=number - 1)
    assert desk.state("a") == "running"


# --- who does not freeze ---------------------------------------------------------------------


def test_member_that_does_not_freeze_in_time_is_told_to_start_afresh(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=4)
    assert desk.core.explain() == f"ending generation {number}: waiting for b"
    desk.tick(ending.FREEZE_PATIENCE_S - 0.25)
    assert desk.disconnected == []
    assert desk.core.next_deadline(desk.now) == ending.FREEZE_PATIENCE_S
    desk.tick(ending.FREEZE_PATIENCE_S)
    assert [one.name for one in desk.disconnected] == ["b"]
    assert [one.state for one in desk.told("b", m.Release)] == ["evicted"]
    assert desk.cluster.run.roster == ["a"]


@pytest.mark.parametrize("figures", [{"step_s": 5.0}, {"patience_s": 50.0}])
def test_slow_or_first_steps_give_more_time_to_freeze(desk: Any, figures: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.beat("a", **figures)
    desk.lost("b")
    assert desk.cluster.ending.freeze_by == desk.now + 50.0


def test_time_in_which_the_coordinator_slept_is_not_taken_from_anybody(desk: Any) -> None:
    """The reports lie unread in its sockets."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.now += 60.0
    desk.handle(Ticked())
    assert desk.disconnected == []
    for name in "ab":
        desk.froze(name, generation=number, step=4)
    assert desk.cluster.run.roster == ["a", "b"]


def test_only_those_who_have_not_finished_are_evicted(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.finished("a", generation=number)
    desk.lost("c")
    desk.tick(ending.FREEZE_PATIENCE_S)
    assert [one.name for one in desk.disconnected] == ["b"]


# --- at a boundary ---------------------------------------------------------------------------


def test_ring_that_breaks_before_the_boundary_gives_the_others_a_deadline(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    assert desk.cluster.ending.freeze_by is None
    desk.froze("a", generation=number, step=0, suspect="b", evidence="silent")
    assert desk.cluster.ending.freeze_by is not None
    assert [one.at_boundary for one in desk.told("b", m.Freeze)] == [True, False]


def test_who_leaves_first_at_the_boundary_breaks_nothing(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    desk.froze("a", generation=number, step=1, suspect="b", evidence="reset")
    assert [one.at_boundary for one in desk.told("b", m.Freeze)] == [True]


# --- one step that kills ---------------------------------------------------------------------


def die(desk: Any, name: str, *, then: str, last_end: str = "") -> None:
    """One dies in the step at hand and comes back; another goes on."""
    number = desk.cluster.run.generation
    incarnation = desk.cluster.workers[name].incarnation
    desk.lost(name, incarnation=incarnation)
    desk.froze(then, generation=number, step=desk.cluster.run.start_step)
    desk.register(name, incarnation=incarnation + 1, last_end=last_end)
    desk.warmed(name)
    desk.tick(desk.now + 10.0)
    if desk.cluster.run.roster == [then]:
        number = desk.all_run(then)
        desk.froze(then, generation=number, step=desk.cluster.run.start_step)
        desk.tick(desk.now + 10.0)
    desk.all_run("a", "b")


def test_step_that_kills_worker_after_worker_fails_the_job(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    desk.run_generation("a", "b")
    for _ in range(MAX_DEADLY_GENERATIONS - 1):
        die(desk, "b", then="a")
        assert job.state is JobState.RUNNING
    die(desk, "a", then="b")
    assert job.state is JobState.FAILED
    assert job.reason == "step 1 kills worker after worker: b, a died or hung in it"


def test_how_processes_ended_stands_in_the_reason(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    desk.run_generation("a", "b")
    for _ in range(MAX_DEADLY_GENERATIONS - 1):
        die(desk, "b", then="a", last_end="ended by SIGSEGV in f (x.py:3)")
    die(desk, "a", then="b")
    assert "b (ended by SIGSEGV in f (x.py:3)), a died or hung" in job.reason
    told = desk.told_of("worker_crashed")
    assert [incident.message for incident in told] == [
        "b's last process ended by SIGSEGV in f (x.py:3)"
    ] * (MAX_DEADLY_GENERATIONS - 1)


def test_an_end_is_told_of_once_and_not_if_an_operator_asked_for_it(desk: Any) -> None:
    desk.register("a", last_end="ended by SIGSEGV")
    desk.register("a", last_end="ended by SIGSEGV")  # the same process calls again
    assert len(desk.told_of("worker_crashed")) == 1
    assert desk.cluster.setbacks.last_ends == {}  # it has not died in a job's step
    desk.handle(KillRequested(name="a", signal="KILL"))
    desk.register("a", incarnation=2, last_end="ended by SIGKILL")
    assert len(desk.told_of("worker_crashed")) == 1


@pytest.mark.parametrize("why", ["drill", "leaving", "progress", "prepared"])
def test_deaths_that_say_nothing_about_the_step_do_not_count(desk: Any, why: str) -> None:
    job = desk.submit(min_workers=2)
    desk.run_generation("a", "b")
    for step in range(1, 2 * MAX_DEADLY_GENERATIONS):
        if why == "drill":
            desk.handle(KillRequested(name="b", signal="KILL"))
        elif why == "leaving":
            desk.cluster.workers["b"].leaving = True
        elif why == "progress":
            desk.commit(step)
        if why == "prepared":
            number = desk.cluster.run.generation
            desk.lost("b", incarnation=step)
            held = {"step": step - 1, "held_generation": desk.cluster.job.start_generation}
            desk.froze("a", generation=number, prepared=(number, step), **held)
            desk.register("b", incarnation=step + 1)
            desk.warmed("b")
            while desk.cluster.run.roster == []:  # generations of one step follow each other slowly
                desk.tick(desk.now + 0.25)
            desk.all_run("a", "b")
        else:
            die(desk, "b", then="a")
        assert job.state is JobState.RUNNING, step
        assert desk.cluster.setbacks.crash_generations <= 1


def test_generations_that_end_without_a_death_do_not_count(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    desk.run_generation("a", "b")
    die(desk, "b", then="a")
    for _ in range(MAX_DEADLY_GENERATIONS):
        number = desk.cluster.run.generation
        for name in "ab":
            desk.froze(name, generation=number, step=0)
        desk.tick(desk.now + 10.0)
        desk.all_run("a", "b")
    assert (job.state, desk.cluster.setbacks.crash_generations) == (JobState.RUNNING, 1)


def test_a_step_that_kills_everybody_at_once_fails_the_job_too(desk: Any) -> None:
    """The job goes back to a checkpoint and commits steps again, but never gets further."""
    job = desk.submit()
    desk.run_generation("a")
    desk.saved_checkpoint("a", generation=1, step=2)
    for life in range(2, MAX_DEADLY_GENERATIONS + 2):
        assert job.state is JobState.RUNNING
        for step in range(desk.cluster.run.start_step + 1, 6):
            desk.beat("a", generation=desk.cluster.run.generation, step=step)
        desk.register("a", incarnation=life)
        held = m.Held(job="j-1", generation=1, step=2, digest="", where="checkpoint")
        desk.warmed("a", held=(held,))
        if job.state is JobState.FORMING:
            desk.all_run("a")
    assert job.state is JobState.FAILED
    assert job.reason == "step 6 kills worker after worker: a died or hung in it"


def test_death_while_forming_says_nothing_about_a_step(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    desk.lost("b")
    assert desk.cluster.setbacks.crashed_workers == []


# --- finishing -------------------------------------------------------------------------------


def test_job_is_done_when_all_have_finished(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.finished("a", generation=number)
    assert desk.ended == []
    desk.finished("b", generation=number)
    assert desk.ended == [job]


def test_job_is_done_when_a_member_dies_after_the_final_checkpoint(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.saved_checkpoint("a", generation=number, step=10)
    desk.finished("a", generation=number)
    desk.lost("b")
    assert (job.state, job.result["replica_digests"]) == (JobState.DONE, {"a": "x"})


def test_job_without_its_final_checkpoint_goes_on_until_it_is_saved(desk: Any) -> None:
    """Rank 0 died between the last step and its checkpoint: the result would be lost."""
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.finished("b", generation=number, saved=False)
    desk.lost("a")
    assert desk.ended == []
    assert desk.told("b", m.Save) == [m.Save(job="j-1", generation=number, step=10)]
    desk.saved_checkpoint("b", generation=number, step=10)
    assert job.state is JobState.DONE


def test_released_member_does_not_keep_the_job_from_ending(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.froze("b", generation=number, step=9)
    desk.saved_checkpoint("a", generation=number, step=9)
    desk.say("b", m.Leave(reason="stop"))
    assert desk.state("b") == "released"
    desk.finished("a", generation=number)
    assert job.state is JobState.DONE


def test_members_that_finished_go_on_with_those_who_did_not(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.finished("a", generation=number)
    desk.lost("c")
    assert "waiting for b" in desk.core.explain()
    desk.froze("b", generation=number, step=9, prepared=(number, 10))
    assign = desk.told("b", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (number + 1, 10)
    assert [one.holds for one in assign.roster] == [True, True]


def test_it_is_told_for_whom_a_job_waits_that_others_have_finished(desk: Any) -> None:
    """One that only sends heartbeats holds it up; the operator may give it up."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    assert desk.core.explain() == ""
    desk.finished("a", generation=number)
    assert desk.core.explain().startswith("waiting for b, c to finish as a says")
