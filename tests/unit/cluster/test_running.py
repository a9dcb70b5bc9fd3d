from typing import Any

import pytest

from dtd.cluster import forming
from dtd.cluster.events import CancelRequested
from dtd.cluster.transitions import GenerationState
from dtd.wire import messages as m

# --- progress --------------------------------------------------------------------------------


def test_heartbeats_of_running_members_count_as_progress(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a")
    assert driver.cluster.setbacks.no_progress_generations == 1
    driver.beat("a", step=3)
    assert (
        driver.cluster.setbacks.no_progress_generations,
        job.step,
        driver.cluster.run.advanced_at,
    ) == (
        0,
        3,
        driver.now,
    )


def test_heartbeat_of_another_generation_or_job_is_no_progress(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    driver.beat("a", step=3, generation=number + 1)
    driver.say("a", m.Heartbeat(state="running", job="other", generation=number, step=3))
    assert job.step == 0


def test_steps_that_only_a_frozen_report_tells_of_are_progress(driver: Any) -> None:
    """A generation may commit a step and end between two heartbeats."""
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number, step=2)
    driver.froze("b", generation=number, step=2)
    assert (job.step, driver.cluster.run.phase) == (2, GenerationState.FORMING)
    assert driver.cluster.setbacks.no_progress_generations == 1  # of the generation that forms now


def test_a_worker_that_is_not_heard_from_need_not_bear_a_step_out(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a", "b", "c")
    driver.lost("c", farewell=False)
    driver.silence(3 * driver.cluster.heartbeat_interval_s, "a")
    driver.beat("a", step=5)
    assert (driver.state("b"), driver.state("c"), job.step) == ("running", "away", 5)


def test_old_checkpoint_of_a_joiner_is_no_progress(driver: Any) -> None:
    """It may be of steps that the job has since gone back behind."""
    job = driver.submit(min_workers=2)
    driver.register("a")
    driver.register("b")
    driver.warmed("a")
    driver.warmed("b")
    driver.froze("b", generation=1, step=20, held_generation=0, where="checkpoint")
    assert job.step == 0


# --- joining ---------------------------------------------------------------------------------


def test_ready_worker_joins_at_the_step_boundary(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a")
    driver.warm_up("b")
    (freeze,) = driver.told("a", m.Freeze)
    assert (freeze.at_boundary, freeze.stop, freeze.reason) == (True, False, "b joins")
    assert driver.cluster.workers["b"].reason == "joins at the next step boundary"
    driver.froze("a", generation=number, step=3)
    assert driver.cluster.run.roster == ["a", "b"]


def test_joiners_that_warm_up_are_taken_in_together(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    driver.register("c")
    driver.warmed("b")
    assert driver.told("a", m.Freeze) == []
    driver.warmed("c")
    assert driver.told("a", m.Freeze)[0].reason == "b, c joins"


def test_a_worker_that_is_ready_does_not_wait_for_a_long_warm_up(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    driver.register("c")
    driver.warmed("b")
    driver.beat("a")
    asked = driver.now + forming.ADMIT_PATIENCE_S
    assert forming.admission_deadline(driver.cluster) == asked
    driver.tick(asked - 0.25)
    assert driver.told("a", m.Freeze) == []
    driver.tick(asked)
    assert [one.reason for one in driver.told("a", m.Freeze)] == ["b joins"]


def test_standby_waits_until_there_is_room_and_is_used_at_once(driver: Any) -> None:
    driver.submit(max_workers=2)
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    assert driver.state("c") == "ready"
    assert driver.told("a", m.Freeze) == []
    driver.lost("a")
    driver.froze("b", generation=number, step=3)
    assert driver.cluster.run.roster == ["b", "c"]


def test_leaver_hands_its_state_to_the_standby_even_beyond_max_workers(driver: Any) -> None:
    driver.submit(max_workers=1)
    number = driver.run_generation("a")
    driver.warm_up("b")
    driver.say("a", m.Leave(reason="stop"))
    driver.saved_checkpoint("a", generation=number, step=3)
    driver.froze("a", generation=number, step=3)
    assert driver.cluster.run.roster == ["a", "b"]
    number = driver.all_run("a", "b")
    for name in "ab":
        driver.froze(name, generation=number, step=4)
    assert driver.state("a") == "released"
    assert driver.cluster.run.roster == ["b"]


@pytest.mark.parametrize("why", ["finishing", "stopping"])
def test_nobody_joins_a_job_that_ends(driver: Any, why: str) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.register("c")
    if why == "finishing":
        driver.finished("a", generation=number)
    else:
        driver.handle(CancelRequested(job="j-1"))
    before = len(driver.told("b", m.Freeze))
    driver.warmed("c")
    assert len(driver.told("b", m.Freeze)) == before


def test_a_worker_that_would_not_fit_in_ends_nothing(driver: Any) -> None:
    """Otherwise the generation ends over and over for one who has no working link."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    for name, suspect in (("a", "b"), ("b", "a"), ("c", "a")):
        driver.froze(name, generation=number, step=0, suspect=suspect, evidence="silent")
    assert (driver.cluster.run.roster, driver.state("a")) == (["b", "c"], "barred")
    driver.all_run("b", "c")
    worker = driver.cluster.workers["a"]
    worker.state = worker.state.READY
    before = len(driver.told("b", m.Freeze))
    driver.tick(driver.now + 0.25)
    assert driver.state("a") == "barred"
    assert len(driver.told("b", m.Freeze)) == before


def test_member_that_fetched_the_state_holds_it_as_well(driver: Any) -> None:
    """Otherwise it counts as one who could stay out in favour of those who come."""
    driver.submit()
    number = driver.run_generation("a")
    driver.beat("a", step=1)
    driver.warm_up("c")
    driver.froze("a", generation=number, step=1)
    driver.all_run("a", "c")
    for other in "de":
        driver.register(other)
        driver.cluster.links.accuse("c", other, "silent")
    driver.cluster.links.judge({"a", "c", "d", "e"}, driver.now)
    before = len(driver.told("a", m.Freeze))
    for other in "de":
        driver.warmed(other)
    assert [driver.state(name) for name in "acde"] == ["running", "running", "barred", "barred"]
    assert len(driver.told("a", m.Freeze)) == before


def test_a_worker_that_is_barred_joins_when_its_links_work(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    for name, suspect in (("a", "b"), ("b", "a"), ("c", "a")):
        driver.froze(name, generation=number, step=0, suspect=suspect, evidence="silent")
    number = driver.all_run("b", "c")
    for other in "bc":
        driver.say("a", m.Probed(name=other, reachable=True))
        assert driver.state("a") == "barred"
        driver.say(other, m.Probed(name="a", reachable=True))
    assert [one.reason for one in driver.told("b", m.Freeze)][-1] == "a joins"
