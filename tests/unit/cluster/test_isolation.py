"""Failures of a job on a worker, and workers that join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dtd.cluster.events import Ticked
from dtd.cluster.isolation import FIRST_PAUSE_S
from dtd.cluster.status import standing
from dtd.cluster.transitions import JobState
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


def test_a_job_fails_once_all_workers_have_refused_it(driver: Any) -> None:
    job = driver.submit()
    job.terms = replace(job.terms, sandbox="strict")
    for name in "abc":
        driver.register(name)
    for name in "ab":
        fails_afresh(driver, name, "this worker has no such sandbox")
    fails(driver, "c", "this worker has no such sandbox")
    assert verdict(driver) == "c: this worker has no such sandbox (on a, b, too)"


# --- training ------------------------------------------------------------------------------------


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


# --- what is no failure of the task --------------------------------------------------------------


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


def test_others_have_their_moment_to_come_after_the_coordinator_slept(driver: Any) -> None:
    job = driver.submit(settle_s=2.0)
    driver.register("a")
    fails_afresh(driver, "a")
    driver.now += 5.0
    driver.handle(Ticked())
    assert job.state is not JobState.FAILED


def test_a_joiner_that_the_job_cannot_do_without_is_not_blamed(driver: Any) -> None:
    run_with_joiners(driver, "c", step=500, min_workers=3)
    fails(driver, "a", "row 17 is odd", step=500)
    assert (driver.state("a"), driver.state("c")) == ("released", "running")


def test_a_joiner_that_hangs_in_its_first_step_is_not_asked_at_once_again(driver: Any) -> None:
    number = run_with_joiners(driver, "c", step=500)
    driver.beat("c", step=500, stalled_s=6.0, still_s=6.0, patience_s=5.0)
    assert driver.state("c") == "lost"
    assert "stuck for 6.0 s" in driver.told_of("worker_set_aside")[0].message
    for name in "ab":
        driver.froze(name, generation=number, step=500)
    again(driver, "c")
    assert driver.state("c") == "refused"
