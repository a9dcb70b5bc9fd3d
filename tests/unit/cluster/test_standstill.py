"""Whose training stands still: who is put out for it, who is kept, and what an operator reads."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, KillRequested
from dtd.cluster.suspicion import ALIKE_PATIENCE_S
from dtd.wire import messages as m

STILL_S = 5.25
STUCK = {"stalled_s": STILL_S, "still_s": STILL_S, "patience_s": 5.0}
BUSY = {"stalled_s": 40.0, "still_s": 0.0, "patience_s": 45.0}


def train(desk: Any, *names: str, step: int = 17) -> int:
    """A generation that has committed some steps."""
    desk.submit()
    number: int = desk.run_generation(*names)
    for name in names:
        desk.beat(name, step=step)
    return number


def all_stand(desk: Any, *names: str, **how: float) -> None:
    """They stand still, and not for long enough yet."""
    for name in names:
        desk.beat(name, step=17, **{"stalled_s": 4.0, "still_s": 4.0, "patience_s": 5000.0, **how})


def released(desk: Any) -> list[str]:
    """Who was told to start afresh."""
    return [
        one.name
        for one in desk.sent
        if isinstance(one.message, m.Release) and one.message.state == "evicted"
    ]


# --- one among others ----------------------------------------------------------------------------


def test_member_that_is_stuck_is_told_to_start_afresh(desk: Any) -> None:
    number = train(desk, "a", "b")
    desk.beat("b", step=17, stalled_s=5.0, still_s=5.0, patience_s=5.0)
    assert desk.disconnected == []
    why = "nothing has moved for 5.2 s; elastic.stall_timeout_s allows 5 s"
    desk.beat("b", step=17, **STUCK, where="task.py:12 in loss", evidence=why)
    assert [one.reason for one in desk.disconnected] == [
        f"its training thread has been stuck in task.py:12 in loss for 5.2 s ({why})"
    ]
    assert released(desk) == ["b"]
    desk.froze("a", generation=number, step=17)
    assert desk.cluster.run.roster == ["a"]


def test_where_it_is_stuck_may_be_unknown(desk: Any) -> None:
    train(desk, "a", "b")
    desk.beat("b", step=17, **STUCK)
    assert "has been stuck for 5.2 s (limit 5.0 s)" in desk.disconnected[0].reason


@pytest.mark.parametrize("state", ["forming", "ending"])
def test_member_may_be_stuck_in_any_phase(desk: Any, state: str) -> None:
    desk.submit()
    desk.warm_up("a", "b", "c")
    if state == "ending":
        desk.all_run("a", "b", "c")
        desk.lost("c")
    desk.beat("b", **STUCK)
    assert desk.state("b") == "lost"


def test_who_was_stuck_in_another_generation_is_not_to_blame(desk: Any) -> None:
    number = train(desk, "a", "b")
    desk.beat("b", step=17, generation=number - 1, **STUCK)
    desk.beat("b", step=17, stalled_s=6.0, patience_s=0.0)
    assert desk.disconnected == []


def test_one_that_computes_alongside_waits_for_it_soon(desk: Any) -> None:
    train(desk, "a", "b")
    desk.beat("a", step=17, **BUSY)
    desk.beat("b", step=17, **STUCK)
    assert desk.state("b") == "lost"


# --- several alike -------------------------------------------------------------------------------


def test_nobody_is_blamed_for_what_befalls_all(desk: Any) -> None:
    """Storage hangs for eight seconds."""
    train(desk, "a", "b", "c")
    for quarter in range(24):
        for name in "abc":
            since_s = STILL_S - 0.5 + quarter / 4
            desk.beat(name, step=17, stalled_s=since_s, still_s=since_s, patience_s=5.0)
    assert desk.disconnected == []
    assert [one.worker for one in desk.told_of("training_stalled")] == ["a", "b", "c"]
    assert "no other worker that makes progress holds step 17" in desk.incidents[-1].message
    for name in "abc":
        desk.beat(name, step=18)
    assert [one.worker for one in desk.told_of("training_goes_on")] == ["a", "b", "c"]
    assert desk.core.explain() == ""


@pytest.mark.parametrize("names", ["a", "abc"])
def test_the_last_who_remember_are_kept_for_ever_and_the_operator_is_told(
    desk: Any, names: str
) -> None:
    train(desk, *names)
    all_stand(desk, *names)
    for _ in range(3600):
        desk.now += 1.0
        for name in names:
            desk.beat(name, step=17, **STUCK, where="task.py:12 in loss")
    assert desk.disconnected == []
    assert len(desk.told_of("training_stalled")) == len(names)
    assert desk.core.explain() == (
        f"waiting for {', '.join(names)}, kept since no other worker that makes progress holds"
        " step 17;"
        " a: its training thread has been stuck in task.py:12 in loss for 5.2 s (limit 5.0 s);"
        " `dtdctl kill-worker a` gives it up, `dtdctl cancel j-1` ends the job"
    )


def test_several_alike_are_put_out_after_long_where_others_remember(desk: Any) -> None:
    number = train(desk, "a", "b", "c")
    all_stand(desk, "b", "c")
    begun = desk.now
    while not desk.disconnected:
        desk.now += 0.25
        desk.beat("a", step=17)
        for name in "bc":
            still_s = STILL_S + desk.now - begun
            desk.beat(name, step=17, stalled_s=still_s, still_s=still_s, patience_s=5.0)
    assert desk.now - begun == pytest.approx(ALIKE_PATIENCE_S + 0.25)
    assert "c are stuck alike" in desk.told_of("training_stalled")[0].message
    assert released(desk) == ["b", "c"]
    desk.froze("a", generation=number, step=17)
    assert desk.cluster.run.roster == ["a"]


def test_one_that_stood_still_much_later_is_not_alike(desk: Any) -> None:
    train(desk, "a", "b")
    desk.beat("a", step=17, stalled_s=2.0, still_s=2.0, patience_s=5.0)
    desk.beat("b", step=17, **STUCK)
    assert released(desk) == ["b"]


def test_all_that_compute_for_ever_do_so_alike(desk: Any) -> None:
    train(desk, "a", "b")
    all_stand(desk, "a", "b", stalled_s=1000.0, still_s=0.2)
    for name in "ab":
        desk.beat(name, step=17, stalled_s=1801.0, still_s=0.2, patience_s=1800.0)
    assert desk.disconnected == []
    desk.beat("b", step=17, stalled_s=10.0, patience_s=15.0)
    desk.beat("a", step=17, stalled_s=1801.0, still_s=0.2, patience_s=1800.0)
    assert released(desk) == ["a"]


@pytest.mark.parametrize("heard", ["nothing", "of an older generation"])
def test_of_whom_nothing_is_known_does_not_stand_still_alike(desk: Any, heard: str) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.beat("b", step=17)
    if heard != "nothing":
        desk.beat("a", generation=number - 1, **STUCK)
    desk.beat("b", step=17, **STUCK)
    assert released(desk) == ["b"]


def test_who_is_away_cannot_be_counted_on(desk: Any) -> None:
    train(desk, "a", "b")
    desk.lost("a", farewell=False)
    desk.beat("b", step=17, **STUCK)
    assert desk.state("a") == "away"
    assert desk.disconnected == []


# --- where nothing is lost -----------------------------------------------------------------------


@pytest.mark.parametrize("saved", [0, 17])
def test_the_last_one_starts_afresh_after_long_where_nothing_is_lost(desk: Any, saved: int) -> None:
    """No step is committed yet, or the last one is on a disk."""
    number = train(desk, "a", step=saved)
    if saved:
        desk.saved_checkpoint("a", generation=number, step=saved)
    desk.beat("a", step=saved, **STUCK)
    assert "no worker waits for it" in desk.told_of("training_stalled")[0].message
    desk.silence(ALIKE_PATIENCE_S - 0.25, "a", job="j-1", step=saved, **STUCK)
    assert desk.disconnected == []
    desk.silence(ALIKE_PATIENCE_S, "a", job="j-1", step=saved, **STUCK)
    assert released(desk) == ["a"]


def test_a_joiner_that_hangs_while_it_takes_over_costs_nothing(desk: Any) -> None:
    number = train(desk, "a")
    desk.warm_up("b")
    desk.froze("a", generation=number, step=17)
    assert desk.cluster.run.roster == ["a", "b"]
    desk.beat("b", **STUCK)
    assert released(desk) == ["b"]


def test_who_holds_what_a_joiner_lacks_is_kept(desk: Any) -> None:
    number = train(desk, "a")
    desk.warm_up("b")
    desk.froze("a", generation=number, step=17)
    desk.beat("a", step=17, **STUCK)
    assert desk.disconnected == []


def test_who_has_frozen_remembers(desk: Any) -> None:
    number = train(desk, "a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=17)
    desk.beat("b", step=17, **STUCK)
    assert released(desk) == ["b"]


# --- the operator's way out ----------------------------------------------------------------------


def test_a_cancelled_job_keeps_nobody(desk: Any) -> None:
    train(desk, "a")
    desk.beat("a", step=17, **STUCK)
    desk.handle(CancelRequested(job="j-1"))
    desk.beat("a", step=17, **STUCK)
    assert released(desk) == ["a"]
    assert [job.state.value for job in desk.ended] == ["cancelled"]


def test_an_operator_can_give_a_memory_up(desk: Any) -> None:
    train(desk, "a")
    desk.beat("a", step=17, **STUCK)
    desk.handle(KillRequested(name="a", signal="KILL"))
    assert desk.told("a", m.Signal) == [m.Signal(signal="KILL")]
    desk.lost("a")
    desk.run_generation("a")
    assert desk.core.explain() == ""


# --- who does not freeze -------------------------------------------------------------------------


def test_who_is_seen_to_get_on_has_all_the_time_to_freeze(desk: Any) -> None:
    """A digest over a large state, a step of three minutes."""
    number = train(desk, "a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=17)
    desk.silence(600.0, "a", "b", stalled_s=0.2, patience_s=5.0)
    assert [one.name for one in desk.disconnected] == []
    desk.froze("b", generation=number, step=17)
    assert desk.cluster.run.roster == ["a", "b"]


def test_who_has_not_heard_of_the_generation_yet_is_not_late(desk: Any) -> None:
    """Its assignment waits until it is written down."""
    desk.submit()
    desk.warm_up("a", "b", "c")
    number = desk.cluster.run.generation
    desk.lost("c")
    desk.silence(30.0, "a", "b", generation=number - 1)
    assert desk.disconnected == []


def test_the_last_who_remembers_is_waited_for_although_it_does_not_freeze(desk: Any) -> None:
    train(desk, "a", "b")
    desk.lost("b")
    desk.silence(30.0, "a", job="j-1", step=17)
    assert desk.disconnected == []
    (told,) = desk.told_of("training_stalled")
    assert "did not freeze in time" in told.message
    assert "a: its training thread does not respond" in desk.core.explain()
    desk.froze("a", generation=desk.cluster.run.generation, step=17)
    assert [one.worker for one in desk.told_of("training_goes_on")] == ["a"]


def test_who_comes_back_with_the_newest_memory_and_hangs_is_kept(desk: Any) -> None:
    number = train(desk, "a")
    desk.lost("a")
    desk.register("a", job="j-1", generation=number, roster_id=1)
    desk.silence(60.0, "a", generation=number, step=17)
    assert desk.disconnected == []
    assert "came back and did not freeze" in desk.told_of("training_stalled")[0].message
    desk.froze("a", generation=number, step=17)
    assert desk.cluster.run.roster == ["a"]


def test_who_comes_back_and_gets_on_is_waited_for(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a")
    desk.register("b", job="j-1", generation=3)
    desk.silence(200.0, "a", "b", generation=3, stalled_s=40.0, patience_s=45.0)
    assert desk.disconnected == []


def test_who_comes_back_with_what_others_remember_is_given_up(desk: Any) -> None:
    number = train(desk, "a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=17)
    desk.lost("b")
    desk.register("b", job="j-1", generation=number)
    desk.silence(30.0, "a", "b", step=17)
    assert [one.name for one in desk.disconnected] == ["b"]


def test_without_a_job_there_is_nothing_to_measure_patience_by(desk: Any) -> None:
    desk.register("a")
    desk.beat("a", patience_s=1e9)
    assert desk.cluster.workers["a"].liveness.heartbeat.patience_s == 1e9
