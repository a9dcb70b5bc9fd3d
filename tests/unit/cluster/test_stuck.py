"""Members whose training stands still: evicted, or kept with a message to the operator."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, KillRequested
from dtd.cluster.workers.stuck import ALIKE_PATIENCE_S
from dtd.wire import messages as m

# --- a neighbour's word ------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", ["silent", "unreachable"])
def test_neighbours_word_and_missed_beats_evict(driver: Any, evidence: str) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.silence(0.75, "a")
    driver.froze("a", generation=number, step=0, suspect="b", evidence=evidence)
    assert driver.state("b") == "lost"
    assert "silent towards its neighbour" in driver.disconnected[0].reason
    assert driver.cluster.run.roster == ["a"]


def test_process_that_has_ended_is_gone_even_if_its_connection_still_stands(driver: Any) -> None:
    """The kernel closes a dead process's connections one after the other; both neighbours know."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    assert driver.disconnected == []
    driver.froze("c", generation=number, step=0, suspect="b", evidence="ended")
    assert [(one.name, one.reason) for one in driver.disconnected] == [
        ("b", "its process has ended")
    ]
    assert driver.cluster.run.roster == ["a", "c"]


@pytest.mark.parametrize(
    ("evidence", "silent_s"),
    [
        pytest.param("silent", 0.5, id="a word alone"),
        pytest.param("reset", 0.75, id="a reset, of one that answers a little late"),
    ],
)
def test_neighbours_word_without_missed_beats_evicts_nobody(
    driver: Any, evidence: str, silent_s: float
) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.silence(silent_s, "a")
    driver.froze("a", generation=number, step=0, suspect="b", evidence=evidence)
    assert driver.disconnected == []


def test_beats_missed_while_the_coordinator_slept_are_not_missed(driver: Any) -> None:
    """They lie unread in its sockets, behind the neighbour's word."""
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.now = 10.0
    driver.froze("a", generation=number, step=0, suspect="b", evidence="silent")
    assert driver.disconnected == []


# --- training that stands still: evictions, workers that are kept, and the operator's messages


STILL_S = 5.25
STUCK = {"stalled_s": STILL_S, "still_s": STILL_S, "patience_s": 5.0}


def train(driver: Any, *names: str, step: int = 17) -> int:
    """A generation that has committed some steps."""
    driver.submit()
    number: int = driver.run_generation(*names)
    for name in names:
        driver.beat(name, step=step)
    return number


def all_stand(driver: Any, *names: str, **how: float) -> None:
    """They stand still, and not for long enough yet."""
    for name in names:
        driver.beat(
            name, step=17, **{"stalled_s": 4.0, "still_s": 4.0, "patience_s": 5000.0, **how}
        )


def released(driver: Any) -> list[str]:
    """The workers that were told to start afresh."""
    return [
        one.name
        for one in driver.sent
        if isinstance(one.message, m.Release) and one.message.state == "evicted"
    ]


# --- one among others ----------------------------------------------------------------------------


def test_member_that_is_stuck_is_told_to_start_afresh(driver: Any) -> None:
    number = train(driver, "a", "b")
    driver.beat("b", step=17, stalled_s=5.0, still_s=5.0, patience_s=5.0)
    assert driver.disconnected == []
    why = "nothing has moved for 5.2 s; elastic.stall_timeout_s allows 5 s"
    driver.beat("b", step=17, **STUCK, where="task.py:12 in loss", evidence=why)
    assert [one.reason for one in driver.disconnected] == [
        f"its training thread has been stuck in task.py:12 in loss for 5.2 s ({why})"
    ]
    assert released(driver) == ["b"]
    driver.froze("a", generation=number, step=17)
    assert driver.cluster.run.roster == ["a"]


# --- several alike -------------------------------------------------------------------------------


def test_nobody_is_blamed_for_what_befalls_all(driver: Any) -> None:
    """Storage hangs for eight seconds."""
    train(driver, "a", "b", "c")
    for quarter in range(24):
        for name in "abc":
            since_s = STILL_S - 0.5 + quarter / 4
            driver.beat(name, step=17, stalled_s=since_s, still_s=since_s, patience_s=5.0)
    assert driver.disconnected == []
    assert [one.worker for one in driver.told_of("training_stalled")] == ["a", "b", "c"]
    assert "no other worker that makes progress holds step 17" in driver.incidents[-1].message
    for name in "abc":
        driver.beat(name, step=18)
    assert [one.worker for one in driver.told_of("training_goes_on")] == ["a", "b", "c"]
    assert driver.core.explain() == ""


@pytest.mark.parametrize("names", ["a", "abc"])
def test_the_last_who_remember_are_kept_for_ever_and_the_operator_is_told(
    driver: Any, names: str
) -> None:
    train(driver, *names)
    all_stand(driver, *names)
    for _ in range(3600):
        driver.now += 1.0
        for name in names:
            driver.beat(name, step=17, **STUCK, where="task.py:12 in loss")
    assert driver.disconnected == []
    assert len(driver.told_of("training_stalled")) == len(names)
    assert driver.core.explain() == (
        f"waiting for {', '.join(names)}, kept since no other worker that makes progress holds"
        " step 17;"
        " a: its training thread has been stuck in task.py:12 in loss for 5.2 s (limit 5.0 s);"
        " `dtdctl kill-worker a` gives it up, `dtdctl cancel j-1` ends the job"
    )


def test_several_alike_are_put_out_after_long_where_others_remember(driver: Any) -> None:
    number = train(driver, "a", "b", "c")
    all_stand(driver, "b", "c")
    begun = driver.now
    while not driver.disconnected:
        driver.now += 0.25
        driver.beat("a", step=17)
        for name in "bc":
            still_s = STILL_S + driver.now - begun
            driver.beat(name, step=17, stalled_s=still_s, still_s=still_s, patience_s=5.0)
    assert driver.now - begun == pytest.approx(ALIKE_PATIENCE_S + 0.25)
    assert "c are stuck alike" in driver.told_of("training_stalled")[0].message
    assert released(driver) == ["b", "c"]
    driver.froze("a", generation=number, step=17)
    assert driver.cluster.run.roster == ["a"]


def test_one_that_stood_still_much_later_is_not_alike(driver: Any) -> None:
    train(driver, "a", "b")
    driver.beat("a", step=17, stalled_s=2.0, still_s=2.0, patience_s=5.0)
    driver.beat("b", step=17, **STUCK)
    assert released(driver) == ["b"]


# --- where nothing is lost -----------------------------------------------------------------------


@pytest.mark.parametrize("saved", [0, 17])
def test_the_last_one_starts_afresh_after_long_where_nothing_is_lost(
    driver: Any, saved: int
) -> None:
    """No step is committed yet, or the last one is on a disk."""
    number = train(driver, "a", step=saved)
    if saved:
        driver.saved_checkpoint("a", generation=number, step=saved)
    driver.beat("a", step=saved, **STUCK)
    assert "no worker waits for it" in driver.told_of("training_stalled")[0].message
    driver.silence(ALIKE_PATIENCE_S - 0.25, "a", job="j-1", step=saved, **STUCK)
    assert driver.disconnected == []
    driver.silence(ALIKE_PATIENCE_S, "a", job="j-1", step=saved, **STUCK)
    assert released(driver) == ["a"]


# --- the operator's way out ----------------------------------------------------------------------


def test_a_cancelled_job_keeps_nobody(driver: Any) -> None:
    train(driver, "a")
    driver.beat("a", step=17, **STUCK)
    driver.handle(CancelRequested(job="j-1"))
    driver.beat("a", step=17, **STUCK)
    assert released(driver) == ["a"]
    assert [job.state.value for job in driver.ended] == ["cancelled"]


def test_an_operator_can_give_a_memory_up(driver: Any) -> None:
    train(driver, "a")
    driver.beat("a", step=17, **STUCK)
    driver.handle(KillRequested(name="a", signal="KILL"))
    assert driver.told("a", m.Signal) == [m.Signal(signal="KILL")]
    driver.lost("a")
    driver.run_generation("a")
    assert driver.core.explain() == ""
