"""A job ends when what its workers hold is saved, or cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, Submitted, Ticked
from dtd.cluster.generation import saving
from dtd.cluster.records import Job
from dtd.cluster.run import FIRST_RETRY_S, MOST_CONTRADICTED, WRITING_S
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

FULL = "No space left on device"


def cancel(driver: Any) -> None:
    driver.handle(CancelRequested(job="j-1"))


def cannot_write(driver: Any, name: str, why: str = FULL) -> None:
    driver.say(name, m.Notice(job="j-1", event="checkpoint_failed", message=why))


def asked(driver: Any, name: str) -> list[tuple[int, int]]:
    return [(one.generation, one.step) for one in driver.told(name, m.Save)]


def finished_unsaved(driver: Any, *names: str, copies: int = 1) -> Job:
    """All have done the last step, and no disk has taken it."""
    job: Job = driver.submit(copies=copies)
    number = driver.run_generation(*names)
    for name in names:
        driver.finished(name, generation=number, saved=False)
    return job


# --- the end of all steps ----------------------------------------------------------------------


def test_job_is_not_done_before_its_final_state_is_saved(driver: Any) -> None:
    job = finished_unsaved(driver, "a", "b")
    assert (job.state, job.verdict, driver.ended) == (JobState.SAVING, "done", [])
    assert asked(driver, "a") == [(1, 10)]
    assert asked(driver, "b") == []
    assert driver.core.explain() == "saving step 10: a writes it"
    assert driver.told_of("job_saving")[0].step == 10
    driver.saved_checkpoint("a", generation=1, step=10)
    assert (job.state, job.reason) == (JobState.DONE, "")
    assert job.result["replica_digests"] == {"a": "x", "b": "x"}
    assert job.result["world_size"] == 2


def test_another_worker_takes_over_at_once_and_who_could_not_is_asked_again(driver: Any) -> None:
    job = finished_unsaved(driver, "a", "b")
    cannot_write(driver, "a")
    assert asked(driver, "b") == [(1, 10)]
    cannot_write(driver, "b", "Read-only file system")
    assert driver.core.explain() == (
        f"step 10 is not saved: a cannot write: {FULL}; b cannot write: Read-only file system;"
        " tried again every few seconds"
    )
    driver.tick(driver.now + FIRST_RETRY_S)
    assert asked(driver, "a") == [(1, 10)] * 2
    assert driver.core.explain().endswith("; a writes it")
    driver.tick(driver.now + 3600.0)
    assert job.state is JobState.SAVING
    assert len(asked(driver, "a")) < 200
    driver.saved_checkpoint("b", generation=1, step=10)
    assert job.state is JobState.DONE


def test_a_disk_that_hangs_does_not_keep_others_from_writing(driver: Any) -> None:
    finished_unsaved(driver, "a", "b")
    driver.tick(driver.now + WRITING_S - 1.0)
    assert asked(driver, "b") == []
    driver.tick(driver.now + 1.5)
    assert asked(driver, "b") == [(1, 10)]


def test_one_that_does_not_answer_is_named_with_the_way_out(driver: Any) -> None:
    finished_unsaved(driver, "a")
    assert driver.core.explain() == "saving step 10: a writes it"
    driver.tick(driver.now + 61.0)
    assert driver.core.explain() == (
        "saving step 10: a writes it, and a has not answered for 61 s: `dtdctl kill-worker a` gives"
        " it up"
    )


def test_fewer_workers_than_copies_are_told_and_enough(driver: Any) -> None:
    job = finished_unsaved(driver, "a", copies=2)
    driver.saved_checkpoint("a", generation=1, step=10)
    assert job.state is JobState.DONE
    (told,) = driver.told_of("copies_missing")
    assert told.message == ("the last state of job j-1 is on a alone; checkpoint.copies asks for 2")


def test_cancel_ends_a_job_that_cannot_be_saved(driver: Any) -> None:
    job = finished_unsaved(driver, "a")
    cannot_write(driver, "a")
    cancel(driver)
    assert job.state is JobState.CANCELLED
    assert job.reason == "cancelled by the operator before its final state was saved"
    (told,) = driver.told_of("state_discarded")
    assert FULL in told.message
    assert told.details == {"steps_lost": 10}
    assert driver.told("a", m.Release)[-1].state == "cancelled"


# --- cancelled and failed ----------------------------------------------------------------------


def waiting(driver: Any) -> Job:
    """One of two is left, with five steps, and may not go on alone."""
    job: Job = driver.submit(min_workers=2)
    number = driver.run_generation("a", "b")
    driver.lost("b")
    driver.froze("a", generation=number, step=5)
    assert job.state is JobState.WAITING
    return job


def test_what_a_checkpoint_holds_already_is_not_saved_again(driver: Any) -> None:
    job = waiting(driver)
    driver.saved_checkpoint("a", generation=1, step=5)
    cancel(driver)
    assert (job.state, asked(driver, "a")) == (JobState.CANCELLED, [])


@pytest.mark.parametrize("times", [1, 40])
def test_a_cancelled_job_does_not_wait_for_a_disk_for_ever(driver: Any, times: int) -> None:
    job = waiting(driver)
    cancel(driver)
    begun = driver.now
    while driver.now < begun + saving.GIVE_UP_S - 1.0:
        cannot_write(driver, "a")
        driver.tick(driver.now + 40.0 / times / 2)
    cannot_write(driver, "a")
    driver.tick(begun + saving.GIVE_UP_S + 31.0)
    assert job.state is JobState.CANCELLED
    assert "the newest checkpoint is of step 0" in driver.told_of("state_discarded")[0].message


def test_time_in_which_the_coordinator_slept_is_not_taken_from_who_writes(driver: Any) -> None:
    """Its report of what it has written may still be unread."""
    job = waiting(driver)
    cancel(driver)
    driver.tick(driver.now + 5.0)
    driver.now += 2 * saving.MOST_S
    driver.handle(Ticked())
    assert job.state is JobState.SAVING
    driver.saved_checkpoint("a", generation=1, step=5)
    assert job.state is JobState.CANCELLED
    assert driver.told_of("state_discarded") == []


def test_a_second_cancel_does_not_wait(driver: Any) -> None:
    job = waiting(driver)
    cancel(driver)
    cancel(driver)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by the operator")


def test_failure_saves_what_the_members_hold(driver: Any) -> None:
    job: Job = driver.submit()
    number = driver.run_generation("a", "b", "c")
    for name in "cb":  # the same on two of them
        driver.say(name, m.Failed(job="j-1", reason="boom", traceback="line 1"))
    assert (job.state, job.verdict) == (JobState.STOPPING, "failed")
    cancel(driver)  # it is ending
    driver.froze("b", generation=number, step=5)
    driver.froze("a", generation=number, step=5)
    assert (job.state, asked(driver, "a")) == (JobState.SAVING, [(1, 5)])
    driver.saved_checkpoint("a", generation=number, step=5)
    assert (job.state, job.reason) == (JobState.FAILED, "b: boom (on c, too)")


# --- the coordinator starts again ----------------------------------------------------------------


def restored(verdict: str, state: JobState = JobState.SAVING) -> Job:
    elastic = {"min_workers": 1, "max_workers": 9, "settle_s": 0.0, "warmup_timeout_s": 9.0}
    return Job(
        id="j-1",
        spec={"job": {"name": "j"}, "elastic": elastic},
        state=state,
        verdict=verdict,
        reason="why",
        generation=3,
        roster=("a",),
        roster_id=33,
        step=10,
        total_steps=10,
        start_generation=3,
        fenced=True,
    )


@pytest.mark.parametrize("verdict", ["cancelled", "failed"])
def test_those_that_hold_the_state_may_come_back(make_desk: Any, verdict: str) -> None:
    driver = make_desk(last_generation=3)
    job = restored(verdict)
    driver.handle(Submitted(job=job))
    assert job.state is JobState.SAVING
    assert driver.core.explain() == "waiting for a, which may hold a state that is not saved"
    driver.back("a", "frozen", generation=3, roster_id=33)
    driver.froze("a", generation=3, step=9, held_generation=3)
    assert asked(driver, "a") == [(3, 9)]
    driver.saved_checkpoint("a", generation=3, step=9)
    assert (job.state.value, job.reason) == (verdict, "why")


def test_a_worker_that_has_written_another_state_is_not_waited_for(driver: Any) -> None:
    job = finished_unsaved(driver, "a", "b")
    for name in ("a", "b"):
        driver.say(name, m.Agreed(job="j-1", generation=1, step=10, digest="x"))
    told = m.CheckpointSaved(
        job="j-1",
        generation=1,
        step=10,
        digest="y",
        size_bytes=1,
        directory="",
        metrics={},
        kept=(),
    )
    driver.say("a", told)
    assert asked(driver, "b") == [(1, 10)]
    assert "what it has written is not what the ranks hold" in driver.core.explain()
    assert job.state is JobState.SAVING


def test_one_whose_memory_is_not_the_state_is_not_asked_for_ever(driver: Any) -> None:
    """It restarts, and the job repeats the steps since its newest checkpoint; here, all of them."""
    job = finished_unsaved(driver, "a")
    driver.say("a", m.Agreed(job="j-1", generation=1, step=10, digest="x"))
    written = {"job": "j-1", "generation": 1, "size_bytes": 1, "directory": "", "metrics": {}}
    for times in range(1, MOST_CONTRADICTED + 1):
        assert asked(driver, "a") == [(1, 10)] * times
        driver.say("a", m.CheckpointSaved(step=10, digest="y", kept=(), **written))
        driver.silence(driver.now + 5.0, "a")
    assert len(asked(driver, "a")) == MOST_CONTRADICTED
    assert driver.told("a", m.Release)[-1].reason.startswith(
        "the state in its memory is not the one"
    )
    assert job.state is JobState.WAITING
    driver.register("a", incarnation=2)
    driver.warmed("a")
    assert (job.state, job.start_step, job.steps_lost) == (JobState.FORMING, 0, 10)


def test_a_worker_that_has_died_meanwhile_is_not_put_out_for_its_memory(driver: Any) -> None:
    job = finished_unsaved(driver, "a", "b")
    for name in ("a", "b"):
        driver.say(name, m.Agreed(job="j-1", generation=1, step=10, digest="x"))
    driver.lost("b")
    written = {"job": "j-1", "generation": 1, "size_bytes": 1, "directory": "", "metrics": {}}
    for _ in range(MOST_CONTRADICTED):
        driver.say("b", m.CheckpointSaved(step=10, digest="y", kept=(), **written))
    assert driver.told("b", m.Release) == []
    assert job.state is JobState.SAVING
