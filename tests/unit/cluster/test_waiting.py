from typing import Any

import pytest

from dtd.cluster.events import ResumeRequested, Ticked
from dtd.cluster.generation import waiting
from dtd.cluster.generation.waiting import MOST_RESUME_WAIT_S, RESUME_WAIT_S
from dtd.errors import RequestRefused
from dtd.wire import messages as m


def test_first_generation_gives_late_workers_a_moment(driver: Any) -> None:
    driver.submit(settle_s=2.0)
    driver.warm_up("a")
    assert driver.core.explain() == "settling: giving late workers a moment to join"
    driver.tick(1.5)
    assert driver.cluster.run.roster == []
    driver.tick(2.0)
    assert driver.cluster.run.roster == ["a"]


def test_survivors_do_not_wait_for_those_that_warm_up(driver: Any) -> None:
    """A killed worker is back in a moment, and its warm-up takes many seconds."""
    driver.submit(settle_s=0.0)
    number = driver.run_generation("a", "b")
    driver.register("b", incarnation=2)
    driver.froze("a", generation=number, step=5)
    assert driver.state("b") == "warming"
    assert driver.cluster.run.roster == ["a"]


def test_after_a_total_loss_nobody_is_waited_for_forever(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.lost("a")
    driver.lost("b")
    driver.register("a", incarnation=2)
    driver.warmed("a")
    driver.tick(RESUME_WAIT_S - 1)
    assert driver.cluster.run.roster == []
    driver.tick(RESUME_WAIT_S)
    assert driver.cluster.run.roster == ["a"]


def test_time_in_which_the_coordinator_slept_does_not_count_as_waiting(driver: Any) -> None:
    """The holder of the newer state may have called all the while."""
    driver.submit()
    driver.run_generation("a", "b")
    driver.commit(9)
    driver.lost("a")
    driver.lost("b")
    driver.register("a", incarnation=2)
    driver.warmed("a")
    driver.now += 2 * RESUME_WAIT_S
    driver.handle(Ticked())
    assert driver.cluster.run.roster == []
    driver.tick(driver.now + RESUME_WAIT_S)
    assert driver.cluster.run.roster == ["a"]


def test_workers_have_time_to_settle_after_the_coordinator_slept(driver: Any) -> None:
    driver.submit(settle_s=5.0)
    driver.warm_up("a")
    driver.now += 60.0
    driver.handle(Ticked())
    assert driver.cluster.run.roster == []
    driver.warm_up("b")
    driver.tick(driver.now + 5.0)
    assert driver.cluster.run.roster == ["a", "b"]


def test_holder_of_the_newest_checkpoint_is_waited_for(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.saved_checkpoint("a", generation=number, step=5)
    driver.say("a", m.Leave(reason="stop"))
    for name in "ab":
        driver.froze(name, generation=number, step=5)
    assert driver.cluster.run.roster == ["b"]
    driver.register("b", incarnation=2)
    driver.warmed("b")
    assert "waiting for a" in driver.core.explain()
    driver.register("a", incarnation=2)
    held = m.Held(job="j-1", generation=number, step=5, digest="", where="checkpoint")
    driver.warmed("a", held=(held,))
    assert driver.told("b", m.Assign)[-1].held_step == 5


def test_operator_may_say_that_nobody_comes_back(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a", "b")
    driver.commit(9)
    driver.lost("a")
    driver.lost("b")
    driver.register("a", incarnation=2)
    driver.warmed("a")
    assert driver.cluster.run.roster == []
    driver.handle(ResumeRequested(job="j-1"))
    assert driver.cluster.run.roster == ["a"]
    assert job.steps_lost == 9
    assert "job_resumed" in driver.kinds()


def a_child(driver: Any, **terms: Any) -> Any:
    job = driver.submit(**terms)
    job.from_job, job.from_newest = "j-0", 31
    driver.cluster.run.highest = 4
    return job


def origin(*, step: int = 31) -> tuple[m.Held, ...]:
    return (m.Held(job="j-0", generation=4, step=step, digest="", where="checkpoint"),)


def test_a_job_waits_for_the_checkpoint_from_which_it_is_to_start(driver: Any) -> None:
    a_child(driver, settle_s=0.0)
    driver.warm_up("a", "b")
    driver.tick(driver.now + MOST_RESUME_WAIT_S + 1.0)
    assert driver.cluster.run.roster == []
    assert driver.core.explain() == (
        "waiting for workers that have the checkpoint of step 31 of j-0, from which the job is to"
        " start: those present have none, or not all parts of it (`dtdctl checkpoints j-0` names"
        " the holders); `dtdctl resume j-1` begins at step 0 without it"
    )
    driver.register("c")
    driver.warmed("c", held=origin())
    assert driver.cluster.run.roster == ["a", "b", "c"]
    assert driver.start_step == 31


def test_the_operator_may_have_it_begin_without_its_origin_for_good(driver: Any) -> None:
    a_child(driver, settle_s=0.0)
    driver.warm_up("a", "b")
    driver.handle(ResumeRequested(job="j-1"))
    assert driver.cluster.run.roster == ["a", "b"]
    driver.froze("a", generation=driver.cluster.run.generation, step=0)
    driver.lost("b")
    assert driver.cluster.run.roster == ["a"]


def test_a_job_does_not_fall_back_to_step_0_when_its_origin_is_gone(driver: Any) -> None:
    """Its only holders are lost before it has a checkpoint of its own."""
    a_child(driver, settle_s=0.0)
    driver.register("a")
    driver.warmed("a", held=origin())
    driver.all_run("a")
    driver.lost("a")
    driver.register("a", incarnation=2)
    driver.warmed("a")
    driver.tick(driver.now + MOST_RESUME_WAIT_S + 1.0)
    assert driver.cluster.run.roster == []
    assert driver.core.explain().startswith(
        "waiting for workers that have the checkpoint of step 31"
    )
    driver.handle(ResumeRequested(job="j-1"))
    assert driver.cluster.run.roster == ["a"]


@pytest.mark.parametrize(("job", "why"), [("k-1", "not the active one"), ("j-1", "does not wait")])
def test_nothing_to_resume(driver: Any, job: str, why: str) -> None:
    driver.submit()
    driver.run_generation("a")
    with pytest.raises(RequestRefused, match=why):
        driver.handle(ResumeRequested(job=job))


def test_nobody_begins_while_the_last_generation_may_run_out_of_our_hearing(driver: Any) -> None:
    """Both members were evicted for their silence, and neither is known to have stopped."""
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.register("c")
    driver.silence(2.0)
    driver.silence(90.0, "c")
    driver.warmed("c")
    assert driver.cluster.run.roster == []
    assert f"generation {number} may still run there" in driver.core.explain()
    driver.register("b", incarnation=2)
    assert driver.core.explain() == "warming up: b"
    driver.warmed("b")
    assert "waiting for a" in driver.core.explain()
    driver.register("a", incarnation=2)
    driver.warmed("a")
    assert driver.cluster.run.roster == ["a", "b", "c"]


def test_generations_that_come_to_nothing_follow_each_other_ever_more_slowly(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a")
    pauses_s = []
    for _ in range(12):
        before = driver.now
        driver.froze("a", generation=number, step=0)
        if driver.cluster.run.roster == []:
            assert driver.core.explain().startswith("pausing after")
            assert driver.core.next_deadline(driver.now) is not None
        while driver.cluster.run.roster == []:
            driver.tick(driver.now + 0.25)
        pauses_s.append(driver.now - before)
        number = driver.all_run("a")
    assert pauses_s == [0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 1.75, 3.25, 6.5, 6.5, 6.5, 6.5]
    driver.beat("a", step=waiting.QUICK_GENERATIONS)
    driver.froze("a", generation=number, step=waiting.QUICK_GENERATIONS)
    assert driver.cluster.run.roster == ["a"]
