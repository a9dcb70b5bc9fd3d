from collections.abc import Callable
from typing import Any

import pytest

from dtd.cluster.events import KillRequested, ResumeRequested, Submitted
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m

# --- a control connection is lost --------------------------------------------------------------


def test_generation_runs_on_without_a_members_connection(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.lost("a", farewell=False)
    assert (driver.state("a"), job.state) == ("away", JobState.RUNNING)
    assert [one.worker for one in driver.told_of("worker_away")] == ["a"]
    driver.back("a")
    assert driver.state("a") == "running"
    assert driver.cluster.run.generation == number
    assert driver.told("b", m.Freeze) == []
    assert driver.told_of("worker_lost") == []


def test_member_that_stays_away_is_lost_unless_its_generation_advances(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.lost("a", farewell=False)
    for step in range(1, 13):
        driver.now += 0.25
        driver.beat("b", step=step)
    assert driver.state("a") == "away"
    driver.silence(driver.now + 0.75, "b")
    assert driver.state("a") == "lost"


def test_member_that_has_finished_may_be_away(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.finished("a", generation=number)
    driver.lost("a", farewell=False)
    driver.back("a", "finished")
    driver.finished("a", generation=number)
    driver.finished("b", generation=number)
    assert (job.state, set(job.result["replica_digests"])) == (JobState.DONE, {"a", "b"})


def test_signal_cannot_be_sent_to_one_that_is_away(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.lost("a", farewell=False)
    with pytest.raises(RequestRefused, match="connected: b"):
        driver.handle(KillRequested(name="a", signal="KILL"))


# --- a coordinator restarts --------------------------------------------------------------------


def restored(state: JobState = JobState.RUNNING, **more: Any) -> Job:
    """A job whose generation was announced, as a coordinator that has restarted reads it back."""
    elastic = {"min_workers": 1, "max_workers": 3, "settle_s": 5.0, "warmup_timeout_s": 60.0}
    values: dict[str, Any] = {
        "generation": 3,
        "roster": ("a", "b"),
        "roster_id": 33,
        "announced": True,
        "fenced": False,
        "start_generation": 2,
        "start_step": 6,
        "step": 7,
        "total_steps": 1000,
        **more,
    }
    return Job(id="j-1", spec={"job": {"name": "j"}, "elastic": elastic}, state=state, **values)


def adopted(make_desk: Callable[..., Any], job: Job) -> Any:
    driver = make_desk(last_generation=3)
    driver.handle(Submitted(job=job))
    return driver


def test_generation_is_not_adopted_that_a_member_has_left_for_certain(make_desk: Any) -> None:
    """It has registered anew, and waits, before the job becomes the active one."""
    driver = make_desk(last_generation=3)
    driver.register("a", incarnation=2)
    job = restored()
    driver.handle(Submitted(job=job))
    assert driver.told_of("generation_adopted") == []
    assert (job.fenced, driver.state("a")) == (True, "warming")
    driver.register("b", incarnation=2)
    held = m.Held(job="j-1", generation=3, step=7, digest="", where="checkpoint")
    driver.warmed("a", held=(held,))
    driver.warmed("b")
    driver.tick(driver.now + 1.0)
    assert [assign.held_step for assign in driver.told("b", m.Assign)] == [7]


def test_running_generation_is_adopted_and_nobody_is_disturbed(make_desk: Any) -> None:
    job = restored()
    driver = adopted(make_desk, job)
    assert [driver.state(name) for name in "ab"] == ["away", "away"]
    assert "a, b are expected" in driver.told_of("generation_adopted")[0].message
    for name in "ab":
        driver.back(name)
        driver.warmed(name)
    driver.commit(9)
    assert [driver.state(name) for name in "ab"] == ["running", "running"]
    assert (driver.cluster.run.generation, job.state, job.step) == (3, JobState.RUNNING, 9)
    assert driver.told("a", m.Freeze) == driver.told("a", m.Assign) == []
    assert driver.core.explain() == ""


def test_members_have_a_while_to_come_back(make_desk: Any) -> None:
    driver = adopted(make_desk, restored())
    driver.silence(3.0)
    assert driver.state("b") == "away"
    driver.silence(3.25)
    assert driver.state("b") == "lost"


def test_first_generation_that_was_never_announced_is_formed_again(make_desk: Any) -> None:
    job = restored(JobState.FORMING, generation=3, start_generation=0, start_step=0, step=0)
    driver = adopted(make_desk, job)
    for name in "ab":
        driver.register(name)
        driver.warmed(name)
    assert driver.cluster.run.generation == 4
    assert driver.cluster.run.roster == ["a", "b"]


def test_job_that_was_stopping_stops(make_desk: Any) -> None:
    job = restored(JobState.STOPPING, reason="cancelled by the operator")
    driver = adopted(make_desk, job)
    for name in "ab":
        driver.back(name)
        assert [one.stop for one in driver.told(name, m.Freeze)] == [True]
    for name in "ab":
        driver.finished(name, generation=3, step=9)
    assert job.state is JobState.CANCELLED


def test_operator_may_say_that_the_members_are_gone_for_good(make_desk: Any) -> None:
    job = restored()
    driver = adopted(make_desk, job)
    driver.warm_up("c")
    with pytest.raises(RequestRefused, match="does not wait"):
        driver.handle(ResumeRequested(job="j-1"))
    driver.silence(4.0, "c")
    driver.handle(ResumeRequested(job="j-1"))
    driver.tick(driver.now + 5.0)
    assert driver.cluster.run.roster == ["c"]
    assert (job.start_generation, job.start_step, job.steps_lost) == (0, 0, 7)


# --- what an absent member must not leak -------------------------------------------------------


def test_nothing_is_asked_of_a_member_that_nobody_has_heard(make_desk: Any) -> None:
    driver = adopted(make_desk, restored())
    driver.back("a", "frozen")
    driver.froze("a", generation=3, step=8, suspect="b", evidence="silent")
    assert driver.state("b") == "away"
    driver.tick(driver.now + 0.5)
    assert driver.told("a", m.Probe) == driver.told("b", m.Probe) == []
    with pytest.raises(RequestRefused, match="connected: a"):
        driver.handle(KillRequested(name="b", signal="TERM"))
