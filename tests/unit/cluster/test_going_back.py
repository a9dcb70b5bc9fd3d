"""A job has gone back to an older state: what was saved on the branch it left saves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster import branches, waiting
from dtd.cluster.events import CancelRequested, ResumeRequested
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m


def goes_back(desk: Any, *, step: int) -> int:
    """b saves step 150, and all are gone; a goes on alone from its checkpoint of step 100."""
    desk.submit()
    desk.run_generation("a", "b")
    for name in "ab":
        desk.beat(name, step=150)
    desk.saved_checkpoint("b", generation=1, step=150)
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    held = m.Held(job="j-1", generation=1, step=100, digest="", where="checkpoint")
    desk.warmed("a", held=(held,))
    desk.handle(ResumeRequested(job="j-1"))
    desk.tick(desk.now + 1.0)
    number: int = desk.all_run("a")
    desk.beat("a", step=step)
    return number


def test_the_saved_step_is_of_the_branch_that_is_trained(desk: Any) -> None:
    number = goes_back(desk, step=140)
    assert branches.saved_step(desk.cluster.job) == 0
    desk.saved_checkpoint("a", generation=1, step=100)
    assert branches.saved_step(desk.cluster.job) == 100
    desk.saved_checkpoint("b", generation=1, step=150)  # says it again
    assert branches.saved_step(desk.cluster.job) == 100
    desk.saved_checkpoint("a", generation=number, step=120)
    assert branches.saved_step(desk.cluster.job) == 120


def test_the_last_who_remembers_the_new_branch_is_not_let_go(desk: Any) -> None:
    number = goes_back(desk, step=140)
    desk.register("c")
    desk.say("a", m.Failed(job="j-1", reason="boom", traceback="", step=140))
    assert desk.state("a") == "running"
    desk.froze("a", generation=number, step=140)
    (order,) = desk.told("a", m.Save)
    assert (order.generation, order.step) == (number, 140)


@pytest.mark.parametrize("step", [140, 150])
def test_who_alone_remembers_the_new_branch_is_not_put_out(desk: Any, step: int) -> None:
    goes_back(desk, step=step)
    desk.beat("a", step=step, stalled_s=9.0, still_s=9.0, patience_s=5.0)
    (told,) = desk.told_of("training_stalled")
    assert f"no other worker that makes progress holds step {step}" in told.message


def test_what_is_lost_with_the_new_branch_is_told(desk: Any) -> None:
    goes_back(desk, step=140)
    desk.handle(CancelRequested(job="j-1"))
    desk.lost("a", incarnation=2)
    desk.tick(desk.now + 60.0)
    assert desk.ended[0].state is JobState.CANCELLED
    (told,) = desk.told_of("state_discarded")
    assert told.message.endswith("the newest checkpoint is of step 150, on a branch that was left")


def test_a_cancelled_job_that_has_gone_back_saves_where_it_stands(desk: Any) -> None:
    number = goes_back(desk, step=100)
    desk.handle(CancelRequested(job="j-1"))
    desk.froze("a", generation=number, step=100, held_generation=1)
    assert [(one.generation, one.step) for one in desk.told("a", m.Save)] == [(1, 100)]
    desk.saved_checkpoint("a", generation=1, step=100)
    assert desk.ended[0].state is JobState.CANCELLED


def test_nobody_is_waited_for_longer_for_steps_that_were_left(desk: Any) -> None:
    goes_back(desk, step=110)
    job = desk.cluster.job
    job.step_s = 10.0
    desk.register("a", incarnation=3)
    desk.lost("a", incarnation=3)
    desk.register("c")
    held = m.Held(job="j-1", generation=1, step=100, digest="", where="checkpoint")
    desk.warmed("c", held=(held,))
    assert waiting.resume_wait_s(desk.cluster, job) == 100.0
    assert "no present worker holds the state of step 110" in desk.core.explain()


def test_a_branch_that_is_taken_up_again_counts_again(desk: Any) -> None:
    """All who know the newer branch are gone for good, and b returns to the older one."""
    newer = goes_back(desk, step=120)
    desk.lost("a", incarnation=2)
    desk.register("b", incarnation=2)
    held = m.Held(job="j-1", generation=1, step=150, digest="", where="checkpoint")
    desk.warmed("b", held=(held,))
    desk.handle(ResumeRequested(job="j-1"))
    desk.tick(desk.now + 1.0)
    number = desk.all_run("b")
    known = branches.remembered(desk.cluster.job.branches)
    assert (desk.cluster.job.start_generation, desk.cluster.job.start_step) == (1, 150)
    assert branches.saved_step(desk.cluster.job) == 150
    assert branches.is_left((newer, 120), known)
    desk.finished("b", generation=number, held_generation=1, step=150)
    assert [job.state for job in desk.ended] == [JobState.DONE]
    assert not desk.told("b", m.Save)
