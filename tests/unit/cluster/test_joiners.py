"""Workers that join a job which trains without them harm only themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster.events import CancelRequested
from dtd.cluster.isolation import FIRST_PAUSE_S
from dtd.cluster.records import WARM_UP
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

DIFFERS = {"evidence": "diverged", "reason": "ranks [2] differ first in model.w"}


def fails(driver: Any, name: str, why: str, *, step: int) -> None:
    driver.say(name, m.Failed(job="j-1", reason=why, traceback="line 1", step=step))


def again(driver: Any, name: str) -> None:
    driver.lost(name, incarnation=driver.cluster.workers[name].incarnation)
    driver.register(name, incarnation=driver.cluster.workers[name].incarnation + 1)


def verdict(driver: Any) -> str:
    """Why the job has failed, once all that are left in it have said what they hold."""
    for name in list(driver.cluster.not_frozen()):
        driver.froze(name, generation=driver.cluster.run.generation, step=driver.cluster.job.step)
    driver.tick(driver.now + 600.0)
    (job,) = driver.ended
    assert job.state.value == "failed"
    return str(job.reason)


def run_with_joiners(driver: Any, *names: str, step: int, **terms: Any) -> int:
    """a and b have trained to `step`, and these have joined; the number of the generation."""
    driver.submit(**terms)
    driver.run_generation("a", "b")
    members = ["a", "b"]
    for name in members:
        driver.beat(name, step=step)
    for name in names:
        driver.warm_up(name)
    driver.tick(driver.now + 1.0)
    for name in members:
        driver.froze(name, generation=driver.cluster.run.generation, step=step)
    return int(driver.all_run("a", "b", *names))


def test_a_joiner_in_whose_presence_the_others_fail_is_set_aside(driver: Any) -> None:
    """Its slice of the rows is taken from theirs, which become too small for the model."""
    number = run_with_joiners(driver, "c", step=797)
    fails(driver, "a", "more than 1 value per channel", step=797)
    fails(driver, "b", "more than 1 value per channel", step=797)
    assert driver.state("c") == "released"
    (told,) = driver.told_of("worker_set_aside")
    assert told.worker == "c"
    assert told.message.endswith("10 s: since it joined, a fails: more than 1 value per channel")
    assert told.details["traceback"] == "line 1"
    for name in "ab":
        driver.froze(name, generation=number, step=797)
    assert driver.cluster.run.roster == ["a", "b"]
    assert driver.cluster.job.start_step == 797
    again(driver, "c")
    assert driver.state("c") == "refused"
    driver.all_run("a", "b")
    driver.tick(driver.now + FIRST_PAUSE_S)
    assert driver.state("c") == "warming"
    assert not driver.cluster.job.verdict


def test_what_fails_without_the_joiner_too_is_the_jobs_fault(driver: Any) -> None:
    number = run_with_joiners(driver, "c", step=3)
    fails(driver, "a", "row 17 is odd", step=3)
    for name in "ab":
        driver.froze(name, generation=number, step=3)
    number = driver.all_run("a", "b")
    fails(driver, "a", "row 17 is odd", step=3)
    assert driver.state("a") == "released"
    driver.froze("b", generation=number, step=3)
    driver.all_run("b")
    fails(driver, "b", "row 17 is odd", step=3)
    assert verdict(driver) == "b: row 17 is odd (on a, too)"


def test_a_joiners_own_failure_in_its_first_step_is_the_jobs_if_others_fail_there_too(
    driver: Any,
) -> None:
    number = run_with_joiners(driver, "c", step=3)
    fails(driver, "c", "row 17 is odd", step=3)
    for name in "ab":
        driver.froze(name, generation=number, step=3)
    driver.all_run("a", "b")
    fails(driver, "b", "row 17 is odd", step=3)
    assert verdict(driver) == "b: row 17 is odd (on c, too)"


def test_two_joiners_that_fail_in_their_first_step_fail_no_job(driver: Any) -> None:
    number = run_with_joiners(driver, "c", "d", step=500)
    fails(driver, "c", "out of memory", step=500)
    fails(driver, "d", "out of memory", step=500)
    assert [driver.state(name) for name in "cd"] == ["released", "released"]
    for name in "ab":
        driver.froze(name, generation=number, step=500)
    assert driver.cluster.run.roster == ["a", "b"]
    assert not driver.cluster.job.verdict


def test_a_joiner_that_fails_while_the_job_is_cancelled_does_not_fail_it(driver: Any) -> None:
    number = run_with_joiners(driver, "c", step=500)
    driver.handle(CancelRequested(job="j-1"))
    fails(driver, "c", "out of memory", step=500)
    for name in "ab":
        driver.froze(name, generation=number, step=500)
    driver.saved_checkpoint("a", generation=1, step=500)
    assert driver.ended[0].state is JobState.CANCELLED


def test_after_a_common_step_a_joiner_is_a_member_like_others(driver: Any) -> None:
    run_with_joiners(driver, "c", step=500)
    fails(driver, "a", "row 17 is odd", step=501)
    assert (driver.state("a"), driver.state("c")) == ("released", "running")


def test_a_joiner_that_the_job_cannot_do_without_is_not_blamed(driver: Any) -> None:
    run_with_joiners(driver, "c", step=500, min_workers=3)
    fails(driver, "a", "row 17 is odd", step=500)
    assert (driver.state("a"), driver.state("c")) == ("released", "running")


@pytest.mark.parametrize("mirrors", [0, 1])
def test_a_joiner_without_which_shards_would_be_lost_is_not_blamed(
    driver: Any, mirrors: int
) -> None:
    run_with_joiners(driver, "c", step=500)
    job = driver.cluster.job
    job.terms = replace(job.terms, sharded=True, mirrors=mirrors)
    fails(driver, "a", "row 17 is odd", step=500)
    states = ("running", "released") if mirrors else ("released", "running")
    assert (driver.state("a"), driver.state("c")) == states


# --- what is no failure of the task --------------------------------------------------------------


def test_a_joiner_that_hangs_in_its_first_step_is_not_asked_at_once_again(driver: Any) -> None:
    number = run_with_joiners(driver, "c", step=500)
    driver.beat("c", step=500, stalled_s=6.0, still_s=6.0, patience_s=5.0)
    assert driver.state("c") == "lost"
    assert "stuck for 6.0 s" in driver.told_of("worker_set_aside")[0].message
    for name in "ab":
        driver.froze(name, generation=number, step=500)
    again(driver, "c")
    assert driver.state("c") == "refused"


def test_a_member_that_hangs_later_is_asked_at_once(driver: Any) -> None:
    number = run_with_joiners(driver, "c", step=500)
    for name in "abc":
        driver.beat(name, step=501)
    driver.beat("c", step=501, stalled_s=6.0, still_s=6.0, patience_s=5.0)
    for name in "ab":
        driver.froze(name, generation=number, step=501)
    again(driver, "c")
    assert driver.state("c") == "warming"
    assert not driver.told_of("worker_set_aside")


def test_a_joiner_whose_state_differs_stops_the_others_ever_more_seldom(driver: Any) -> None:
    number = run_with_joiners(driver, "c", step=500)
    for name in "ab":
        driver.froze(name, generation=number, step=500, suspect="c", diverged_step=500, **DIFFERS)
    (told,) = driver.told_of("worker_set_aside")
    assert told.message == "c is set aside for 10 s: ranks [2] differ first in model.w"
    again(driver, "c")
    assert driver.state("c") == "refused"
    assert driver.cluster.run.roster == ["a", "b"]
    driver.all_run("a", "b")
    driver.tick(driver.now + FIRST_PAUSE_S)
    assert driver.state("c") == "warming"
    assert driver.cluster.set_aside["c"].at == WARM_UP


def test_a_member_whose_state_differs_once_comes_back_at_once(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.commit(5)
    for name in "ab":
        driver.froze(name, generation=number, step=5, suspect="c", diverged_step=5, **DIFFERS)
    again(driver, "c")
    assert driver.state("c") == "warming"


def back(driver: Any, name: str) -> None:
    """It starts afresh, and is ready."""
    incarnation = driver.cluster.workers[name].incarnation
    driver.register(name, incarnation=incarnation + 1)
    driver.warmed(name)


def copies_differ(driver: Any) -> None:
    """b copies the state of a, and differs from it."""
    number = driver.all_run("a", "b")
    step = driver.cluster.run.start_step
    more = {"suspect": "b", "diverged_step": step, "differs": "task.count"}
    driver.froze("a", generation=number, step=step, **more, **DIFFERS)
    driver.lost("b", incarnation=driver.cluster.workers["b"].incarnation)


def test_a_copy_that_differs_twice_at_one_point_fails_a_job_that_needs_it(driver: Any) -> None:
    driver.submit(min_workers=2)
    driver.warm_up("a", "b")
    copies_differ(driver)
    assert not driver.cluster.job.verdict
    back(driver, "b")
    copies_differ(driver)
    again_in = "replicas differ again after step 0, again in task.count"
    assert verdict(driver) == f"{again_in}; ranks [2] differ first in model.w"


def test_one_of_two_that_brought_the_state_cannot_fail_the_job(driver: Any) -> None:
    driver.submit(min_workers=3)
    number = driver.run_generation("a", "b", "c")
    driver.commit(3)
    for _ in range(2):
        driver.lost("c", incarnation=driver.cluster.workers["c"].incarnation)
        for name in "ab":
            driver.froze(name, generation=number, step=3)
        back(driver, "c")
        number = driver.all_run("a", "b", "c")
        more = {"suspect": "c", "diverged_step": 3, "differs": "model.w"}
        driver.froze("a", generation=number, step=3, **more, **DIFFERS)
    assert not driver.cluster.job.verdict
