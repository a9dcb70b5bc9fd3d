from typing import Any

import pytest

from dtd.cluster import forming
from dtd.cluster.events import CancelRequested
from dtd.cluster.transitions import GenerationState
from dtd.wire import messages as m

# --- progress --------------------------------------------------------------------------------


def test_heartbeats_of_running_members_count_as_progress(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a")
    assert desk.cluster.setbacks.no_progress_generations == 1
    desk.beat("a", step=3)
    assert (
        desk.cluster.setbacks.no_progress_generations,
        job.step,
        desk.cluster.run.advanced_at,
    ) == (
        0,
        3,
        desk.now,
    )


def test_heartbeat_of_another_generation_or_job_is_no_progress(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a")
    desk.beat("a", step=3, generation=number + 1)
    desk.say("a", m.Heartbeat(state="running", job="other", generation=number, step=3))
    assert job.step == 0


def test_steps_that_only_a_frozen_report_tells_of_are_progress(desk: Any) -> None:
    """A generation may commit a step and end between two heartbeats."""
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=2)
    desk.froze("b", generation=number, step=2)
    assert (job.step, desk.cluster.run.phase) == (2, GenerationState.FORMING)
    assert desk.cluster.setbacks.no_progress_generations == 1  # of the generation that forms now


def test_who_is_not_heard_from_need_not_bear_a_step_out(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a", "b", "c")
    desk.lost("c", farewell=False)
    desk.silence(3 * desk.cluster.heartbeat_interval_s, "a")
    desk.beat("a", step=5)
    assert (desk.state("b"), desk.state("c"), job.step) == ("running", "away", 5)


def test_old_checkpoint_of_a_joiner_is_no_progress(desk: Any) -> None:
    """It may be of steps that the job has since gone back behind."""
    job = desk.submit(min_workers=2)
    desk.register("a")
    desk.register("b")
    desk.warmed("a")
    desk.warmed("b")
    desk.froze("b", generation=1, step=20, held_generation=0, where="checkpoint")
    assert job.step == 0


# --- joining ---------------------------------------------------------------------------------


def test_ready_worker_joins_at_the_step_boundary(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.warm_up("b")
    (freeze,) = desk.told("a", m.Freeze)
    assert (freeze.at_boundary, freeze.stop, freeze.reason) == (True, False, "b joins")
    assert desk.cluster.workers["b"].reason == "joins at the next step boundary"
    desk.froze("a", generation=number, step=3)
    assert desk.cluster.run.roster == ["a", "b"]


def test_joiners_that_warm_up_are_taken_in_together(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    desk.register("c")
    desk.warmed("b")
    assert desk.told("a", m.Freeze) == []
    desk.warmed("c")
    assert desk.told("a", m.Freeze)[0].reason == "b, c joins"


def test_who_is_ready_does_not_wait_for_a_long_warm_up(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.register("b")
    desk.register("c")
    desk.warmed("b")
    desk.beat("a")
    asked = desk.now + forming.ADMIT_PATIENCE_S
    assert forming.admission_deadline(desk.cluster) == asked
    desk.tick(asked - 0.25)
    assert desk.told("a", m.Freeze) == []
    desk.tick(asked)
    assert [one.reason for one in desk.told("a", m.Freeze)] == ["b joins"]


def test_standby_waits_until_there_is_room_and_is_used_at_once(desk: Any) -> None:
    desk.submit(max_workers=2)
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    assert desk.state("c") == "ready"
    assert desk.told("a", m.Freeze) == []
    desk.lost("a")
    desk.froze("b", generation=number, step=3)
    assert desk.cluster.run.roster == ["b", "c"]


def test_leaver_hands_its_state_to_the_standby_even_beyond_max_workers(desk: Any) -> None:
    desk.submit(max_workers=1)
    number = desk.run_generation("a")
    desk.warm_up("b")
    desk.say("a", m.Leave(reason="stop"))
    desk.saved_checkpoint("a", generation=number, step=3)
    desk.froze("a", generation=number, step=3)
    assert desk.cluster.run.roster == ["a", "b"]
    number = desk.all_run("a", "b")
    for name in "ab":
        desk.froze(name, generation=number, step=4)
    assert desk.state("a") == "released"
    assert desk.cluster.run.roster == ["b"]


@pytest.mark.parametrize("why", ["finishing", "stopping"])
def test_nobody_joins_a_job_that_ends(desk: Any, why: str) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("c")
    if why == "finishing":
        desk.finished("a", generation=number)
    else:
        desk.handle(CancelRequested(job="j-1"))
    before = len(desk.told("b", m.Freeze))
    desk.warmed("c")
    assert len(desk.told("b", m.Freeze)) == before


def test_who_would_not_fit_in_ends_nothing(desk: Any) -> None:
    """Otherwise the generation ends over and over for one who has no working link."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    for name, suspect in (("a", "b"), ("b", "a"), ("c", "a")):
        desk.froze(name, generation=number, step=0, suspect=suspect, evidence="silent")
    assert (desk.cluster.run.roster, desk.state("a")) == (["b", "c"], "barred")
    desk.all_run("b", "c")
    worker = desk.cluster.workers["a"]
    worker.state = worker.state.READY
    before = len(desk.told("b", m.Freeze))
    desk.tick(desk.now + 0.25)
    assert desk.state("a") == "barred"
    assert len(desk.told("b", m.Freeze)) == before


def test_member_that_fetched_the_state_holds_it_as_well(desk: Any) -> None:
    """Otherwise it counts as one who could stay out in favour of those who come."""
    desk.submit()
    number = desk.run_generation("a")
    desk.beat("a", step=1)
    desk.warm_up("c")
    desk.froze("a", generation=number, step=1)
    desk.all_run("a", "c")
    for other in "de":
        desk.register(other)
        desk.cluster.isolation.links.accuse("c", other, "silent")
    desk.cluster.isolation.links.judge({"a", "c", "d", "e"}, desk.now)
    before = len(desk.told("a", m.Freeze))
    for other in "de":
        desk.warmed(other)
    assert [desk.state(name) for name in "acde"] == ["running", "running", "barred", "barred"]
    assert len(desk.told("a", m.Freeze)) == before


def test_whoever_is_barred_joins_when_its_links_work(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    for name, suspect in (("a", "b"), ("b", "a"), ("c", "a")):
        desk.froze(name, generation=number, step=0, suspect=suspect, evidence="silent")
    number = desk.all_run("b", "c")
    for other in "bc":
        desk.say("a", m.Probed(name=other, reachable=True))
        assert desk.state("a") == "barred"
        desk.say(other, m.Probed(name="a", reachable=True))
    assert [one.reason for one in desk.told("b", m.Freeze)][-1] == "a joins"
