"""A job ends when what its workers hold is saved, or cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster import saving
from dtd.cluster.events import CancelRequested, ResumeRequested, Submitted, Ticked
from dtd.cluster.records import Job
from dtd.cluster.registration import ADOPTION_PATIENCE
from dtd.cluster.save_orders import FIRST_RETRY_S, MOST_CONTRADICTED, WRITING_S
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m

FULL = "No space left on device"


def cancel(desk: Any) -> None:
    desk.handle(CancelRequested(job="j-1"))


def cannot_write(desk: Any, name: str, why: str = FULL) -> None:
    desk.say(name, m.Notice(job="j-1", event="checkpoint_failed", message=why))


def asked(desk: Any, name: str) -> list[tuple[int, int]]:
    return [(one.generation, one.step) for one in desk.told(name, m.Save)]


def finished_unsaved(desk: Any, *names: str, copies: int = 1) -> Job:
    """All have done the last step, and no disk has taken it."""
    job: Job = desk.submit(copies=copies)
    number = desk.run_generation(*names)
    for name in names:
        desk.finished(name, generation=number, saved=False)
    return job


# --- the end of all steps ----------------------------------------------------------------------


def test_job_is_not_done_before_its_final_state_is_saved(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b")
    assert (job.state, job.verdict, desk.ended) == (JobState.SAVING, "done", [])
    assert asked(desk, "a") == [(1, 10)]
    assert asked(desk, "b") == []
    assert desk.core.explain() == "saving step 10: a writes it"
    assert desk.told_of("job_saving")[0].step == 10
    desk.saved_checkpoint("a", generation=1, step=10)
    assert (job.state, job.reason) == (JobState.DONE, "")
    assert job.result["replica_digests"] == {"a": "x", "b": "x"}
    assert job.result["world_size"] == 2


def test_another_worker_takes_over_at_once_and_who_could_not_is_asked_again(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b")
    cannot_write(desk, "a")
    assert asked(desk, "b") == [(1, 10)]
    cannot_write(desk, "b", "Read-only file system")
    assert desk.core.explain() == (
        f"step 10 is not saved: a cannot write: {FULL}; b cannot write: Read-only file system;"
        " tried again every few seconds"
    )
    desk.tick(desk.now + FIRST_RETRY_S)
    assert asked(desk, "a") == [(1, 10)] * 2
    assert desk.core.explain().endswith("; a writes it")
    desk.tick(desk.now + 3600.0)
    assert job.state is JobState.SAVING
    assert len(asked(desk, "a")) < 200
    desk.saved_checkpoint("b", generation=1, step=10)
    assert job.state is JobState.DONE


def test_a_disk_that_hangs_does_not_keep_others_from_writing(desk: Any) -> None:
    finished_unsaved(desk, "a", "b")
    desk.tick(desk.now + WRITING_S - 1.0)
    assert asked(desk, "b") == []
    desk.tick(desk.now + 1.5)
    assert asked(desk, "b") == [(1, 10)]


def test_one_that_does_not_answer_is_named_with_the_way_out(desk: Any) -> None:
    finished_unsaved(desk, "a")
    assert desk.core.explain() == "saving step 10: a writes it"
    desk.tick(desk.now + 61.0)
    assert desk.core.explain() == (
        "saving step 10: a writes it, and a has not answered for 61 s: `dtdctl kill-worker a` gives"
        " it up"
    )


def test_as_many_copies_as_asked_for_are_waited_for(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b", "c", copies=2)
    assert [asked(desk, name) for name in "abc"] == [[(1, 10)], [(1, 10)], []]
    desk.saved_checkpoint("a", generation=1, step=10)
    cannot_write(desk, "b")
    assert asked(desk, "c") == [(1, 10)]
    assert job.state is JobState.SAVING
    desk.saved_checkpoint("c", generation=1, step=10)
    assert job.state is JobState.DONE
    assert desk.told_of("copies_missing") == []


def test_fewer_workers_than_copies_are_told_and_enough(desk: Any) -> None:
    job = finished_unsaved(desk, "a", copies=2)
    desk.saved_checkpoint("a", generation=1, step=10)
    assert job.state is JobState.DONE
    (told,) = desk.told_of("copies_missing")
    assert told.message == ("the last state of job j-1 is on a alone; checkpoint.copies asks for 2")


def test_one_whose_disk_is_full_dies_and_the_other_copy_is_enough(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b", copies=2)
    desk.saved_checkpoint("a", generation=1, step=10)
    cannot_write(desk, "b")
    assert job.state is JobState.SAVING
    desk.lost("b")
    assert job.state is JobState.DONE
    assert desk.told_of("copies_missing")[0].message.endswith(f"2: b cannot write: {FULL}")


def test_if_all_who_remember_die_the_end_is_trained_again(desk: Any) -> None:
    job = finished_unsaved(desk, "a")
    desk.register("idle")
    assert desk.told("idle", m.Prepare) == []
    desk.lost("a")
    assert (job.state, job.verdict) == (JobState.WAITING, "")
    assert desk.told("idle", m.Prepare)
    desk.warmed("idle")
    desk.tick(desk.now + 4 * 3600.0)
    assert desk.cluster.run.start_step == 0
    assert job.steps_lost == 10


def test_an_older_checkpoint_is_not_the_result(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.commit(5)
    for name in "ab":
        desk.saved_checkpoint(name, generation=number, step=5)
    desk.commit(10)
    for name in "ab":
        desk.finished(name, generation=number, saved=False)
    for name in "ab":
        desk.lost(name)
    assert desk.ended == []
    assert desk.cluster.job.state is JobState.WAITING


def test_one_that_returns_with_the_state_is_waited_for(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b")
    desk.lost("b")
    desk.back("b", "finished", generation=1, roster_id=desk.cluster.run.roster_id)
    desk.lost("a")
    assert job.state is JobState.SAVING
    assert desk.core.explain() == "waiting for a, which may hold a state that is not saved"
    desk.say(
        "b",
        m.Finished(job="j-1", generation=1, held_generation=1, step=10, digest="x", result={}),
    )
    assert asked(desk, "b") == [(1, 10)]
    desk.saved_checkpoint("b", generation=1, step=10)
    assert job.state is JobState.DONE


def test_cancel_ends_a_job_that_cannot_be_saved(desk: Any) -> None:
    job = finished_unsaved(desk, "a")
    cannot_write(desk, "a")
    cancel(desk)
    assert job.state is JobState.CANCELLED
    assert job.reason == "cancelled by the operator before its final state was saved"
    (told,) = desk.told_of("state_discarded")
    assert FULL in told.message
    assert told.details == {"steps_lost": 10}
    assert desk.told("a", m.Release)[-1].state == "cancelled"


def test_resume_has_nothing_to_say_to_a_job_that_is_saved(desk: Any) -> None:
    finished_unsaved(desk, "a")
    with pytest.raises(RequestRefused, match="does not wait for any worker"):
        desk.handle(ResumeRequested(job="j-1"))


def test_a_checkpoint_that_fails_while_training_goes_on_is_only_told(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a")
    cannot_write(desk, "a")
    assert job.state is JobState.RUNNING
    assert desk.told_of("checkpoint_failed")[0].message == f"a: {FULL}"


# --- cancelled and failed ----------------------------------------------------------------------


def waiting(desk: Any) -> Job:
    """One of two is left, with five steps, and may not go on alone."""
    job: Job = desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    desk.lost("b")
    desk.froze("a", generation=number, step=5)
    assert job.state is JobState.WAITING
    return job


def test_cancel_while_waiting_saves_what_is_held(desk: Any) -> None:
    job = waiting(desk)
    cancel(desk)
    assert (job.state, asked(desk, "a")) == (JobState.SAVING, [(1, 5)])
    desk.saved_checkpoint("a", generation=1, step=5)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by the operator")
    assert desk.told_of("state_discarded") == []


def test_what_a_checkpoint_holds_already_is_not_saved_again(desk: Any) -> None:
    job = waiting(desk)
    desk.saved_checkpoint("a", generation=1, step=5)
    cancel(desk)
    assert (job.state, asked(desk, "a")) == (JobState.CANCELLED, [])


def test_a_step_that_all_who_are_heard_hold_prepared_is_saved(desk: Any) -> None:
    """Somebody who is gone may have committed and told of it."""
    desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    desk.lost("b")
    desk.froze("a", generation=number, step=5, prepared=(number, 6))
    cancel(desk)
    assert asked(desk, "a") == [(1, 6)]


@pytest.mark.parametrize("times", [1, 40])
def test_a_cancelled_job_does_not_wait_for_a_disk_for_ever(desk: Any, times: int) -> None:
    job = waiting(desk)
    cancel(desk)
    begun = desk.now
    while desk.now < begun + saving.GIVE_UP_S - 1.0:
        cannot_write(desk, "a")
        desk.tick(desk.now + 40.0 / times / 2)
    cannot_write(desk, "a")
    desk.tick(begun + saving.GIVE_UP_S + 31.0)
    assert job.state is JobState.CANCELLED
    assert "the newest checkpoint is of step 0" in desk.told_of("state_discarded")[0].message


def test_a_disk_that_only_hangs_is_given_up_later(desk: Any) -> None:
    job = waiting(desk)
    cancel(desk)
    desk.tick(desk.now + saving.GIVE_UP_S + 5.0)
    assert job.state is JobState.SAVING
    desk.tick(desk.now + saving.MOST_S)
    assert job.state is JobState.CANCELLED
    assert "no worker has written it in time" in desk.told_of("state_discarded")[0].message


def test_time_in_which_the_coordinator_slept_is_not_taken_from_who_writes(desk: Any) -> None:
    """What it has written may have been told meanwhile, and lies unread."""
    job = waiting(desk)
    cancel(desk)
    desk.tick(desk.now + 5.0)
    desk.now += 2 * saving.MOST_S
    desk.handle(Ticked())
    assert job.state is JobState.SAVING
    desk.saved_checkpoint("a", generation=1, step=5)
    assert job.state is JobState.CANCELLED
    assert desk.told_of("state_discarded") == []


def test_with_nobody_connected_the_wait_for_a_state_ends_all_the_same(make_desk: Any) -> None:
    """Nothing happens in between, so the time until the deadline is no sleep."""
    old = make_desk()
    job = old.submit()
    old.run_generation("a", "b")
    desk = make_desk(last_generation=job.generation)
    desk.now = 100.0
    desk.handle(Submitted(job=replace(job, state=JobState.STOPPING, announced=False)))
    assert desk.cluster.saving is not None
    while desk.cluster.job is not None:
        deadline = desk.core.next_deadline(desk.now)
        assert deadline is not None
        desk.now = deadline
        desk.handle(Ticked())
    assert desk.now == 100.0 + ADOPTION_PATIENCE * desk.cluster.heartbeat_timeout_s
    assert [one.state for one in desk.ended] == [JobState.CANCELLED]


def test_a_second_cancel_does_not_wait(desk: Any) -> None:
    job = waiting(desk)
    cancel(desk)
    cancel(desk)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by the operator")


def test_failure_saves_what_the_members_hold(desk: Any) -> None:
    job: Job = desk.submit()
    number = desk.run_generation("a", "b", "c")
    for name in "cb":  # the same on two of them
        desk.say(name, m.Failed(job="j-1", reason="boom", traceback="line 1"))
    assert (job.state, job.verdict) == (JobState.STOPPING, "failed")
    cancel(desk)  # it is ending
    desk.froze("b", generation=number, step=5)
    desk.froze("a", generation=number, step=5)
    assert (job.state, asked(desk, "a")) == (JobState.SAVING, [(1, 5)])
    desk.saved_checkpoint("a", generation=number, step=5)
    assert (job.state, job.reason) == (JobState.FAILED, "b: boom (on c, too)")


def test_failure_of_the_only_worker_saves_what_it_holds(desk: Any) -> None:
    job: Job = desk.submit()
    number = desk.run_generation("a")
    desk.say("a", m.Failed(job="j-1", reason="boom", traceback=""))
    desk.froze("a", generation=number, step=5)
    assert asked(desk, "a") == [(1, 5)]
    desk.saved_checkpoint("a", generation=number, step=5)
    assert job.state is JobState.FAILED
    assert "traceback" not in job.result


def test_a_failed_worker_that_forgets_its_state_keeps_nobody_waiting(desk: Any) -> None:
    job: Job = desk.submit()
    number = desk.run_generation("a")
    desk.say("a", m.Failed(job="j-1", reason="boom", traceback=""))
    desk.froze("a", generation=number, step=0, held_generation=0, where="none")
    assert job.state is JobState.FAILED


def test_a_newer_state_that_comes_back_is_saved_instead(desk: Any) -> None:
    job: Job = desk.submit(min_workers=3)
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.lost("b")
    roster_id = desk.cluster.run.roster_id
    desk.froze("a", generation=number, step=5)
    desk.cluster.workers[
        "a"
    ].holdings.frozen_in = 0  # as if it had it from before the last generation
    desk.back("b", "frozen", generation=number, roster_id=roster_id)
    cancel(desk)
    assert asked(desk, "a") == [(1, 5)]
    desk.froze("b", generation=number, step=6)
    assert asked(desk, "b") == [(1, 6)]
    desk.saved_checkpoint("b", generation=number, step=6)
    assert job.state is JobState.CANCELLED


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
def test_those_who_hold_the_state_may_come_back(make_desk: Any, verdict: str) -> None:
    desk = make_desk(last_generation=3)
    job = restored(verdict)
    desk.handle(Submitted(job=job))
    assert job.state is JobState.SAVING
    assert desk.core.explain() == "waiting for a, which may hold a state that is not saved"
    desk.back("a", "frozen", generation=3, roster_id=33)
    desk.froze("a", generation=3, step=9, held_generation=3)
    assert asked(desk, "a") == [(3, 9)]
    desk.saved_checkpoint("a", generation=3, step=9)
    assert (job.state.value, job.reason) == (verdict, "why")


def test_if_nobody_comes_back_the_job_ends(make_desk: Any) -> None:
    desk = make_desk(last_generation=3)
    job = restored("cancelled")
    desk.handle(Submitted(job=job))
    assert desk.core.next_deadline(desk.now) is not None
    desk.tick(60.0)
    assert job.state is JobState.CANCELLED


def test_a_job_that_was_to_be_done_goes_on_to_its_end(make_desk: Any) -> None:
    desk = make_desk(last_generation=3)
    job = restored("done")
    desk.handle(Submitted(job=job))
    assert (job.state, job.verdict) == (JobState.WAITING, "")
    desk.back("a", "finished", generation=3, roster_id=33)
    desk.say(
        "a",
        m.Finished(job="j-1", generation=3, held_generation=3, step=10, digest="x", result={}),
    )
    assert desk.told("a", m.Assign)[-1].held_step == 10


def failed_before_the_coordinator_started(desk: Any) -> Job:
    """A job that had failed; its only member comes back and has not left its generation."""
    elastic = {"min_workers": 1, "max_workers": 64, "settle_s": 0.0, "warmup_timeout_s": 120.0}
    job = Job(
        id="j-1",
        spec={"job": {"name": "j"}, "elastic": elastic},
        state=JobState.STOPPING,
        verdict="failed",
        generation=1,
        roster=("a",),
        roster_id=5,
        step=7,
    )
    desk.handle(Submitted(job=job))
    desk.register("a", job="j-1", phase="running", generation=1, roster_id=5)
    assert job.state is JobState.SAVING
    return job


def test_who_comes_back_and_hangs_does_not_keep_a_failed_job(desk: Any) -> None:
    job = failed_before_the_coordinator_started(desk)
    desk.silence(desk.now + 20.0, "a", job="j-1", step=7, stalled_s=900.0, patience_s=5.0)
    assert [one.state for one in desk.told("a", m.Release)] == ["evicted"]
    desk.silence(desk.now + 20.0)
    assert job.state is JobState.FAILED
    assert desk.told_of("state_discarded")


def test_who_comes_back_and_computes_has_its_time_to_say_what_it_holds(desk: Any) -> None:
    job = failed_before_the_coordinator_started(desk)
    figures: dict[str, Any] = {"job": "j-1", "step": 7, "stalled_s": 2.0, "patience_s": 1e6}
    desk.silence(desk.now + saving.MOST_S - 60.0, "a", **figures)
    assert job.state is JobState.SAVING
    desk.silence(desk.now + 61.0, "a", **figures)
    assert job.state is JobState.FAILED


def test_who_has_written_another_state_is_not_waited_for(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b")
    for name in ("a", "b"):
        desk.say(name, m.Agreed(job="j-1", generation=1, step=10, digest="x"))
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
    assert desk.core.awaits("a", told)
    desk.say("a", told)
    assert not desk.core.awaits("a", told)
    assert asked(desk, "b") == [(1, 10)]
    assert "what it has written is not what the ranks hold" in desk.core.explain()
    assert job.state is JobState.SAVING


def test_one_whose_memory_is_not_the_state_is_not_asked_for_ever(desk: Any) -> None:
    """It restarts, and the job repeats the steps since its newest checkpoint; here, all of them."""
    job = finished_unsaved(desk, "a")
    desk.say("a", m.Agreed(job="j-1", generation=1, step=10, digest="x"))
    written = {"job": "j-1", "generation": 1, "size_bytes": 1, "directory": "", "metrics": {}}
    for times in range(1, MOST_CONTRADICTED + 1):
        assert asked(desk, "a") == [(1, 10)] * times
        desk.say("a", m.CheckpointSaved(step=10, digest="y", kept=(), **written))
        desk.silence(desk.now + 5.0, "a")
    assert len(asked(desk, "a")) == MOST_CONTRADICTED
    assert desk.told("a", m.Release)[-1].reason.startswith("the state in its memory is not the one")
    assert job.state is JobState.WAITING
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert (job.state, job.start_step, job.steps_lost) == (JobState.FORMING, 0, 10)


def test_who_has_died_meanwhile_is_not_put_out_for_its_memory(desk: Any) -> None:
    job = finished_unsaved(desk, "a", "b")
    for name in ("a", "b"):
        desk.say(name, m.Agreed(job="j-1", generation=1, step=10, digest="x"))
    desk.lost("b")
    written = {"job": "j-1", "generation": 1, "size_bytes": 1, "directory": "", "metrics": {}}
    for _ in range(MOST_CONTRADICTED):
        desk.say("b", m.CheckpointSaved(step=10, digest="y", kept=(), **written))
    assert desk.told("b", m.Release) == []
    assert job.state is JobState.SAVING


def test_what_answers_save_is_awaited(desk: Any) -> None:
    failed = m.Notice(job="j-1", event="checkpoint_failed", message=FULL)
    assert not desk.core.awaits("a", failed)
    finished_unsaved(desk, "a", "b")
    assert desk.core.awaits("a", failed)
    assert not desk.core.awaits("a", m.Notice(job="j-1", event="row_retried", message="again"))
    assert not desk.core.awaits("b", failed)
    cannot_write(desk, "a")
    assert not desk.core.awaits("a", failed)


def test_what_is_lost_with_those_who_are_waited_for_is_told_as_the_job_is_cancelled(
    desk: Any,
) -> None:
    """There is nothing to write: who is present has an older state, which is on its disk."""
    desk.submit()
    desk.run_generation("a", "b")
    desk.commit(10)
    desk.saved_checkpoint("b", generation=1, step=5)
    desk.lost("a")
    desk.lost("b")
    desk.register("b", incarnation=2)
    held = m.Held(job="j-1", generation=1, step=5, digest="", where="checkpoint")
    desk.warmed("b", held=(held,))
    cancel(desk)
    assert desk.ended[0].state is JobState.CANCELLED
    (told,) = desk.told_of("state_discarded")
    assert told.details == {"steps_lost": 5}
    assert "step 10 of job j-1 is given up, not saved: no present worker holds it" in told.message
