"""Workers that join a job which trains without them harm only themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster.events import CancelRequested
from dtd.cluster.joiners import FIRST_PAUSE_S
from dtd.cluster.records import WARM_UP
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

DIFFERS = {"evidence": "diverged", "reason": "ranks [2] differ first in model.w"}


def fails(desk: Any, name: str, why: str, *, step: int) -> None:
    desk.say(name, m.Failed(job="j-1", reason=why, traceback="line 1", step=step))


def again(desk: Any, name: str) -> None:
    desk.lost(name, incarnation=desk.cluster.workers[name].incarnation)
    desk.register(name, incarnation=desk.cluster.workers[name].incarnation + 1)


def verdict(desk: Any) -> str:
    """Why the job has failed, once all that are left in it have said what they hold."""
    for name in list(desk.cluster.not_frozen()):
        desk.froze(name, generation=desk.cluster.run.generation, step=desk.cluster.job.step)
    desk.tick(desk.now + 600.0)
    (job,) = desk.ended
    assert job.state.value == "failed"
    return str(job.reason)


def run_with_joiners(desk: Any, *names: str, step: int, **terms: Any) -> int:
    """a and b have trained to `step`, and these have joined; the number of the generation."""
    desk.submit(**terms)
    desk.run_generation("a", "b")
    members = ["a", "b"]
    for name in members:
        desk.beat(name, step=step)
    for name in names:
        desk.warm_up(name)
    desk.tick(desk.now + 1.0)
    for name in members:
        desk.froze(name, generation=desk.cluster.run.generation, step=step)
    return int(desk.all_run("a", "b", *names))


def test_a_joiner_in_whose_presence_the_others_fail_is_set_aside(desk: Any) -> None:
    """Its slice of the rows is taken from theirs, which become too small for the model."""
    number = run_with_joiners(desk, "c", step=797)
    fails(desk, "a", "more than 1 value per channel", step=797)
    fails(desk, "b", "more than 1 value per channel", step=797)
    assert desk.state("c") == "released"
    (told,) = desk.told_of("worker_set_aside")
    assert told.worker == "c"
    assert told.message.endswith("10 s: since it joined, a fails: more than 1 value per channel")
    assert told.details["traceback"] == "line 1"
    for name in "ab":
        desk.froze(name, generation=number, step=797)
    assert desk.cluster.run.roster == ["a", "b"]
    assert desk.cluster.job.start_step == 797
    again(desk, "c")
    assert desk.state("c") == "refused"
    desk.all_run("a", "b")
    desk.tick(desk.now + FIRST_PAUSE_S)
    assert desk.state("c") == "warming"
    assert not desk.cluster.job.verdict


def test_what_fails_without_the_joiner_too_is_the_jobs_fault(desk: Any) -> None:
    number = run_with_joiners(desk, "c", step=3)
    fails(desk, "a", "row 17 is odd", step=3)
    for name in "ab":
        desk.froze(name, generation=number, step=3)
    number = desk.all_run("a", "b")
    fails(desk, "a", "row 17 is odd", step=3)
    assert desk.state("a") == "released"
    desk.froze("b", generation=number, step=3)
    desk.all_run("b")
    fails(desk, "b", "row 17 is odd", step=3)
    assert verdict(desk) == "b: row 17 is odd (on a, too)"


def test_a_joiners_own_failure_in_its_first_step_is_the_jobs_if_others_fail_there_too(
    desk: Any,
) -> None:
    number = run_with_joiners(desk, "c", step=3)
    fails(desk, "c", "row 17 is odd", step=3)
    for name in "ab":
        desk.froze(name, generation=number, step=3)
    desk.all_run("a", "b")
    fails(desk, "b", "row 17 is odd", step=3)
    assert verdict(desk) == "b: row 17 is odd (on c, too)"


def test_two_joiners_that_fail_in_their_first_step_fail_no_job(desk: Any) -> None:
    number = run_with_joiners(desk, "c", "d", step=500)
    fails(desk, "c", "out of memory", step=500)
    fails(desk, "d", "out of memory", step=500)
    assert [desk.state(name) for name in "cd"] == ["released", "released"]
    for name in "ab":
        desk.froze(name, generation=number, step=500)
    assert desk.cluster.run.roster == ["a", "b"]
    assert not desk.cluster.job.verdict


def test_a_joiner_that_fails_while_the_job_is_cancelled_does_not_fail_it(desk: Any) -> None:
    number = run_with_joiners(desk, "c", step=500)
    desk.handle(CancelRequested(job="j-1"))
    fails(desk, "c", "out of memory", step=500)
    for name in "ab":
        desk.froze(name, generation=number, step=500)
    desk.saved_checkpoint("a", generation=1, step=500)
    assert desk.ended[0].state is JobState.CANCELLED


def test_after_a_common_step_a_joiner_is_a_member_like_others(desk: Any) -> None:
    run_with_joiners(desk, "c", step=500)
    fails(desk, "a", "row 17 is odd", step=501)
    assert (desk.state("a"), desk.state("c")) == ("released", "running")


def test_a_joiner_that_the_job_cannot_do_without_is_not_blamed(desk: Any) -> None:
    run_with_joiners(desk, "c", step=500, min_workers=3)
    fails(desk, "a", "row 17 is odd", step=500)
    assert (desk.state("a"), desk.state("c")) == ("released", "running")


@pytest.mark.parametrize("mirrors", [0, 1])
def test_a_joiner_without_which_shards_would_be_lost_is_not_blamed(desk: Any, mirrors: int) -> None:
    run_with_joiners(desk, "c", step=500)
    job = desk.cluster.job
    job.terms = replace(job.terms, sharded=True, mirrors=mirrors)
    fails(desk, "a", "row 17 is odd", step=500)
    states = ("running", "released") if mirrors else ("released", "running")
    assert (desk.state("a"), desk.state("c")) == states


# --- what is no failure of the task --------------------------------------------------------------


def test_a_joiner_that_hangs_in_its_first_step_is_not_asked_at_once_again(desk: Any) -> None:
    number = run_with_joiners(desk, "c", step=500)
    desk.beat("c", step=500, stalled_s=6.0, still_s=6.0, patience_s=5.0)
    assert desk.state("c") == "lost"
    assert "stuck for 6.0 s" in desk.told_of("worker_set_aside")[0].message
    for name in "ab":
        desk.froze(name, generation=number, step=500)
    again(desk, "c")
    assert desk.state("c") == "refused"


def test_a_member_that_hangs_later_is_asked_at_once(desk: Any) -> None:
    number = run_with_joiners(desk, "c", step=500)
    for name in "abc":
        desk.beat(name, step=501)
    desk.beat("c", step=501, stalled_s=6.0, still_s=6.0, patience_s=5.0)
    for name in "ab":
        desk.froze(name, generation=number, step=501)
    again(desk, "c")
    assert desk.state("c") == "warming"
    assert not desk.told_of("worker_set_aside")


def test_a_joiner_whose_state_differs_stops_the_others_ever_more_seldom(desk: Any) -> None:
    number = run_with_joiners(desk, "c", step=500)
    for name in "ab":
        desk.froze(name, generation=number, step=500, suspect="c", diverged_step=500, **DIFFERS)
    (told,) = desk.told_of("worker_set_aside")
    assert told.message == "c is set aside for 10 s: ranks [2] differ first in model.w"
    again(desk, "c")
    assert desk.state("c") == "refused"
    assert desk.cluster.run.roster == ["a", "b"]
    desk.all_run("a", "b")
    desk.tick(desk.now + FIRST_PAUSE_S)
    assert desk.state("c") == "warming"
    assert desk.cluster.isolation.set_aside["c"].at == WARM_UP


def test_a_member_whose_state_differs_once_comes_back_at_once(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.commit(5)
    for name in "ab":
        desk.froze(name, generation=number, step=5, suspect="c", diverged_step=5, **DIFFERS)
    again(desk, "c")
    assert desk.state("c") == "warming"


def back(desk: Any, name: str) -> None:
    """It starts afresh, and is ready."""
    incarnation = desk.cluster.workers[name].incarnation
    desk.register(name, incarnation=incarnation + 1)
    desk.warmed(name)


def copies_differ(desk: Any) -> None:
    """b copies the state of a, and differs from it."""
    number = desk.all_run("a", "b")
    step = desk.cluster.run.start_step
    more = {"suspect": "b", "diverged_step": step, "differs": "task.count"}
    desk.froze("a", generation=number, step=step, **more, **DIFFERS)
    desk.lost("b", incarnation=desk.cluster.workers["b"].incarnation)


def test_a_copy_that_differs_twice_at_one_point_fails_a_job_that_needs_it(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.warm_up("a", "b")
    copies_differ(desk)
    assert not desk.cluster.job.verdict
    back(desk, "b")
    copies_differ(desk)
    again_in = "replicas differ again after step 0, again in task.count"
    assert verdict(desk) == f"{again_in}; ranks [2] differ first in model.w"


def test_one_of_two_that_brought_the_state_cannot_fail_the_job(desk: Any) -> None:
    desk.submit(min_workers=3)
    number = desk.run_generation("a", "b", "c")
    desk.commit(3)
    for _ in range(2):
        desk.lost("c", incarnation=desk.cluster.workers["c"].incarnation)
        for name in "ab":
            desk.froze(name, generation=number, step=3)
        back(desk, "c")
        number = desk.all_run("a", "b", "c")
        more = {"suspect": "c", "diverged_step": 3, "differs": "model.w"}
        desk.froze("a", generation=number, step=3, **more, **DIFFERS)
    assert not desk.cluster.job.verdict
