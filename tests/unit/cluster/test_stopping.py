"""A job that is to end does, however long its step takes."""

from __future__ import annotations

from typing import Any

from dtd.cluster.ending import LEAVE_S
from dtd.cluster.events import CancelRequested, Ticked
from dtd.cluster.jobs import BOUNDARY_S
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m


def cancel(desk: Any) -> None:
    desk.handle(CancelRequested(job="j-1"))


def computing(desk: Any) -> Job:
    """Both members compute, and none comes to a step boundary."""
    job: Job = desk.submit()
    desk.run_generation("a", "b")
    return job


def busy(desk: Any, until: float) -> None:
    """Time passes, and the threads get on all the while."""
    figures = {"job": "j-1", "generation": desk.cluster.run.generation, "step": 5}
    desk.silence(until, "a", "b", stalled_s=2.0, patience_s=1e6, **figures)


def test_a_step_that_does_not_end_is_broken_off_at_last(desk: Any) -> None:
    job = computing(desk)
    cancel(desk)
    busy(desk, desk.now + BOUNDARY_S - 1.0)
    assert [freeze.at_boundary for freeze in desk.told("a", m.Freeze)] == [True]
    busy(desk, desk.now + 2.0)
    assert [freeze.at_boundary for freeze in desk.told("a", m.Freeze)] == [True, False]
    for name in "ab":
        desk.froze(name, generation=1, step=5)
    assert desk.told("a", m.Save)
    desk.saved_checkpoint("a", generation=1, step=5)
    assert job.state is JobState.CANCELLED


def test_time_in_which_the_coordinator_slept_is_not_taken_from_a_step(desk: Any) -> None:
    computing(desk)
    cancel(desk)
    busy(desk, desk.now + 1.0)
    desk.now += 2 * BOUNDARY_S
    desk.handle(Ticked())
    assert [freeze.at_boundary for freeze in desk.told("a", m.Freeze)] == [True]


def test_a_second_cancel_breaks_it_off_at_once_and_who_stays_is_put_out(desk: Any) -> None:
    job = computing(desk)
    cancel(desk)
    cancel(desk)
    assert [freeze.at_boundary for freeze in desk.told("a", m.Freeze)] == [True, False]
    desk.froze("b", generation=1, step=5)
    busy(desk, desk.now + LEAVE_S + 1.0)
    assert [release.state for release in desk.told("a", m.Release)] == ["evicted"]
    assert desk.told("b", m.Save)
    desk.saved_checkpoint("b", generation=1, step=5)
    assert job.state is JobState.CANCELLED


def test_who_is_told_to_leave_when_the_time_is_nearly_over_still_has_time_to(desk: Any) -> None:
    """Another member is lost just before the job's generation would have been aborted."""
    job = computing(desk)
    cancel(desk)
    busy(desk, desk.now + BOUNDARY_S - 1.0)
    desk.lost("b")
    assert [freeze.at_boundary for freeze in desk.told("a", m.Freeze)] == [True, False]
    busy(desk, desk.now + LEAVE_S - 1.0)
    assert not desk.told("a", m.Release)
    desk.froze("a", generation=1, step=5)
    desk.saved_checkpoint("a", generation=1, step=5)
    assert (job.state, job.checkpoint_step) == (JobState.CANCELLED, 5)


def test_who_does_not_leave_then_is_put_out(desk: Any) -> None:
    job = computing(desk)
    cancel(desk)
    busy(desk, desk.now + BOUNDARY_S - 1.0)
    desk.lost("b")
    busy(desk, desk.now + LEAVE_S + 1.0)
    assert [release.state for release in desk.told("a", m.Release)] == ["evicted"]
    assert job.state is JobState.CANCELLED


def test_a_generation_that_ends_at_a_boundary_already_is_broken_off_too(desk: Any) -> None:
    job = computing(desk)
    desk.say("b", m.Leave(reason="drained"))
    cancel(desk)
    busy(desk, desk.now + BOUNDARY_S + 1.0)
    assert [freeze.at_boundary for freeze in desk.told("a", m.Freeze)][-1] is False
    busy(desk, desk.now + LEAVE_S + 1.0)
    assert job.state is JobState.CANCELLED
    (told,) = desk.told_of("state_discarded")
    assert "no present worker holds it" in told.message


def test_the_next_job_has_its_own_time(desk: Any) -> None:
    computing(desk)
    cancel(desk)
    for name in "ab":
        desk.finished(name, generation=1, step=5)
    desk.submit("j-2")
    assert desk.cluster.ending.stop_by is None


def test_who_has_finished_is_not_put_out_with_who_has_not(desk: Any) -> None:
    job = computing(desk)
    cancel(desk)
    desk.finished("a", generation=1, step=5)
    cancel(desk)
    busy(desk, desk.now + LEAVE_S + 1.0)
    assert [release.state for release in desk.told("b", m.Release)] == ["evicted"]
    assert [release.state for release in desk.told("a", m.Release)] == ["cancelled"]
    assert job.state is JobState.CANCELLED


def test_who_cancels_again_and_again_gives_no_more_time(desk: Any) -> None:
    job = computing(desk)
    cancel(desk)
    for _ in range(4):
        cancel(desk)
        busy(desk, desk.now + LEAVE_S - 1.0)
        if desk.told("a", m.Release):
            break
    assert desk.now < 2 * LEAVE_S
    assert [release.state for release in desk.told("a", m.Release)] == ["evicted"]
    desk.silence(desk.now + 60.0)
    assert job.state is JobState.CANCELLED


def test_a_stop_that_a_restarted_coordinator_has_forgotten_is_a_stop(desk: Any) -> None:
    """Its store could not write the request, and its workers have followed it."""
    job = computing(desk)
    for name in "ab":
        desk.finished(name, generation=1, step=5, stopped=True)
    assert job.state is JobState.CANCELLED
    assert "a request that was lost with the coordinator's store" in job.reason


def test_a_forgotten_stop_is_a_stop_without_the_rank_that_reports_figures(desk: Any) -> None:
    job = computing(desk)
    desk.finished("b", generation=1, step=5, stopped=True)
    desk.silence(desk.now + 60.0, "b")
    assert job.state is JobState.CANCELLED


def test_a_job_that_ends_early_by_itself_is_done(desk: Any) -> None:
    job = computing(desk)
    for name in "ab":
        desk.finished(name, generation=1, step=5, result={"ended_early": "loss is low enough"})
    assert (job.state, job.reason) == (JobState.DONE, "")
