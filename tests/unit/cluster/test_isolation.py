"""A host on which the job's code fails is set aside; what fails everywhere fails the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster.diagnostics import standing
from dtd.cluster.events import CancelRequested, DrainRequested, Submitted, Ticked
from dtd.cluster.isolation import next_deadline
from dtd.cluster.joiners import FIRST_PAUSE_S, MAX_PAUSE_S
from dtd.cluster.records import WARM_UP
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m


def fails(desk: Any, name: str, why: str = "boom", *, step: int = 0) -> None:
    desk.say(name, m.Failed(job="j-1", reason=why, traceback="line 1", step=step))


def fails_afresh(desk: Any, name: str, why: str = "boom") -> None:
    """It fails to warm up, starts afresh and calls again."""
    fails(desk, name, why)
    again(desk, name)


def again(desk: Any, name: str, *, incarnation: int = 2) -> None:
    desk.lost(name, incarnation=desk.cluster.workers[name].incarnation)
    desk.register(name, incarnation=incarnation)


def verdict(desk: Any) -> str:
    """Why the job has failed, once all that are left in it have said what they hold."""
    if not desk.ended:
        for name in list(desk.cluster.not_frozen()):
            desk.froze(name, generation=desk.cluster.run.generation, step=desk.cluster.job.step)
        desk.tick(desk.now + 600.0)
    (job,) = desk.ended
    assert job.state.value == "failed"
    return str(job.reason)


# --- warming up ----------------------------------------------------------------------------------


def test_one_of_three_that_cannot_warm_up_is_set_aside_and_tried_again(desk: Any) -> None:
    desk.submit()
    for name in "abc":
        desk.register(name)
    fails_afresh(desk, "c", "no module named x\nmore")
    assert desk.told("c", m.Release)[0].state == "evicted"
    assert desk.state("c") == "refused"
    reason = "set aside for 10 s, or until it is started again: no module named x"
    assert desk.cluster.workers["c"].reason == reason
    (told,) = desk.told_of("worker_set_aside")
    assert (told.worker, told.details["traceback"]) == ("c", "line 1")
    (diagnostic,) = standing(desk.cluster)
    assert (diagnostic.kind, diagnostic.where) == ("set-aside", "c")
    for name in "ab":
        desk.warmed(name)
    desk.all_run("a", "b")
    assert desk.cluster.run.roster == ["a", "b"]
    assert len(desk.told("c", m.Prepare)) == 1
    assert desk.core.next_deadline(desk.now) <= FIRST_PAUSE_S
    desk.tick(FIRST_PAUSE_S)
    assert len(desk.told("c", m.Prepare)) == 2
    desk.warmed("c")
    assert desk.state("c") == "ready"
    assert standing(desk.cluster) == []


def test_it_is_tried_again_ever_more_seldom(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    pauses = []
    for incarnation in range(2, 11):
        fails(desk, "b")
        again(desk, "b", incarnation=incarnation)
        pauses.append(desk.cluster.isolation.set_aside["b"].pause_s)
        desk.tick(desk.now + pauses[-1])
        assert desk.state("b") == "warming"
    assert pauses[:3] == [10.0, 20.0, 40.0]
    assert pauses[-1] == MAX_PAUSE_S
    assert not desk.ended


def test_whoever_starts_it_again_has_mended_something(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    fails_afresh(desk, "b")
    assert desk.state("b") == "refused"
    desk.cluster.isolation.set_aside["b"].pid = 77
    again(desk, "b", incarnation=3)
    assert desk.state("b") == "warming"


def test_what_fails_on_two_fails_the_job(desk: Any) -> None:
    desk.submit()
    for name in "abc":
        desk.register(name)
    fails(desk, "b", "no file /tmp/1")
    assert not desk.ended
    fails(desk, "a", "no file /tmp/2")
    assert verdict(desk) == "a: no file /tmp/2 (on b, too)"
    assert desk.ended[0].result["traceback"] == "line 1"


def test_two_bad_hosts_do_not_fail_a_job_that_a_third_can_do(desk: Any) -> None:
    desk.submit(min_workers=2)
    for name in "abc":
        desk.register(name)
    desk.warmed("c")
    for name in "ab":
        fails_afresh(desk, name)
    desk.tick(desk.now + 5.0)
    assert not desk.ended
    assert "a is refused: set aside" in desk.core.explain()


def test_two_hosts_without_the_sandbox_do_not_fail_a_job_that_a_third_is_about_to_do(
    desk: Any,
) -> None:
    """Those refuse it at once; the one that has the sandbox takes a while to warm up."""
    job = desk.submit()
    job.terms = replace(job.terms, sandbox="strict")
    for name in "abc":
        desk.register(name)
    for name in "ab":
        fails_afresh(desk, name, "this worker has no such sandbox")
    assert not desk.ended
    desk.warmed("c")
    assert desk.cluster.run.roster == ["c"]


def test_a_job_fails_once_all_workers_have_refused_it(desk: Any) -> None:
    job = desk.submit()
    job.terms = replace(job.terms, sandbox="strict")
    for name in "abc":
        desk.register(name)
    for name in "ab":
        fails_afresh(desk, name, "this worker has no such sandbox")
    fails(desk, "c", "this worker has no such sandbox")
    assert verdict(desk) == "c: this worker has no such sandbox (on a, b, too)"


def test_two_hosts_that_lack_different_things_do_not_fail_it_either(desk: Any) -> None:
    desk.submit()
    for name in "abc":
        desk.register(name)
    fails(desk, "a", "no driver")
    fails(desk, "b", "no data")
    assert not desk.ended
    fails(desk, "c", "no memory")
    assert verdict(desk) == "c: no memory"


def test_a_single_worker_that_fails_fails_the_job(desk: Any) -> None:
    desk.submit()
    desk.register("a")
    fails(desk, "a")
    assert verdict(desk) == "a: boom"


def test_others_are_given_a_moment_to_come(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.register("a")
    fails_afresh(desk, "a")
    desk.tick(1.0)
    desk.register("b")
    desk.tick(3.0)
    assert not desk.ended
    desk.warmed("b")
    desk.tick(6.0)
    assert desk.cluster.run.roster == ["b"]


def test_others_have_their_moment_to_come_after_the_coordinator_slept(desk: Any) -> None:
    job = desk.submit(settle_s=2.0)
    desk.register("a")
    fails_afresh(desk, "a")
    desk.now += 5.0
    desk.handle(Ticked())
    assert job.state is not JobState.FAILED


def test_if_nobody_comes_the_job_fails_with_what_was_said(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.register("a")
    fails_afresh(desk, "a")
    assert next_deadline(desk.cluster) == 2.0
    desk.tick(1.0)
    desk.register("b")
    fails_afresh(desk, "b", "another")
    assert not desk.ended
    desk.tick(2.0)
    assert verdict(desk) == "b: another"


# --- training ------------------------------------------------------------------------------------


def test_a_member_that_fails_is_set_aside_and_its_step_is_redone_by_the_others(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    fails(desk, "b", "out of memory", step=3)
    assert desk.state("b") == "released"
    assert desk.told("a", m.Freeze)[-1].reason == "b has failed: out of memory"
    for name in "ac":
        desk.froze(name, generation=number, step=3)
    assert desk.cluster.run.roster == ["a", "c"]
    assert not desk.told_of("worker_lost")
    again(desk, "b")
    assert desk.state("b") == "refused"


def test_a_step_that_fails_on_two_fails_the_job(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    fails(desk, "b", "row 17 is odd", step=3)
    for name in "ac":
        desk.froze(name, generation=number, step=3)
    desk.all_run("a", "c")
    fails(desk, "c", "row 17 is odd indeed", step=3)
    assert verdict(desk) == "c: row 17 is odd indeed (on b, too)"


def test_different_steps_on_different_workers_are_different_things(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    fails(desk, "b", step=3)
    for name in "ac":
        desk.froze(name, generation=number, step=3)
    number = desk.all_run("a", "c")
    fails(desk, "c", step=30)
    desk.froze("a", generation=number, step=30)
    assert desk.cluster.run.roster == ["a"]
    fails(desk, "a", step=31)
    assert verdict(desk) == "a: boom"


def test_the_last_one_that_remembers_is_not_let_go(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    desk.beat("a", step=3)
    fails(desk, "a", step=3)
    assert desk.cluster.job.reason == "a: boom"
    assert desk.state("a") == "running"


def test_a_job_that_cannot_go_on_without_it_does_not_try_for_ever(desk: Any) -> None:
    """Its step can be done by nobody else: the second time it is the job's fault."""
    desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    fails(desk, "b", step=3)
    desk.froze("a", generation=number, step=3)
    again(desk, "b")
    desk.tick(FIRST_PAUSE_S)
    desk.warmed("b")
    desk.all_run("a", "b")
    fails(desk, "b", step=3)
    assert verdict(desk) == "b: boom"


def test_a_member_may_fail_on_its_way_back(desk: Any) -> None:
    """Its connection was lost before it could say so, and the ring with it."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("b", farewell=False)
    desk.froze("a", generation=number, step=3, suspect="b", evidence="reset")
    desk.register("b", job="j-1", generation=number)
    assert desk.state("b") == "warming"
    fails(desk, "b", step=3)
    assert desk.state("b") == "released"
    assert desk.cluster.isolation.set_aside["b"].at == 3
    fails(desk, "b", step=3)
    assert len(desk.told_of("worker_set_aside")) == 1


def test_what_is_said_again_on_another_connection_counts_once(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    fails(desk, "b")
    desk.register("b")  # the same process
    fails(desk, "b")
    assert desk.cluster.isolation.set_aside["b"].again == 1
    assert desk.state("b") == "released"


def test_a_job_that_is_being_cancelled_and_fails_has_failed(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.handle(CancelRequested(job="j-1"))
    fails(desk, "a", step=3)
    assert verdict(desk) == "a: boom"


def test_who_is_away_is_thought_to_train_on(desk: Any) -> None:
    """Its ring could not have done the steps without it; it will come back and say so."""
    desk.submit()
    desk.run_generation("a", "b")
    for name in "ab":
        desk.beat(name, step=30)
    desk.lost("b", farewell=False)
    assert desk.state("b") == "away"
    fails(desk, "a", step=30)
    assert desk.state("a") == "released"
    assert not desk.cluster.job.verdict


def test_the_last_that_remembers_is_not_let_go_after_it_has_frozen_either(desk: Any) -> None:
    desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    desk.lost("b")
    desk.froze("a", generation=number, step=30)
    desk.register("c")
    fails(desk, "a", step=30)
    assert desk.state("a") == "frozen"
    assert [order.step for order in desk.told("a", m.Save)] == [30]


# --- taking a state over -------------------------------------------------------------------------


def joins(desk: Any, name: str, *, step: int) -> None:
    """It is warm; the generation ends at `step` steps for its sake, and another one forms."""
    members = list(desk.cluster.run.roster)
    for member in members:
        desk.beat(member, step=step)
    number = desk.cluster.run.generation
    desk.warm_up(name)
    desk.tick(desk.now + 1.0)
    for member in members:
        desk.froze(member, generation=number, step=step)
    assert desk.cluster.run.roster == sorted([*members, name])


def test_the_last_that_remembers_is_not_let_go_for_one_that_has_just_joined(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    joins(desk, "b", step=1000)
    fails(desk, "a", "no memory to give it away", step=1000)
    assert (desk.state("a"), desk.state("b")) == ("forming", "released")
    desk.froze("a", generation=desk.cluster.run.generation, step=1000)
    assert desk.cluster.run.roster == ["a"]
    assert not desk.cluster.job.verdict


@pytest.mark.parametrize("heard", [500, 1000])
def test_nor_for_one_that_remembers_older_days(desk: Any, heard: int) -> None:
    desk.submit(max_workers=2)
    number = desk.run_generation("a", "b")
    for name in "ab":
        desk.beat(name, step=500)
    for name, other in ("ab", "ba"):
        desk.froze(name, generation=number, step=500, suspect=other, evidence="unreachable")
    desk.all_run("a")
    desk.beat("a", step=heard)
    assert desk.state("b") == "barred"
    fails(desk, "a", step=1000)
    assert desk.state("a") == "running"
    assert desk.cluster.job.reason == "a: boom"


def test_what_a_worker_has_done_since_it_was_last_heard_counts_as_unsaved(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.beat("a", step=500)
    desk.saved_checkpoint("a", generation=number, step=500)
    desk.register("b")
    fails(desk, "a", step=501)
    assert desk.state("a") == "running"
    assert desk.cluster.job.reason == "a: boom"


def test_nobody_is_let_go_while_it_is_not_known_who_holds_the_state(
    desk: Any, make_desk: Any
) -> None:
    """The coordinator starts anew while a generation forms, and hears of one member alone."""
    job = desk.submit()
    desk.run_generation("a")
    joins(desk, "b", step=1000)
    assert job.state is JobState.FORMING
    other = make_desk(last_generation=2)
    other.handle(Submitted(job=job))
    other.back("a", phase="forming")
    assert (other.state("a"), other.state("b")) == ("forming", "away")
    fails(other, "a", step=1000)
    assert other.state("a") == "forming"
    assert job.reason == "a: boom"


def test_hosts_too_weak_to_take_the_state_over_do_not_fail_the_job_of_others(desk: Any) -> None:
    """Both held nothing, so neither was in a step of the job."""
    desk.submit()
    desk.run_generation("c", "d")
    for name, step in (("a", 5000), ("b", 5100)):
        joins(desk, name, step=step)
        fails(desk, name, "out of memory", step=0)
        assert desk.state(name) == "released"
        assert desk.cluster.isolation.set_aside[name].at == WARM_UP
        for member in "cd":
            desk.froze(member, generation=desk.cluster.run.generation, step=step)
        desk.all_run("c", "d")
    assert not desk.cluster.job.verdict
    assert desk.cluster.job.steps_lost == 0
    assert desk.cluster.run.roster == ["c", "d"]


def test_what_fails_on_two_at_the_very_beginning_fails_the_job(desk: Any) -> None:
    """Nobody has anything to take over: both fail in the first step."""
    desk.submit()
    desk.warm_up("a", "b", "c")
    fails(desk, "a")
    fails(desk, "b")
    assert desk.cluster.job.reason == "b: boom (on a, too)"


# --- a job that is to end ------------------------------------------------------------------------


def test_a_cancelled_job_does_not_try_anybody_again(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("c")
    fails_afresh(desk, "c", "no driver")
    desk.handle(CancelRequested(job="j-1"))
    desk.tick(desk.now + FIRST_PAUSE_S + 1.0)
    assert desk.state("c") == "refused"
    assert len(desk.told("c", m.Prepare)) == 1
    for name in "ab":
        desk.froze(name, generation=number, step=50)
    desk.saved_checkpoint("a", generation=number, step=50)
    assert desk.ended[0].state is JobState.CANCELLED
    assert desk.state("c") == "idle"


def test_a_newcomer_that_fails_does_not_make_a_failure_of_a_cancel(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("c")
    desk.handle(CancelRequested(job="j-1"))
    fails(desk, "c", "no driver")
    assert desk.state("c") == "released"
    assert [one.at_boundary for one in desk.told("a", m.Freeze)] == [True]
    for name in "ab":
        desk.froze(name, generation=number, step=50)
    desk.saved_checkpoint("a", generation=number, step=50)
    assert desk.ended[0].state is JobState.CANCELLED


def test_who_holds_the_state_of_a_job_that_is_saved_is_not_let_go(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.handle(CancelRequested(job="j-1"))
    desk.froze("a", generation=number, step=50)
    assert desk.cluster.job.state is JobState.SAVING
    fails(desk, "a", step=50)
    assert desk.state("a") == "frozen"
    assert desk.cluster.job.verdict == "cancelled"


# --- other jobs ----------------------------------------------------------------------------------


def test_who_is_set_aside_has_a_part_in_the_next_job(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    fails_afresh(desk, "b")
    desk.submit("j-2")
    desk.handle(CancelRequested(job="j-1"))
    desk.finished("a", generation=1, step=3)
    assert [one.job for one in desk.told("b", m.Prepare)] == ["j-1", "j-2"]
    assert desk.state("b") == "warming"
    assert desk.cluster.isolation.set_aside == {}


@pytest.mark.parametrize("tries", [1, 2])
def test_who_is_set_aside_can_be_drained(desk: Any, tries: int) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    for incarnation in range(2, 2 + tries):
        fails(desk, "b")
        again(desk, "b", incarnation=incarnation)
        desk.tick(desk.now + 1.0)
    desk.handle(DrainRequested(name="b"))
    assert desk.told("b", m.Release)[-1].state == "left"
