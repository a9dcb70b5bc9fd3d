"""Failures of a job on a worker, and workers that join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster.events import Ticked
from dtd.cluster.records import WARM_UP
from dtd.cluster.status import standing
from dtd.cluster.transitions import JobState
from dtd.cluster.workers.isolation import FIRST_PAUSE_S, MAX_PAUSE_S, next_deadline
from dtd.wire import messages as m

# --- a host on which the job's code fails is set aside; what fails everywhere fails the job ------


def fails(driver: Any, name: str, why: str = "boom", *, step: int = 0) -> None:
    driver.say(name, m.Failed(job="j-1", reason=why, traceback="line 1", step=step))


def fails_afresh(driver: Any, name: str, why: str = "boom") -> None:
    """It fails to warm up, starts afresh and calls again."""
    fails(driver, name, why)
    again(driver, name)


def again(driver: Any, name: str) -> None:
    incarnation = driver.cluster.workers[name].incarnation
    driver.lost(name, incarnation=incarnation)
    driver.register(name, incarnation=incarnation + 1)


def verdict(driver: Any) -> str:
    """Why the job has failed, once all that are left in it have said what they hold."""
    if not driver.ended:
        for name in list(driver.cluster.not_frozen()):
            driver.froze(
                name, generation=driver.cluster.run.generation, step=driver.cluster.job.step
            )
        driver.tick(driver.now + 600.0)
    (job,) = driver.ended
    assert job.state.value == "failed"
    return str(job.reason)


# --- warming up ----------------------------------------------------------------------------------


def test_one_of_three_that_cannot_warm_up_is_set_aside_and_tried_again(driver: Any) -> None:
    driver.submit()
    for name in "abc":
        driver.register(name)
    fails_afresh(driver, "c", "no module named x\nmore")
    assert driver.told("c", m.Release)[0].state == "evicted"
    assert driver.state("c") == "refused"
    reason = "set aside for 10 s, or until it is started again: no module named x"
    assert driver.cluster.workers["c"].reason == reason
    (told,) = driver.told_of("worker_set_aside")
    assert (told.worker, told.details["traceback"]) == ("c", "line 1")
    (diagnostic,) = standing(driver.cluster)
    assert (diagnostic.kind, diagnostic.where) == ("set-aside", "c")
    for name in "ab":
        driver.warmed(name)
    driver.all_run("a", "b")
    assert driver.cluster.run.roster == ["a", "b"]
    assert len(driver.told("c", m.Prepare)) == 1
    assert driver.core.next_deadline(driver.now) <= FIRST_PAUSE_S
    driver.tick(FIRST_PAUSE_S)
    assert len(driver.told("c", m.Prepare)) == 2
    driver.warmed("c")
    assert driver.state("c") == "ready"
    assert standing(driver.cluster) == []


def test_it_is_tried_again_ever_more_seldom(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    pauses = []
    for _ in range(9):
        fails(driver, "b")
        again(driver, "b")
        pauses.append(driver.cluster.set_aside["b"].pause_s)
        driver.tick(driver.now + pauses[-1])
        assert driver.state("b") == "warming"
    assert pauses[:3] == [10.0, 20.0, 40.0]
    assert pauses[-1] == MAX_PAUSE_S
    assert not driver.ended


def test_a_worker_that_starts_it_again_has_mended_something(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    fails_afresh(driver, "b")
    assert driver.state("b") == "refused"
    driver.cluster.set_aside["b"].pid = 77
    again(driver, "b")
    assert driver.state("b") == "warming"


def test_what_fails_on_two_fails_the_job(driver: Any) -> None:
    driver.submit()
    for name in "abc":
        driver.register(name)
    fails(driver, "b", "no file /tmp/1")
    assert not driver.ended
    fails(driver, "a", "no file /tmp/2")
    assert verdict(driver) == "a: no file /tmp/2 (on b, too)"
    assert driver.ended[0].result["traceback"] == "line 1"


def test_two_bad_hosts_do_not_fail_a_job_that_a_third_can_do(driver: Any) -> None:
    driver.submit(min_workers=2)
    for name in "abc":
        driver.register(name)
    driver.warmed("c")
    for name in "ab":
        fails_afresh(driver, name)
    driver.tick(driver.now + 5.0)
    assert not driver.ended
    assert "a is refused: set aside" in driver.core.explain()


def test_two_hosts_without_the_sandbox_do_not_fail_a_job_that_a_third_is_about_to_do(
    driver: Any,
) -> None:
    """Those refuse it at once; the one that has the sandbox takes a while to warm up."""
    job = driver.submit()
    job.terms = replace(job.terms, sandbox="strict")
    for name in "abc":
        driver.register(name)
    for name in "ab":
        fails_afresh(driver, name, "this worker has no such sandbox")
    assert not driver.ended
    driver.warmed("c")
    assert driver.cluster.run.roster == ["c"]


def test_a_job_fails_once_all_workers_have_refused_it(driver: Any) -> None:
    job = driver.submit()
    job.terms = replace(job.terms, sandbox="strict")
    for name in "abc":
        driver.register(name)
    for name in "ab":
        fails_afresh(driver, name, "this worker has no such sandbox")
    fails(driver, "c", "this worker has no such sandbox")
    assert verdict(driver) == "c: this worker has no such sandbox (on a, b, too)"


def test_a_single_worker_that_fails_fails_the_job(driver: Any) -> None:
    driver.submit()
    driver.register("a")
    fails(driver, "a")
    assert verdict(driver) == "a: boom"


def test_others_are_given_a_moment_to_come(driver: Any) -> None:
    driver.submit(settle_s=2.0)
    driver.register("a")
    fails_afresh(driver, "a")
    driver.tick(1.0)
    driver.register("b")
    driver.tick(3.0)
    assert not driver.ended
    driver.warmed("b")
    driver.tick(6.0)
    assert driver.cluster.run.roster == ["b"]


def test_others_have_their_moment_to_come_after_the_coordinator_slept(driver: Any) -> None:
    job = driver.submit(settle_s=2.0)
    driver.register("a")
    fails_afresh(driver, "a")
    driver.now += 5.0
    driver.handle(Ticked())
    assert job.state is not JobState.FAILED


def test_if_nobody_comes_the_job_fails_with_what_was_said(driver: Any) -> None:
    driver.submit(settle_s=2.0)
    driver.register("a")
    fails_afresh(driver, "a")
    assert next_deadline(driver.cluster) == 2.0
    driver.tick(1.0)
    driver.register("b")
    fails_afresh(driver, "b", "another")
    assert not driver.ended
    driver.tick(2.0)
    assert verdict(driver) == "b: another"


# --- training ------------------------------------------------------------------------------------


def test_a_step_that_fails_on_two_fails_the_job(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    fails(driver, "b", "row 17 is odd", step=3)
    for name in "ac":
        driver.froze(name, generation=number, step=3)
    driver.all_run("a", "c")
    fails(driver, "c", "row 17 is odd indeed", step=3)
    assert verdict(driver) == "c: row 17 is odd indeed (on b, too)"


def test_different_steps_on_different_workers_are_different_things(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    fails(driver, "b", step=3)
    for name in "ac":
        driver.froze(name, generation=number, step=3)
    number = driver.all_run("a", "c")
    fails(driver, "c", step=30)
    driver.froze("a", generation=number, step=30)
    assert driver.cluster.run.roster == ["a"]
    fails(driver, "a", step=31)
    assert verdict(driver) == "a: boom"


def test_the_last_one_that_remembers_is_not_let_go(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    driver.beat("a", step=3)
    fails(driver, "a", step=3)
    assert driver.cluster.job.reason == "a: boom"
    assert driver.state("a") == "running"


def test_a_job_that_cannot_go_on_without_it_does_not_try_for_ever(driver: Any) -> None:
    """Its step can be done by nobody else: the second time it is the job's fault."""
    driver.submit(min_workers=2)
    number = driver.run_generation("a", "b")
    fails(driver, "b", step=3)
    driver.froze("a", generation=number, step=3)
    again(driver, "b")
    driver.tick(FIRST_PAUSE_S)
    driver.warmed("b")
    driver.all_run("a", "b")
    fails(driver, "b", step=3)
    assert verdict(driver) == "b: boom"


def test_what_is_said_again_on_another_connection_counts_once(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    fails(driver, "b")
    driver.register("b")  # the same process
    fails(driver, "b")
    assert driver.cluster.set_aside["b"].again == 1
    assert driver.state("b") == "released"


def test_a_worker_that_is_away_is_thought_to_train_on(driver: Any) -> None:
    """Its ring could not have done the steps without it; it will come back and say so."""
    driver.submit()
    driver.run_generation("a", "b")
    for name in "ab":
        driver.beat(name, step=30)
    driver.lost("b", farewell=False)
    assert driver.state("b") == "away"
    fails(driver, "a", step=30)
    assert driver.state("a") == "released"
    assert not driver.cluster.job.verdict


# --- workers that join a job which trains without them harm only themselves ----------------------


DIFFERS = {"evidence": "diverged", "reason": "ranks [2] differ first in model.w"}


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


def test_a_joiner_that_the_job_cannot_do_without_is_not_blamed(driver: Any) -> None:
    run_with_joiners(driver, "c", step=500, min_workers=3)
    fails(driver, "a", "row 17 is odd", step=500)
    assert (driver.state("a"), driver.state("c")) == ("released", "running")


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


def back(driver: Any, name: str) -> None:
    """It starts afresh, and is ready."""
    incarnation = driver.cluster.workers[name].incarnation
    driver.register(name, incarnation=incarnation + 1)
    driver.warmed(name)


def copies_differ(driver: Any) -> None:
    """b copies the state of a, and differs from it."""
    number = driver.all_run("a", "b")
    step = driver.start_step
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


@pytest.mark.parametrize("knows", ["a", "b"])
def test_a_job_that_differs_again_fails_with_the_report_that_names_the_entry(
    driver: Any, knows: str
) -> None:
    """Another member may have lost its ring while they searched for it, and reports first."""
    driver.submit()
    driver.warm_up("a", "b")
    for _ in range(2):
        number = driver.all_run("a", "b")
        for name in "ab":
            known = {"differs": "task.n", "reason": "task.n differs"} if name == knows else {}
            report = {"evidence": "diverged", "reason": "states differ", "diverged_step": 5}
            driver.froze(name, generation=number, step=0, where="none", **report | known)
    again_in = "replicas differ again after step 5, again in task.n"
    assert verdict(driver) == f"{again_in}; task.n differs"


def test_failure_of_an_older_generation_leaves_the_newest_unfenced(driver: Any) -> None:
    """Its member was thought dead, and still trained alone while the others went on."""
    driver.submit(min_workers=2)
    number = driver.run_generation("a", "b", "c")
    left = driver.cluster.job.roster_id
    driver.lost("c")
    for name in "ab":
        driver.froze(name, generation=number, step=0)
    driver.all_run("a", "b")
    driver.back("c", generation=number, roster_id=left)
    assert driver.cluster.workers["c"].reconnection.returning
    fails(driver, "c", step=1)
    assert driver.cluster.job.roster == ("a", "b")
    assert not driver.cluster.job.fenced
