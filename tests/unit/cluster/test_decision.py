"""A generation is announced once it is written down, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, ResumeRequested, SaveJob, Submitted
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m


@pytest.fixture
def held(driver: Any) -> Any:
    """A driver whose store has not answered yet; the decision is in `driver.saved`."""
    driver.submit()
    driver.writes = False
    driver.warm_up("a", "b")
    return driver


def announcing(driver: Any) -> SaveJob:
    return SaveJob(job=driver.cluster.job, announces=driver.cluster.run.generation)


def test_nobody_hears_of_what_is_not_written(held: Any) -> None:
    assert held.saved[-1].generation == 1
    assert held.told("a", m.Assign) == []
    assert held.core.explain() == "writing down generation 1"
    assert held.state("a") == "ready"
    held.written(announcing(held))
    assert [one.generation for one in held.told("a", m.Assign)] == [1]
    assert held.state("a") == "forming"


def test_what_cannot_be_written_is_tried_again(held: Any) -> None:
    held.written(announcing(held), failure="disk full")
    assert held.told("a", m.Assign) == []
    explained = held.core.explain()
    assert explained.startswith("generation 1 cannot be stored, and is not announced")
    assert "disk full; make room on the coordinator's disk" in explained
    tries = len(held.saved)
    held.silence(0.75, "a", "b")
    assert len(held.saved) == tries
    held.silence(1.0, "a", "b")
    assert len(held.saved) == tries + 1
    assert held.core.next_deadline(held.now) is not None
    held.written(announcing(held))
    assert held.told("b", m.Assign)


@pytest.mark.parametrize("failure", ["", "disk full"])
def test_what_does_not_stand_any_more_is_decided_again(held: Any, failure: str) -> None:
    first = announcing(held)
    held.lost("b")
    held.writes = True
    held.written(first, failure=failure)
    held.silence(2.0, "a")
    (assign,) = held.told("a", m.Assign)
    assert assign.generation == 2
    assert [member.name for member in assign.roster] == ["a"]


def test_word_of_another_decision_changes_nothing(held: Any) -> None:
    old = SaveJob(job=held.cluster.job, announces=7)
    held.written(old)
    assert held.told("a", m.Assign) == []
    held.written(announcing(held))
    held.written(announcing(held))
    assert len(held.told("a", m.Assign)) == 1


def test_word_that_comes_after_the_job_changes_nothing(held: Any) -> None:
    decided = announcing(held)
    held.handle(CancelRequested(job="j-1"))
    assert held.cluster.job is None
    held.written(decided)
    assert held.told("a", m.Assign) == []


# --- what happens before the store has answered --------------------------------------------------


@pytest.fixture
def going_on(driver: Any) -> Any:
    """One of two that had done seven steps is left; the store has not answered yet."""
    driver.submit()
    number = driver.run_generation("a", "b")
    for name in "ab":
        driver.beat(name, step=7)
    driver.writes = False
    driver.lost("b")
    driver.froze("a", generation=number, step=7)
    assert driver.cluster.run.decision is not None
    return driver


def record(driver: Any) -> tuple[str, int, bool]:
    job = driver.cluster.job
    return job.state.value, job.generation, job.announced


def test_a_job_that_is_cancelled_meanwhile_does_not_train_on(going_on: Any) -> None:
    decided = announcing(going_on)
    going_on.handle(CancelRequested(job="j-1"))
    assert record(going_on) == ("saving", 1, False)
    going_on.written(decided)
    assert [one.generation for one in going_on.told("a", m.Assign)] == [1]
    assert going_on.told("a", m.Save) == [m.Save(job="j-1", generation=1, step=7)]
    going_on.saved_checkpoint("a", generation=1, step=7)
    assert [(job.state.value, job.step) for job in going_on.ended] == [("cancelled", 7)]


def test_what_is_stored_of_a_job_cancelled_meanwhile_names_no_new_generation(going_on: Any) -> None:
    stored: list[tuple[int, bool]] = []
    handle = going_on.core.handle

    def watch(event: Any, now: float) -> list[Any]:
        effects = handle(event, now)
        saved = [one.job for one in effects if isinstance(one, SaveJob)]
        stored.extend((job.generation, job.announced) for job in saved)
        return list(effects)

    going_on.core.handle = watch
    going_on.handle(CancelRequested(job="j-1"))
    assert set(stored) == {(1, False)}


def test_a_job_that_fails_meanwhile_does_not_train_on(going_on: Any) -> None:
    decided = announcing(going_on)
    going_on.register("c")
    for _ in range(8):
        going_on.say("a", m.Failed(job="j-1", reason="boom", traceback="t", step=7))
        going_on.say("c", m.Failed(job="j-1", reason="boom", traceback="t", step=0))
    going_on.written(decided)
    assert [one.generation for one in going_on.told("a", m.Assign)] == [1]


@pytest.mark.parametrize(("verdict", "state"), [("cancelled", "stopping"), ("done", "running")])
def test_a_job_stored_as_saving_with_a_generation_is_taken_up(
    driver: Any, verdict: str, state: str
) -> None:
    """It may run out there, announced after the job was to end."""
    limits = {"min_workers": 1, "max_workers": 2, "settle_s": 0.0, "warmup_timeout_s": 120.0}
    job = Job(
        id="j-1",
        spec={"job": {"name": "j"}, "elastic": limits},
        state=JobState.SAVING,
        verdict=verdict,
        reason="cancelled by the operator",
        generation=2,
        roster=("a",),
        roster_id=5,
        announced=True,
        fenced=False,
        step=7,
    )
    driver.handle(Submitted(job=job))
    assert job.state.value == state
    driver.back("a")
    assert [one.stop for one in driver.told("a", m.Freeze)] == [True] * (state == "stopping")
    driver.handle(CancelRequested(job="j-1"))
    assert driver.core.explain()
    driver.froze("a", generation=2, step=9)
    assert driver.told("a", m.Save) == [m.Save(job="j-1", generation=2, step=9)]
    driver.saved_checkpoint("a", generation=2, step=9)
    assert [one.state.value for one in driver.ended] == ["cancelled"]


@pytest.fixture
def falling_back(driver: Any) -> Any:
    """Those who had done 3000 steps are gone; the fall-back to step 0 is being written down."""
    driver.submit()
    number = driver.run_generation("a", "b")
    for name in "ab":
        driver.beat(name, step=3000)
    driver.saved_checkpoint("a", generation=number, step=2000)
    driver.lost("b")
    driver.lost("a", farewell=False)
    driver.register("c")
    driver.warmed("c")
    driver.writes = False
    driver.silence(driver.now + 3.0, "c")
    driver.handle(ResumeRequested(job="j-1"))
    assert (driver.cluster.run.decision is not None, number) == (True, 1)
    return driver


@pytest.mark.parametrize("failure", ["", "disk full"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_holder_of_newer_state_that_returns_meanwhile_is_waited_for(
    falling_back: Any, frozen: bool, failure: str
) -> None:
    driver = falling_back
    decided = announcing(driver)
    driver.register("a", job="j-1", phase="running", generation=1)
    if frozen:
        driver.froze("a", generation=1, step=3000, held_generation=1)
    driver.written(decided, failure=failure)
    driver.silence(driver.now + 1.25, "a", "c")
    assert driver.told("c", m.Assign) == []
    driver.writes = True
    if not frozen:
        driver.froze("a", generation=1, step=3000, held_generation=1)
    elif driver.cluster.run.decision is not None:
        driver.written(announcing(driver))
    (assign,) = driver.told("c", m.Assign)
    assert (assign.generation, assign.held_step) == (3, 3000)
    assert driver.cluster.job.steps_lost == 0
    assert driver.told_of("steps_lost") == driver.told_of("branch_left") == []


def test_a_step_that_a_returned_member_may_have_committed_counts(driver: Any) -> None:
    """As if nothing had been decided: what was, was about a generation nobody has heard of."""
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.lost("b")
    driver.lost("a", farewell=False)
    driver.register("c")
    held = m.Held(job="j-1", generation=number, step=7, digest="", where="checkpoint")
    driver.warmed("c", held=(held,))
    driver.silence(driver.now + 3.0, "c")
    driver.writes = False
    driver.handle(ResumeRequested(job="j-1"))
    decided = announcing(driver)
    driver.register("a", job="j-1", phase="running", generation=number)
    driver.froze("a", generation=number, step=7, prepared=(number, 8), held_generation=number)
    driver.writes = True
    driver.written(decided)
    assert driver.told("c", m.Assign)[-1].held_step == 8


def test_what_is_being_written_down_cannot_be_resumed(going_on: Any) -> None:
    """Else it would be taken for stopped before it has begun, and run beside the next one."""
    with pytest.raises(RequestRefused, match="does not wait for any worker"):
        going_on.handle(ResumeRequested(job="j-1"))
    going_on.written(announcing(going_on))
    assert not going_on.cluster.job.fenced
    going_on.all_run("a")
    going_on.beat("a", step=20)
    going_on.lost("a", farewell=False)
    going_on.register("z")
    going_on.warmed("z")
    going_on.silence(going_on.now + 100.0, "z")
    assert going_on.told("z", m.Assign) == []
    assert "generation 2 may still run there" in going_on.core.explain()


def test_a_worker_that_stops_before_it_has_heard_of_it_does_not_stop_it(going_on: Any) -> None:
    """A member of the last generation that returns, and fails there, was not in this one."""
    going_on.register("b", incarnation=2, job="j-1", phase="running", generation=1)
    going_on.say("b", m.Failed(job="j-1", reason="boom", traceback="t", step=7))
    assert not going_on.cluster.job.fenced
    going_on.written(announcing(going_on))
    assert [one.generation for one in going_on.told("a", m.Assign)] == [1, 2]
    assert not going_on.cluster.job.fenced
