"""Training that stands still: evictions, workers that are kept, and the operator's messages."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, KillRequested
from dtd.cluster.suspicion import ALIKE_PATIENCE_S
from dtd.wire import messages as m

STILL_S = 5.25
STUCK = {"stalled_s": STILL_S, "still_s": STILL_S, "patience_s": 5.0}
BUSY = {"stalled_s": 40.0, "still_s": 0.0, "patience_s": 45.0}


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


def test_where_it_is_stuck_may_be_unknown(driver: Any) -> None:
    train(driver, "a", "b")
    driver.beat("b", step=17, **STUCK)
    assert "has been stuck for 5.2 s (limit 5.0 s)" in driver.disconnected[0].reason


@pytest.mark.parametrize("state", ["forming", "ending"])
def test_member_may_be_stuck_in_any_phase(driver: Any, state: str) -> None:
    driver.submit()
    driver.warm_up("a", "b", "c")
    if state == "ending":
        driver.all_run("a", "b", "c")
        driver.lost("c")
    driver.beat("b", **STUCK)
    assert driver.state("b") == "lost"


def test_a_worker_that_was_stuck_in_another_generation_is_not_to_blame(driver: Any) -> None:
    number = train(driver, "a", "b")
    driver.beat("b", step=17, generation=number - 1, **STUCK)
    driver.beat("b", step=17, stalled_s=6.0, patience_s=0.0)
    assert driver.disconnected == []


def test_one_that_computes_alongside_waits_for_it_soon(driver: Any) -> None:
    train(driver, "a", "b")
    driver.beat("a", step=17, **BUSY)
    driver.beat("b", step=17, **STUCK)
    assert driver.state("b") == "lost"


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


def test_all_that_compute_for_ever_do_so_alike(driver: Any) -> None:
    train(driver, "a", "b")
    all_stand(driver, "a", "b", stalled_s=1000.0, still_s=0.2)
    for name in "ab":
        driver.beat(name, step=17, stalled_s=1801.0, still_s=0.2, patience_s=1800.0)
    assert driver.disconnected == []
    driver.beat("b", step=17, stalled_s=10.0, patience_s=15.0)
    driver.beat("a", step=17, stalled_s=1801.0, still_s=0.2, patience_s=1800.0)
    assert released(driver) == ["a"]


@pytest.mark.parametrize("heard", ["nothing", "of an older generation"])
def test_of_whom_nothing_is_known_does_not_stand_still_alike(driver: Any, heard: str) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.beat("b", step=17)
    if heard != "nothing":
        driver.beat("a", generation=number - 1, **STUCK)
    driver.beat("b", step=17, **STUCK)
    assert released(driver) == ["b"]


def test_a_worker_that_is_away_cannot_be_counted_on(driver: Any) -> None:
    train(driver, "a", "b")
    driver.lost("a", farewell=False)
    driver.beat("b", step=17, **STUCK)
    assert driver.state("a") == "away"
    assert driver.disconnected == []


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


def test_a_joiner_that_hangs_while_it_takes_over_costs_nothing(driver: Any) -> None:
    number = train(driver, "a")
    driver.warm_up("b")
    driver.froze("a", generation=number, step=17)
    assert driver.cluster.run.roster == ["a", "b"]
    driver.beat("b", **STUCK)
    assert released(driver) == ["b"]


def test_a_worker_that_holds_what_a_joiner_lacks_is_kept(driver: Any) -> None:
    number = train(driver, "a")
    driver.warm_up("b")
    driver.froze("a", generation=number, step=17)
    driver.beat("a", step=17, **STUCK)
    assert driver.disconnected == []


def test_a_worker_that_has_frozen_remembers(driver: Any) -> None:
    number = train(driver, "a", "b", "c")
    driver.lost("c")
    driver.froze("a", generation=number, step=17)
    driver.beat("b", step=17, **STUCK)
    assert released(driver) == ["b"]


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


# --- who does not freeze -------------------------------------------------------------------------


def test_a_worker_that_is_seen_to_get_on_has_all_the_time_to_freeze(driver: Any) -> None:
    """A digest over a large state, a step of three minutes."""
    number = train(driver, "a", "b", "c")
    driver.lost("c")
    driver.froze("a", generation=number, step=17)
    driver.silence(600.0, "a", "b", stalled_s=0.2, patience_s=5.0)
    assert [one.name for one in driver.disconnected] == []
    driver.froze("b", generation=number, step=17)
    assert driver.cluster.run.roster == ["a", "b"]


def test_a_worker_that_has_not_heard_of_the_generation_yet_is_not_late(driver: Any) -> None:
    """Its assignment waits until it is written down."""
    driver.submit()
    driver.warm_up("a", "b", "c")
    number = driver.cluster.run.generation
    driver.lost("c")
    driver.silence(30.0, "a", "b", generation=number - 1)
    assert driver.disconnected == []


def test_the_last_who_remembers_is_waited_for_although_it_does_not_freeze(driver: Any) -> None:
    train(driver, "a", "b")
    driver.lost("b")
    driver.silence(30.0, "a", job="j-1", step=17)
    assert driver.disconnected == []
    (told,) = driver.told_of("training_stalled")
    assert "did not freeze in time" in told.message
    assert "a: its training thread does not respond" in driver.core.explain()
    driver.froze("a", generation=driver.cluster.run.generation, step=17)
    assert [one.worker for one in driver.told_of("training_goes_on")] == ["a"]


def test_a_worker_that_comes_back_with_the_newest_memory_and_hangs_is_kept(driver: Any) -> None:
    number = train(driver, "a")
    driver.lost("a")
    driver.register("a", job="j-1", generation=number, roster_id=1)
    driver.silence(60.0, "a", generation=number, step=17)
    assert driver.disconnected == []
    assert "came back and did not freeze" in driver.told_of("training_stalled")[0].message
    driver.froze("a", generation=number, step=17)
    assert driver.cluster.run.roster == ["a"]


def test_a_worker_that_comes_back_and_gets_on_is_waited_for(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a")
    driver.register("b", job="j-1", generation=3)
    driver.silence(200.0, "a", "b", generation=3, stalled_s=40.0, patience_s=45.0)
    assert driver.disconnected == []


def test_a_worker_that_comes_back_with_what_others_remember_is_given_up(driver: Any) -> None:
    number = train(driver, "a", "b", "c")
    driver.lost("c")
    driver.froze("a", generation=number, step=17)
    driver.lost("b")
    driver.register("b", job="j-1", generation=number)
    driver.silence(30.0, "a", "b", step=17)
    assert [one.name for one in driver.disconnected] == ["b"]


def test_without_a_job_there_is_nothing_to_measure_patience_by(driver: Any) -> None:
    driver.register("a")
    driver.beat("a", patience_s=1e9)
    assert driver.cluster.workers["a"].liveness.heartbeat.patience_s == 1e9
