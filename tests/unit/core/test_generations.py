from typing import Any

import pytest

from dtd.core import generations
from dtd.core.membership_events import CancelRequested, JobState
from dtd.wire import messages as m


def test_generation_is_announced_to_all_members_alike(desk: Any) -> None:
    job = desk.submit()
    for name in ("w-10", "w-2"):
        desk.register(name)
    for name in ("w-10", "w-2"):
        desk.warmed(name)
    (first,), (second,) = desk.told("w-2", m.Assign), desk.told("w-10", m.Assign)
    assert [one.name for one in first.roster] == ["w-2", "w-10"]
    assert (first.rank, second.rank) == (0, 1)
    assert (first.generation, first.roster_id) == (second.generation, second.roster_id)
    assert (first.source_rank, first.held_generation, first.held_step) == (0, 0, 0)
    assert (job.state, job.generation, job.world_size) == (JobState.FORMING, 1, 2)
    assert job.roster == ("w-2", "w-10")
    assert desk.core.explain() == "forming generation 1: waiting for w-2, w-10"


def test_job_is_saved_before_its_generation_is_announced(desk: Any) -> None:
    desk.submit()
    desk.register("a")
    kinds: list[str] = []
    handle = desk.core.handle

    def listen(event: Any, now: float) -> Any:
        effects = handle(event, now)
        for effect in effects:
            message = getattr(effect, "message", effect)
            kinds.append(type(message).__name__)
        return effects

    desk.core.handle = listen
    desk.warmed("a")
    assert kinds.index("SaveJob") < kinds.index("Assign")


def test_numbers_exceed_all_that_were_ever_seen(make_desk: Any) -> None:
    desk = make_desk(last_generation=7)
    desk.submit()
    desk.register("a")
    held = m.Held(job="j-1", generation=11, step=5, digest="", where="checkpoint")
    desk.warmed("a", held=(held,))
    assert desk.books.generation == 12


def test_generation_runs_when_all_members_do(desk: Any) -> None:
    job = desk.submit()
    for name in "ab":
        desk.register(name)
    for name in "ab":
        desk.warmed(name)
    running = m.Running(job="j-1", generation=1, step=0)
    desk.say("a", running)
    desk.say("a", running)
    assert job.state is JobState.FORMING
    desk.say("b", m.Running(job="j-1", generation=9, step=0))
    assert job.state is JobState.FORMING
    desk.say("b", running)
    assert job.state is JobState.RUNNING
    assert desk.core.explain() == ""


def test_member_that_runs_when_the_generation_ends_already_does_not_revive_it(desk: Any) -> None:
    desk.submit()
    for name in "abc":
        desk.register(name)
    for name in "abc":
        desk.warmed(name)
    desk.lost("a")
    desk.all_run("b", "c")
    assert desk.core.explain() == "ending generation 1: waiting for b, c"


def test_cancel_while_forming_stops_after_the_first_step(desk: Any) -> None:
    job = desk.submit()
    desk.register("a")
    desk.warmed("a")
    desk.handle(CancelRequested(job="j-1"))
    assert desk.told("a", m.Freeze) == []
    desk.all_run("a")
    assert [one.stop for one in desk.told("a", m.Freeze)] == [True]
    assert job.state is JobState.STOPPING


def test_lost_member_ends_the_generation_and_survivors_go_on_from_what_they_hold(
    desk: Any,
) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("b")
    assert [one.at_boundary for one in desk.told("a", m.Freeze)] == [False]
    desk.froze("a", generation=number, step=4, suspect="b")
    assert desk.told("a", m.Assign)[-1].generation == number
    desk.froze("c", generation=number, step=5)
    assign = desk.told("a", m.Assign)[-1]
    assert (assign.generation, assign.source_rank, assign.held_step) == (number + 1, 1, 5)
    assert "ring_broken" in desk.kinds()


def test_frozen_member_ends_the_generation_of_all(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=4)
    assert "a has frozen" in desk.told("b", m.Freeze)[-1].reason


def test_report_of_an_older_generation_is_ignored(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number - 1, step=4)
    desk.finished("a", generation=number - 1)
    assert desk.state("a") == "running"


def test_member_that_does_not_freeze_in_time_is_evicted(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=4)
    desk.tick(generations.FREEZE_PATIENCE_S - 1)
    assert desk.disconnected == []
    desk.tick(generations.FREEZE_PATIENCE_S + 1)
    assert [one.name for one in desk.disconnected] == ["b"]
    assert desk.books.roster == ["a"]


def test_slow_steps_give_more_time_to_freeze(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.say("a", m.Heartbeat(state="running", step_s=5.0))
    desk.lost("b")
    assert desk.books.freeze_by == desk.now + generations.FREEZE_PATIENCE_STEPS * 5.0


def test_only_those_who_have_not_finished_are_evicted(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.finished("a", generation=number)
    desk.lost("c")
    desk.tick(generations.FREEZE_PATIENCE_S + 1)
    assert [one.name for one in desk.disconnected] == ["b"]


# --- joining ---------------------------------------------------------------------------------


def test_ready_worker_joins_at_the_step_boundary(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.register("b")
    desk.warmed("b")
    (freeze,) = desk.told("a", m.Freeze)
    assert (freeze.at_boundary, freeze.stop, freeze.reason) == (True, False, "b joins")
    assert desk.books.workers["b"].reason == "joins at the next step boundary"
    desk.froze("a", generation=number, step=3)
    assert desk.books.roster == ["a", "b"]


def test_joiners_that_warm_up_are_taken_in_together(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    desk.register("c")
    desk.warmed("b")
    assert desk.told("a", m.Freeze) == []
    desk.warmed("c")
    assert desk.told("a", m.Freeze)[0].reason == "b, c joins"


def test_standby_waits_until_there_is_room(desk: Any) -> None:
    desk.submit(max_workers=2)
    number = desk.run_generation("a", "b")
    desk.register("c")
    desk.warmed("c")
    assert desk.state("c") == "ready"
    assert desk.told("a", m.Freeze) == []
    desk.lost("a")
    desk.froze("b", generation=number, step=3)
    assert desk.books.roster == ["b", "c"]


def test_leaver_hands_its_state_to_the_standby_even_beyond_max_workers(desk: Any) -> None:
    desk.submit(max_workers=1)
    number = desk.run_generation("a")
    desk.register("b")
    desk.warmed("b")
    desk.say("a", m.Leave(reason="stop"))
    desk.saved_checkpoint("a", generation=number, step=3)
    desk.froze("a", generation=number, step=3)
    assert desk.books.roster == ["a", "b"]
    number = desk.all_run("a", "b")
    for name in "ab":
        desk.froze(name, generation=number, step=4)
    assert desk.state("a") == "released"
    assert desk.books.roster == ["b"]


@pytest.mark.parametrize("why", ["finishing", "stopping"])
def test_nobody_joins_a_job_that_ends(desk: Any, why: str) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("c")
    if why == "finishing":
        desk.finished("a", generation=number)
    else:
        desk.handle(CancelRequested(job="j-1"))
    before = len(desk.told("b", m.Freeze))
    desk.warmed("c")
    assert len(desk.told("b", m.Freeze)) == before


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
    desk.finished("b", generation=number)
    desk.lost("a")
    assert desk.ended == []
    assign = desk.told("b", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (number + 1, 10)
    desk.all_run("b")
    desk.saved_checkpoint("b", generation=number + 1, step=10)
    desk.finished("b", generation=number + 1)
    assert job.state is JobState.DONE


def test_released_member_does_not_keep_the_job_from_ending(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.froze("b", generation=number, step=9)
    desk.saved_checkpoint("a", generation=number, step=10)
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
    desk.froze("b", generation=number, step=9)
    assign = desk.told("b", m.Assign)[-1]
    assert (assign.generation, assign.held_step, assign.source_rank) == (number + 1, 10, 0)


# --- progress --------------------------------------------------------------------------------


def test_heartbeats_of_running_members_count_as_progress(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a")
    assert desk.books.fruitless == 1
    desk.say("a", m.Heartbeat(state="running", job="j-1", generation=number, step=3))
    assert (desk.books.fruitless, job.step) == (0, 3)


def test_steps_that_nobody_holds_any_more_are_counted(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a")
    desk.say("a", m.Heartbeat(state="running", job="j-1", generation=number, step=6))
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert job.steps_lost == 6
    assert "steps_lost" in desk.kinds()
