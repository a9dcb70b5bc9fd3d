from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, KillRequested, Ticked
from dtd.cluster.machine import MAX_FRUITLESS_GENERATIONS
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m


def test_without_a_job_it_says_how_to_submit_one(desk: Any) -> None:
    assert "dtdctl submit" in desk.core.explain()


def test_without_workers_it_has_nothing_to_watch(desk: Any) -> None:
    desk.submit()
    assert desk.core.next_deadline(0.0) is None
    assert desk.core.explain() == "0 of at least 1 workers are ready"


def test_deadlines_are_never_in_the_past(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.warm_up("a")
    assert desk.core.next_deadline(desk.now) == 0.25
    for moment in (0.25, 1.9, 2.0, 2.1, 60.0):
        deadline = desk.core.next_deadline(moment)
        assert deadline is not None
        assert deadline > moment


def test_heartbeat_is_answered(desk: Any) -> None:
    desk.register("a")
    desk.say("a", m.Heartbeat(state="idle"))
    assert desk.told("a", m.HeartbeatAck) == [m.HeartbeatAck()]


def test_silent_worker_is_evicted(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.silence(6.0, "b")
    assert [(one.name, "no heartbeat" in one.reason) for one in desk.disconnected] == [("a", True)]
    assert desk.state("a") == "lost"


def test_silence_of_our_own_blames_nobody(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.silence(1.0, "a", "b")
    desk.now = 500.0
    desk.handle(Ticked())
    assert desk.disconnected == []


def test_notice_becomes_an_incident(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.say("a", m.Notice(job="j-1", event="disk_full", message="no space"))
    (incident,) = [one for one in desk.incidents if one.kind == "disk_full"]
    assert (incident.message, incident.worker, incident.job) == ("a: no space", "a", "j-1")


def test_worker_that_is_no_member_cannot_freeze_or_finish(desk: Any) -> None:
    desk.submit(min_workers=2)
    desk.warm_up("a")
    desk.froze("a", generation=1, step=3)
    assert desk.state("a") == "ready"


def test_member_may_say_what_the_membership_does_not_care_for(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    before = desk.state("a")
    desk.say("a", m.JobOutput(job="j-1", rank=0))
    assert desk.state("a") == before


# --- operators -------------------------------------------------------------------------------


def test_signal_is_sent_and_remembered(desk: Any) -> None:
    desk.register("a")
    desk.handle(KillRequested(name="a", signal="STOP"))
    assert desk.told("a", m.Signal) == [m.Signal(signal="STOP")]
    assert "SIGSTOP sent to a (pid 1)" in desk.incidents[-1].message


def test_unknown_worker_is_refused_with_those_who_are_here(desk: Any) -> None:
    with pytest.raises(RequestRefused, match="connected: none"):
        desk.handle(KillRequested(name="b", signal="KILL"))
    desk.register("a")
    desk.register("b")
    desk.lost("b")
    with pytest.raises(RequestRefused, match="connected: a"):
        desk.handle(KillRequested(name="b", signal="KILL"))


# --- jobs, one after another -----------------------------------------------------------------


def test_next_job_begins_when_the_last_one_has_ended(desk: Any) -> None:
    """Even if nothing else happens: all workers are gone, and no deadline would come."""
    desk.submit("j-1")
    second = desk.submit("j-2")
    number = desk.run_generation("a")
    desk.finished("a", generation=number)
    assert desk.cluster.job is second
    assert second.state is not JobState.QUEUED


def test_job_that_never_commits_a_step_fails(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a")
    for _ in range(MAX_FRUITLESS_GENERATIONS):
        assert job.state is JobState.RUNNING
        desk.froze("a", generation=number, step=0)
        desk.tick(desk.now + 10.0)
        number = desk.all_run("a")
    assert job.state is JobState.FAILED
    assert job.reason == "64 generations in a row committed no step"


def test_cancel_of_a_job_whose_generation_ends_takes_effect_when_it_has_ended(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("b")
    desk.handle(CancelRequested(job="j-1"))
    assert desk.ended == []
    desk.froze("a", generation=number, step=5)
    desk.saved_checkpoint("a", generation=number, step=5)
    assert (job.state, job.step) == (JobState.CANCELLED, 5)
