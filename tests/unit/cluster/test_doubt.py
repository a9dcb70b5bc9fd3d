"""A store that has gone back does not know which generation was the newest."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, ResumeRequested, Submitted
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m

ELASTIC = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}


def restored(make_desk: Any, **more: Any) -> Any:
    """A coordinator whose store has the job as it was backed up: generation 1 of a and b."""
    driver = make_desk(last_generation=100)
    values: dict[str, Any] = {
        "generation": 1,
        "roster": ("a", "b"),
        "roster_id": 11,
        "announced": True,
        "fenced": False,
        "in_doubt": True,
        "forgetful": True,
        **more,
    }
    spec = {"job": {"name": "j"}, "elastic": ELASTIC}
    driver.handle(Submitted(job=Job(id="j-1", spec=spec, **values)))
    return driver


def member(name: str) -> m.Member:
    return m.Member(name=name, incarnation=1, host="h", port=1, holds=True)


def comes(driver: Any, name: str, generation: int, *roster: str, phase: str = "running") -> None:
    driver.register(
        name,
        job="j-1",
        generation=generation,
        roster_id=10 + generation,
        phase=phase,
        roster=tuple(map(member, roster)),
        held_generation=1,
        held_step=4,
    )


def test_nothing_is_taken_up_and_nothing_formed_until_it_is_certain(make_desk: Any) -> None:
    driver = restored(make_desk)
    assert driver.cluster.run.roster == []
    driver.warm_up("a", "b")
    driver.silence(90.0, "a", "b")
    assert driver.told("a", m.Assign) == []
    explained = driver.core.explain()
    assert (
        "waiting for a, b to say that generation 1, the newest known, still runs or has"
        in explained
    )
    assert "`dtdctl resume j-1` if nobody else trains it" in explained


def test_the_highest_generation_that_is_reported_counts_and_trains_on(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    assert (driver.cluster.job.roster, driver.cluster.job.start_step) == (("a", "c"), 4)
    assert driver.cluster.job.step == 4  # or the job might end as of fewer steps than it has
    assert driver.told("a", m.Freeze) == []
    driver.silence(20.0, "a")
    assert "waiting for c to say that generation 3" in driver.core.explain()
    comes(driver, "b", 1, "a", "b")  # of an older one
    assert driver.cluster.job.generation == 3
    comes(driver, "c", 3, "a", "c", phase="forming")
    assert all(driver.told(name, m.Freeze) for name in "abc")
    for name in "ac":
        driver.froze(name, generation=3, step=9, held_generation=3)
    driver.froze("b", generation=1, step=4, held_generation=1)
    (assign,) = driver.told("a", m.Assign)
    assert (assign.held_generation, assign.held_step) == (3, 9)
    assert assign.generation == 101
    assert not driver.cluster.job.in_doubt


def test_one_that_had_left_proves_nothing_and_the_operator_decides(make_desk: Any) -> None:
    """A later generation may have been formed without it, and may run on out of our hearing."""
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    comes(driver, "c", 3, "a", "c", phase="frozen")
    driver.froze("c", generation=3, step=9, held_generation=3)
    driver.silence(90.0, "a", "c")
    assert driver.told("a", m.Freeze) == driver.told("c", m.Assign) == []
    assert "waiting for c to say" in driver.core.explain()
    driver.handle(ResumeRequested(job="j-1"))
    driver.froze("a", generation=3, step=9, held_generation=3)
    assert driver.told("a", m.Assign)[0].held_step == 9


def test_one_that_dies_while_it_trains_on_had_not_left_before(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    driver.lost("a")
    comes(driver, "c", 3, "a", "c")
    driver.froze("c", generation=3, step=9, held_generation=3)
    assert driver.told("c", m.Assign)[0].held_step == 9


def test_a_generation_in_which_all_train_goes_on(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    comes(driver, "b", 1, "a", "b")
    comes(driver, "c", 3, "a", "c")
    assert driver.told("a", m.Freeze) == driver.told("c", m.Freeze) == []
    assert driver.told("b", m.Freeze)
    assert [driver.state(name) for name in "abc"] == ["running", "warming", "running"]
    assert (driver.cluster.run.generation, driver.cluster.run.roster) == (3, ["a", "c"])
    driver.commit(7)
    assert driver.cluster.job.step == 7
    assert "c train in it" in driver.told_of("generation_adopted")[0].message
    driver.lost("c")
    driver.froze("a", generation=3, step=8)
    driver.froze("b", generation=1, step=4, held_generation=1)
    (assign,) = driver.told("a", m.Assign)
    assert (assign.generation, assign.held_step) == (101, 8)


def test_a_state_that_a_forgotten_generation_has_left_behind_is_no_lie(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a")
    comes(driver, "b", 2, "a", "b")
    driver.froze("b", generation=2, step=9, held_generation=2)
    assert driver.state("b") == "ready"


def test_checkpoints_of_generations_that_nobody_spoke_of_are_left_behind(make_desk: Any) -> None:
    """The operator has ended the doubt before their holder came."""
    driver = restored(make_desk)
    driver.warm_up("a")
    driver.handle(ResumeRequested(job="j-1"))
    number = driver.told("a", m.Assign)[-1].generation
    assert driver.cluster.job.branches == ((0, 0, number),)
    driver.all_run("a")
    held = m.Held(job="j-1", generation=3, step=8, digest="x", where="checkpoint")
    driver.register("b")
    driver.warmed("b", held=(held,))
    assert driver.told_of("report_contradicted") == []


def test_a_job_ends_if_all_have_finished_it(make_desk: Any) -> None:
    """Whether before they came or after; a stop of which the store knows nothing counts."""
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c", phase="finished")
    driver.finished("a", generation=3, step=9, saved=False, stopped=True)
    comes(driver, "c", 3, "a", "c")
    assert "still runs or has finished" in driver.core.explain()
    driver.finished("c", generation=3, step=9, stopped=True)
    assert "a, c have finished it" in driver.told_of("generation_adopted")[0].message
    assert driver.told("c", m.Freeze)[-1].at_boundary
    for name in "ac":
        driver.finished(name, generation=3, step=9, stopped=True)
    job = driver.ended[-1]
    assert (job.state, job.step) == (JobState.CANCELLED, 9)


def test_a_job_does_not_end_while_one_has_not_finished_it(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c", phase="finished")
    driver.finished("a", generation=3, step=10)
    comes(driver, "c", 3, "a", "c", phase="frozen")
    driver.froze("c", generation=3, step=9, held_generation=3)
    driver.silence(90.0, "a", "c")
    assert driver.told("a", m.Freeze) == driver.told("a", m.Assign) == []
    assert "waiting for a, c to say" in driver.core.explain()


def test_a_checkpoint_may_be_of_a_branch_that_the_store_has_forgotten(make_desk: Any) -> None:
    """Generation 3 began with step 4 of generation 1, and that one may have got further."""
    driver = restored(make_desk)
    comes(driver, "a", 3, "a")
    held = m.Held(job="j-1", generation=1, step=8, digest="x", where="checkpoint")
    driver.register("b")
    driver.warmed("b", held=(held,))
    assert driver.told_of("report_contradicted") == []
    assert driver.cluster.workers["b"].holdings.held == held


def test_a_job_that_is_saved_is_not_taken_up_again(make_desk: Any) -> None:
    """It was cancelled before its members came, and they have finished a newer generation."""
    driver = restored(make_desk)
    driver.handle(CancelRequested(job="j-1"))
    comes(driver, "a", 3, "a", phase="finished")
    driver.finished("a", generation=3, step=9, saved=False)
    assert driver.told_of("generation_adopted") == []
    assert driver.told("a", m.Save)[-1].step == 9


def test_the_number_of_steps_is_known_when_a_job_ends_that_all_have_finished(
    make_desk: Any,
) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", phase="finished")
    for _ in range(2):
        driver.finished("a", generation=3, step=10_000)
    job = driver.ended[-1]
    assert (job.state, job.step, job.total_steps) == (JobState.DONE, 10_000, 10_000)


def test_a_generation_that_was_not_taken_up_is_not_adopted_later(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", phase="forming")
    assert driver.told("a", m.Freeze)
    assert not driver.cluster.job.announced
    driver = restored(make_desk)
    comes(driver, "a", 3, "a")
    assert driver.cluster.job.announced


def test_a_generation_older_than_another_jobs_is_not_taken_up(make_desk: Any) -> None:
    driver = restored(make_desk)
    driver.cluster.run.generation = 4
    comes(driver, "a", 3, "a")
    assert driver.told("a", m.Freeze)


def test_a_job_that_had_not_begun_waits_for_the_operator(make_desk: Any) -> None:
    driver = restored(make_desk, generation=0, roster=(), roster_id=0, announced=False, fenced=True)
    driver.warm_up("a")
    driver.silence(90.0, "a")
    assert driver.core.explain().startswith("waiting: the coordinator's store has gone back")
    driver.handle(ResumeRequested(job="j-1"))
    assert driver.told("a", m.Assign)
    with pytest.raises(RequestRefused, match="does not wait"):
        driver.handle(ResumeRequested(job="j-1"))


def test_a_worker_that_trains_is_called_back_when_the_job_is_cancelled(make_desk: Any) -> None:
    driver = restored(make_desk)
    comes(driver, "a", 3, "a", "c")
    driver.handle(CancelRequested(job="j-1"))
    assert driver.told("a", m.Freeze)
    comes(driver, "c", 3, "a", "c")
    assert driver.told("c", m.Freeze)


def test_a_store_that_went_back_without_a_word_is_found_out(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a")
    driver.froze("a", generation=1, step=2)
    driver.lost("a")
    comes(driver, "a", 5, "a", "b")
    (incident,) = driver.told_of("store_went_back")
    assert "a knows generation 5" in incident.message
    assert (job.in_doubt, job.generation, job.roster) == (True, 5, ("a", "b"))
    driver.silence(90.0, "a")
    comes(driver, "b", 5, "a", "b")
    assert [driver.state(name) for name in "ab"] == ["running", "running"]
    for name in "ab":
        driver.froze(name, generation=5, step=9, held_generation=5)
    assert driver.told("a", m.Assign)[-1].generation == 6


def test_what_is_told_while_a_generation_runs_changes_only_the_next_number(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a")
    comes(driver, "b", 7, "b")
    assert (job.in_doubt, job.generation, driver.cluster.run.highest) == (False, 1, 7)
    assert driver.told("b", m.Freeze)


def test_a_decision_that_is_being_written_is_dropped_when_the_store_went_back(driver: Any) -> None:
    job = driver.submit()
    driver.writes = False
    driver.warm_up("a")
    assert driver.cluster.run.decision is not None
    comes(driver, "b", 5, "b", "c")
    assert (driver.cluster.run.decision, job.roster) == (None, ("b", "c"))
    assert "waiting for c to say" in driver.core.explain()


def on_disk(generation: int) -> tuple[m.Held, ...]:
    return (m.Held(job="j-1", generation=generation, step=6, digest="", where="checkpoint"),)


def test_a_number_that_a_worker_was_given_may_be_named_again_while_another_runs(
    driver: Any,
) -> None:
    driver.submit()
    driver.run_generation("a")
    comes(driver, "b", 7, "b")
    driver.froze("b", generation=7, step=3)
    assert driver.disconnected == []


@pytest.mark.parametrize("last", [2**32 - 1, 2**62])
def test_a_large_number_in_the_store_is_a_number_like_any_other(make_desk: Any, last: int) -> None:
    driver = make_desk(last_generation=last)
    driver.submit()
    driver.warm_up("a")
    (assign,) = driver.told("a", m.Assign)
    assert assign.generation == last + 1
    m.encode_header(assign)
