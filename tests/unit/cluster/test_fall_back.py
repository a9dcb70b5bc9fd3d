"""How long newer steps are waited for, and what a job leaves behind that falls back."""

from typing import Any

import pytest

from dtd.cluster import waiting
from dtd.cluster.events import ResumeRequested, SaveJob
from dtd.cluster.transitions import JobState
from dtd.cluster.waiting import MOST_RESUME_WAIT_S, RESUME_WAIT_S
from dtd.wire import messages as m


def fallen_back(desk: Any, *, step_s: float, to: int = 0) -> Any:
    """The only holder of step 400 is away; somebody else holds `to` on its disk."""
    job = desk.submit()
    number = desk.run_generation("a")
    desk.saved_checkpoint("a", generation=number, step=400)
    job.step, job.step_s = 400, step_s
    desk.lost("a")
    job.fenced = True  # a member that is gone for good has said so
    desk.register("b")
    held = m.Held(job="j-1", generation=number, step=to, digest="", where="checkpoint")
    desk.warmed("b", held=(held,) if to else ())
    return job


@pytest.mark.parametrize(
    ("step_s", "to", "wait_s", "words"),
    [
        (0.0, 0, RESUME_WAIT_S, "60 s"),
        (0.01, 0, RESUME_WAIT_S, "60 s"),
        (1.0, 0, 400.0, "7 min"),
        (1.0, 300, 100.0, "100 s"),
        (100.0, 0, MOST_RESUME_WAIT_S, "60 min"),
    ],
)
def test_lost_steps_are_waited_for_as_long_as_they_would_take(
    desk: Any, step_s: float, to: int, wait_s: float, words: str
) -> None:
    fallen_back(desk, step_s=step_s, to=to)
    assert desk.core.explain().endswith(f"goes on without it, as the job does in {words}")
    desk.tick(desk.now + wait_s - 0.5)
    assert desk.cluster.run.roster == []
    desk.tick(desk.now + 1.0)
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b"], to)


def register_holder(desk: Any, name: str, step: int, *, incarnation: int = 1) -> None:
    """A new process that has a checkpoint of the first generation."""
    desk.register(name, incarnation=incarnation)
    held = m.Held(job="j-1", generation=1, step=step, digest="", where="checkpoint")
    desk.warmed(name, held=(held,))


def test_more_is_waited_for_longer_once_a_holder_is_gone(desk: Any) -> None:
    """With one who was ten steps behind a minute was enough; without it all would begin again."""
    fallen_back(desk, step_s=1.0)
    register_holder(desk, "c", 390)
    assert desk.core.explain().endswith("in 60 s")
    desk.tick(desk.now + 20.0)
    desk.lost("c")
    assert desk.core.explain().endswith("in 6 min")
    desk.tick(399.5)
    assert (desk.cluster.run.roster, desk.core.next_deadline(399.9)) == ([], 400.0)
    desk.tick(400.5)
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b"], 0)


def test_less_is_waited_for_less_once_a_holder_has_come(desk: Any) -> None:
    fallen_back(desk, step_s=1.0)
    desk.tick(40.0)
    register_holder(desk, "c", 390)
    assert desk.core.explain().endswith("in 20 s")
    desk.tick(60.5)
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b", "c"], 390)


def test_the_wait_begins_anew_when_the_newest_state_had_come(desk: Any) -> None:
    job = fallen_back(desk, step_s=1.0)
    desk.tick(300.0)
    desk.cluster.setbacks.no_progress_generations = waiting.QUICK_GENERATIONS + 6
    register_holder(desk, "a", 400, incarnation=2)
    assert desk.core.explain().startswith("pausing")
    assert desk.cluster.waiting.newer_since is None
    desk.lost("a", incarnation=2)
    desk.tick(600.0)
    assert (desk.cluster.run.roster, job.state) == ([], JobState.WAITING)
    desk.tick(707.0)
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b"], 0)


def test_the_operators_word_lasts_until_the_job_goes_on(desk: Any) -> None:
    """It cannot be written down at once, and who was to take part is lost meanwhile."""
    fallen_back(desk, step_s=100.0)
    register_holder(desk, "c", 100)
    desk.writes = False
    desk.handle(ResumeRequested(job="j-1"))
    desk.lost("c")
    desk.writes = True
    desk.written(SaveJob(job=desk.cluster.job, announces=desk.cluster.run.generation))
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b"], 0)
    assert not desk.cluster.waiting.resumed


def test_the_operator_need_not_wait(desk: Any) -> None:
    fallen_back(desk, step_s=100.0)
    desk.handle(ResumeRequested(job="j-1"))
    assert desk.cluster.run.roster == ["b"]


def test_what_is_left_behind_is_told_to_all_who_join_later(desk: Any) -> None:
    job = fallen_back(desk, step_s=0.0)
    desk.tick(desk.now + RESUME_WAIT_S)
    assert job.branches == ((0, 0, 2),)
    (told,) = desk.told_of("branch_left")
    assert told.message == "the checkpoint of step 400 stays with a; the job continues from step 0"
    left = (m.Branch(generation=0, step=0, before=2),)
    assert desk.told("b", m.Assign)[-1].branches == left
    desk.all_run("b")
    desk.say("b", m.Heartbeat(state="running", job="j-1", generation=2, step=350))
    desk.register("a", incarnation=2)
    held = m.Held(job="j-1", generation=1, step=400, digest="", where="checkpoint")
    desk.warmed("a", held=(held,))
    desk.tick(desk.now + 1.0)
    desk.froze("b", generation=2, step=350)
    assign = desk.told("a", m.Assign)[-1]
    assert (assign.held_generation, assign.held_step, assign.branches) == (2, 350, left)


def test_what_was_left_behind_is_not_waited_for_again(desk: Any) -> None:
    fallen_back(desk, step_s=100.0)
    desk.handle(ResumeRequested(job="j-1"))
    desk.lost("b")
    desk.register("b", incarnation=2)
    desk.register("c")
    desk.warmed("c")
    desk.warmed("b")
    assert desk.cluster.run.roster == ["b", "c"]


def test_the_branch_is_taken_up_again_when_its_holder_comes_first(desk: Any) -> None:
    """Nothing of the new branch is saved, so the old one has the newest state."""
    job = fallen_back(desk, step_s=0.0)
    desk.tick(desk.now + RESUME_WAIT_S)
    desk.register("b", incarnation=2)
    desk.register("a", incarnation=2)
    held = m.Held(job="j-1", generation=1, step=400, digest="", where="checkpoint")
    desk.warmed("a", held=(held,))
    desk.warmed("b")
    assert desk.told("a", m.Assign)[-1].held_step == 400
    assert job.branches == ((0, 0, 1), (1, 400, 3))  # what has been followed since is left


def test_what_nobody_had_heard_of_is_left_behind_like_what_was_known(desk: Any) -> None:
    """A member commits out of hearing, and the job goes on without waiting for it any longer."""
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    desk.tick(RESUME_WAIT_S)
    assert (desk.cluster.run.roster, job.branches) == (["a"], ((0, 0, 2),))
    desk.register("b", job="j-1", generation=number)
    desk.froze("b", generation=number, step=2, held_generation=number)


def test_an_ordinary_recovery_leaves_nothing_behind(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.saved_checkpoint("a", generation=number, step=5)
    desk.lost("b")
    desk.froze("a", generation=number, step=6)
    assert (desk.cluster.run.start_step, job.branches) == (6, ())
    assert desk.told("a", m.Assign)[-1].branches == ()


# --- steps that nobody holds any more ------------------------------------------------------------


@pytest.mark.parametrize(("generation", "lost"), [(1, 17), (0, 1)])
def test_what_killed_workers_had_committed_counts_as_lost(
    desk: Any, generation: int, lost: int
) -> None:
    """The coordinator died with them, and had stored step 101 only."""
    job = desk.submit()
    desk.run_generation("a", "b")
    job.step = 101
    for name in "ab":
        desk.lost(name)
    job.fenced = True
    held = m.Held(job="j-1", generation=1, step=100, digest="", where="checkpoint")
    for name, step in (("a", 116), ("b", 117)):
        desk.register(name, incarnation=2)
        desk.warmed(name, held=(held,), committed_generation=generation, committed_step=step)
    desk.tick(desk.now + MOST_RESUME_WAIT_S)
    assert desk.cluster.run.start_step == 100
    assert desk.cluster.job.steps_lost == lost
