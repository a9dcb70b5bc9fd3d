from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, KillRequested, Ticked
from dtd.cluster.machine import MAX_FRUITLESS_GENERATIONS
from dtd.cluster.transitions import JobState
from dtd.errors import RequestRefused
from dtd.wire import messages as m


def test_without_a_job_it_says_how_to_submit_one(driver: Any) -> None:
    assert "dtdctl submit" in driver.core.explain()


def test_without_workers_it_has_nothing_to_watch(driver: Any) -> None:
    driver.submit()
    assert driver.core.next_deadline(0.0) is None
    assert driver.core.explain() == "0 of at least 1 workers are ready"


def test_deadlines_are_never_in_the_past(driver: Any) -> None:
    driver.submit(settle_s=2.0)
    driver.warm_up("a")
    assert driver.core.next_deadline(driver.now) == 0.25
    for moment in (0.25, 1.9, 2.0, 2.1, 60.0):
        deadline = driver.core.next_deadline(moment)
        assert deadline is not None
        assert deadline > moment


def test_heartbeat_is_answered(driver: Any) -> None:
    driver.register("a")
    driver.say("a", m.Heartbeat(state="idle"))
    assert driver.told("a", m.HeartbeatAck) == [m.HeartbeatAck()]


def test_silent_worker_is_evicted(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(6.0, "b")
    assert [(one.name, "no heartbeat" in one.reason) for one in driver.disconnected] == [
        ("a", True)
    ]
    assert driver.state("a") == "lost"


def test_silence_of_our_own_blames_nobody(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(1.0, "a", "b")
    driver.now = 500.0
    driver.handle(Ticked())
    assert driver.disconnected == []


def test_notice_becomes_an_incident(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.say("a", m.Notice(job="j-1", event="disk_full", message="no space"))
    (incident,) = [one for one in driver.incidents if one.kind == "disk_full"]
    assert (incident.message, incident.worker, incident.job) == ("a: no space", "a", "j-1")


def test_worker_that_is_no_member_cannot_freeze_or_finish(driver: Any) -> None:
    driver.submit(min_workers=2)
    driver.warm_up("a")
    driver.froze("a", generation=1, step=3)
    assert driver.state("a") == "ready"


def test_member_may_say_what_the_membership_does_not_care_for(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    before = driver.state("a")
    driver.say("a", m.JobOutput(job="j-1", rank=0))
    assert driver.state("a") == before


# --- operators -------------------------------------------------------------------------------


def test_signal_is_sent_and_remembered(driver: Any) -> None:
    driver.register("a")
    driver.handle(KillRequested(name="a", signal="STOP"))
    assert driver.told("a", m.Signal) == [m.Signal(signal="STOP")]
    assert "SIGSTOP sent to a (pid 1)" in driver.incidents[-1].message


def test_unknown_worker_is_refused_with_those_that_are_here(driver: Any) -> None:
    with pytest.raises(RequestRefused, match="connected: none"):
        driver.handle(KillRequested(name="b", signal="KILL"))
    driver.register("a")
    driver.register("b")
    driver.lost("b")
    with pytest.raises(RequestRefused, match="connected: a"):
        driver.handle(KillRequested(name="b", signal="KILL"))


# --- jobs, one after another -----------------------------------------------------------------


def test_next_job_begins_when_the_last_one_has_ended(driver: Any) -> None:
    """Even if nothing else happens: all workers are gone, and no deadline would come."""
    driver.submit("j-1")
    second = driver.submit("j-2")
    number = driver.run_generation("a")
    driver.finished("a", generation=number)
    assert driver.cluster.job is second
    assert second.state is not JobState.QUEUED


def test_job_that_never_commits_a_step_fails(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    for _ in range(MAX_FRUITLESS_GENERATIONS):
        assert job.state is JobState.RUNNING
        driver.froze("a", generation=number, step=0)
        driver.tick(driver.now + 10.0)
        number = driver.all_run("a")
    assert job.state is JobState.FAILED
    assert job.reason == "64 generations in a row committed no step"


def test_cancel_of_a_job_whose_generation_ends_takes_effect_when_it_has_ended(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.lost("b")
    driver.handle(CancelRequested(job="j-1"))
    assert driver.ended == []
    driver.froze("a", generation=number, step=5)
    driver.saved_checkpoint("a", generation=number, step=5)
    assert (job.state, job.step) == (JobState.CANCELLED, 5)
