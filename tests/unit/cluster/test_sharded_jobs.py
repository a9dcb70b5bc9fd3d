"""Jobs whose state is sharded: what they continue from, wait for, and save."""

from __future__ import annotations

from typing import Any

from dtd.cluster.events import DrainRequested
from dtd.wire import messages as m
from tests.shards import held_shards
from tests.unit.cluster.sharded_job import FOUR, at, froze, running, saved, share, wire


def test_one_loss_costs_no_step(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    driver.lost("b")
    for name in "acd":
        froze(driver, name, number, 5)
    (assign,) = driver.told("a", m.Assign)[1:]
    assert (assign.held_generation, assign.held_step) == (number, 5)
    assert [one.name for one in assign.roster] == ["a", "c", "d"]
    assert all(one.holds for one in assign.roster)


def lose_two(driver: Any, *, on_disk: int = 3) -> int:
    """Two neighbours are lost after step 5; all had saved their parts of an earlier step."""
    number = running(driver)
    driver.commit(5)
    for name in FOUR:
        saved(driver, name, (number, on_disk))
    for name in "bc":
        driver.lost(name)
    for name in "ad":
        disk = at(number, on_disk, share(name), "checkpoint")
        froze(driver, name, number, 5, disk)
    return number


def test_the_job_waits_for_the_neighbours_and_says_what_they_have(driver: Any) -> None:
    lose_two(driver)
    assert driver.cluster.run.generation == 1
    assert "waiting for b, c: no present worker has the shards 1/2 to 3/4 of step 5" in (
        driver.core.explain()
    )
    assert "which b, c had; `dtdctl resume j-1` goes on without it" in driver.core.explain()


def test_the_last_step_alone_is_waited_for_too(driver: Any) -> None:
    """The checkpoint is of the step before, and all of it is there."""
    number = lose_two(driver, on_disk=4)
    driver.register("c", incarnation=2)
    driver.warmed("c", held=(at(number, 4, share("c"), "checkpoint"),))
    assert driver.cluster.run.generation == number
    assert "waiting for b: no present worker has the shards 1/2 to 3/4 of step 5" in (
        driver.core.explain()
    )


def test_a_step_that_only_one_that_has_left_has_told_of_is_waited_for_too(driver: Any) -> None:
    """It counts when two members tell of it, and the others are away, as is a shard of it."""
    number = running(driver)
    driver.commit(4)
    for name in FOUR:
        saved(driver, name, (number, 4))
    for name in "cd":
        driver.lost(name)
        driver.register(name, incarnation=2)
        driver.warmed(name, held=(at(number, 4, share(name), "checkpoint"),))
    driver.silence(driver.now + 20.0, "c", "d")
    driver.back("a", generation=number, roster_id=driver.cluster.job.roster_id)
    froze(driver, "a", number, 5, at(number, 4, share("a"), "checkpoint"))
    assert (driver.cluster.job.step, driver.cluster.run.generation) == (4, number)
    assert "no present worker has the shards" in driver.core.explain()
    driver.back("b", generation=number, roster_id=driver.cluster.job.roster_id)
    froze(driver, "b", number, 5)
    assert driver.told("a", m.Assign)[-1].held_step == 4  # b and a lack a shard of step 5


def test_it_goes_on_at_once_when_one_of_them_is_back_with_its_memory(driver: Any) -> None:
    number = lose_two(driver)
    driver.back("b", generation=number, roster_id=driver.cluster.job.roster_id)
    froze(driver, "b", number, 5)
    assert driver.told("a", m.Assign)[-1].held_step == 5
    assert "shards_missing" not in driver.kinds()


def test_else_it_falls_back_to_the_newest_complete_checkpoint_and_says_so(driver: Any) -> None:
    number = lose_two(driver)
    for name in "bc":
        driver.register(name, incarnation=2)
        driver.warmed(name, held=(at(number, 3, share(name), "checkpoint"),))
    assign = driver.told("a", m.Assign)[-1]
    assert (assign.held_generation, assign.held_step) == (number, 3)
    assert [one.holds for one in assign.roster] == [True] * 4
    (told,) = driver.told_of("shards_missing")
    assert told.message == (
        "no present worker has the shards 1/2 to 3/4 of step 5; the job falls back to step 3"
    )
    assert driver.cluster.job.steps_lost == 2
    assert driver.told_of("branch_left") == []
    assert len(driver.cluster.job.branches) == 1


def test_when_the_wait_is_over_it_says_whose_the_shards_were(driver: Any) -> None:
    number = lose_two(driver)
    driver.register("c", incarnation=2)
    driver.warmed("c", held=(at(number, 3, share("c"), "checkpoint"),))
    assert driver.cluster.run.generation == number
    driver.tick(70.0)
    assert driver.told("a", m.Assign)[-1].held_step == 3
    (told,) = driver.told_of("shards_missing")
    assert "1/2 to 3/4 of step 5, which b had; the job falls back to step 3" in told.message


def test_a_worker_that_has_not_gone_back_yet_is_no_liar(driver: Any) -> None:
    """The next generation breaks before all have read the checkpoint."""
    number = lose_two(driver)
    for name in "bc":
        driver.register(name, incarnation=2)
        driver.warmed(name, held=(at(number, 3, share(name), "checkpoint"),))
    second = driver.cluster.run.generation
    driver.lost("b", incarnation=2)
    froze(driver, "a", second, 5, at(number, 3, share("a"), "checkpoint"), by=number)
    froze(driver, "c", second, 3, by=number)
    froze(driver, "d", second, 3, by=number)
    assert "report_contradicted" not in driver.kinds()
    assign = driver.told("a", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (second + 1, 3)


def test_it_waits_for_holders_of_a_checkpoint_that_is_not_complete_without_them(
    driver: Any,
) -> None:
    number = lose_two(driver)
    for name in "ad":
        driver.lost(name)
    assert driver.cluster.job.checkpoint_holders == FOUR
    for name in "bc":
        driver.register(name, incarnation=2)
        driver.warmed(name, held=(at(number, 3, share(name), "checkpoint"),))
    assert "waiting for a, d" in driver.core.explain()
    driver.register("a", incarnation=2)
    driver.warmed("a", held=(at(number, 3, share("a"), "checkpoint"),))
    assert driver.cluster.run.generation == number  # d may still remember step 5
    driver.tick(70.0)
    assert driver.told("a", m.Assign)[-1].held_step == 3


def test_without_any_complete_state_it_begins_afresh(driver: Any) -> None:
    number = running(driver)
    driver.lost("b")
    driver.lost("c")
    for name in "ad":
        froze(driver, name, number, 0)
    assert "waiting for b, c: no present worker has the shards 1/2 to 3/4 of step 0" in (
        driver.core.explain()
    )
    driver.tick(70.0)
    assert [one.state for one in driver.told("a", m.Release)] == ["evicted"]
    assert "the job begins afresh: no present worker has the shards 1/2 to 3/4 of step 0" in (
        driver.told("a", m.Release)[0].reason
    )
    for name in "ad":
        driver.register(name, incarnation=2)
        driver.warmed(name)
    assign = driver.told("a", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (number + 1, 0)
    assert [one.holds for one in assign.roster] == [True, False]


def test_part_of_a_state_that_a_decision_names_is_not_enough_to_survive(driver: Any) -> None:
    """Later commits count, too: the survivors of an older generation have a hole."""
    number = running(driver)
    driver.commit(5)
    for name in "abcd":
        driver.lost(name)
    driver.back("a", generation=number, roster_id=driver.cluster.job.roster_id)
    froze(driver, "a", number, 4)
    assert "waiting for b, c, d" in driver.core.explain() or "at least 2" in driver.core.explain()


# --- links ---------------------------------------------------------------------------------------


def test_it_waits_for_a_link_rather_than_for_a_hole(driver: Any) -> None:
    """Two of three without a link have no place in one ring, and without mirrors both must."""
    three = ("a", "b", "c")
    driver.submit(strategy={"name": "sharded", "mirrors": 0})
    driver.warm_up(*three)
    number = driver.all_run(*three)
    driver.commit(5)
    for name, suspect, evidence in (("a", "b", "silent"), ("b", "a", "reset"), ("c", "a", "reset")):
        part = wire(held_shards(three.index(name), 3, 0))
        froze(driver, name, number, 5, part=part, suspect=suspect, evidence=evidence)
    assert driver.cluster.links.bad == {("a", "b")}
    assert driver.cluster.run.roster == []
    assert driver.core.explain() == "waiting for a working link between a and b"


# --- leaving -------------------------------------------------------------------------------------


def test_two_neighbours_that_leave_do_so_one_after_the_other(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    for name in "bc":
        driver.say(name, m.Leave(reason="stops"))
    for name in FOUR:
        froze(driver, name, number, 5)
    assert [one.state for one in driver.told("b", m.Release)] == ["left"]
    assert driver.told("c", m.Release) == []
    three = ("a", "c", "d")
    second = driver.all_run(*three)
    for name in three:
        froze(driver, name, second, 5, by=number, part=share(name, three))
    assert [one.state for one in driver.told("c", m.Release)] == ["left"]
    assert [one.name for one in driver.told("a", m.Assign)[-1].roster] == ["a", "d"]
    assert driver.cluster.job.steps_lost == 0


def test_without_mirrors_nobody_leaves_but_the_job_goes_on(driver: Any) -> None:
    running(driver, mirrors=0)
    driver.commit(5)
    driver.handle(DrainRequested(name="b"))
    assert driver.told("a", m.Freeze) == []
    assert "nobody else has its shards" in driver.cluster.workers["b"].reason


def test_a_worker_that_stays_for_its_shards_does_not_end_each_generation(driver: Any) -> None:
    number = running(driver, mirrors=0)
    driver.commit(5)
    driver.handle(DrainRequested(name="b"))
    for name in FOUR:
        froze(driver, name, number, 5, part=wire(held_shards(FOUR.index(name), 4, 0)))
    second = driver.all_run(*FOUR)
    assert second == number + 1
    assert [one.generation for one in driver.told("a", m.Freeze)] != [second]


# --- stuck ---------------------------------------------------------------------------------------


def stick(driver: Any, *names: str) -> None:
    for name in names:
        driver.beat(name, step=5, stalled_s=9.0, patience_s=5.0)


def test_a_stuck_member_restarts_if_the_others_have_its_shards(driver: Any) -> None:
    running(driver)
    driver.commit(5)
    stick(driver, "b")
    assert driver.state("b") == "lost"


def test_without_mirrors_a_stuck_member_is_kept(driver: Any) -> None:
    running(driver, mirrors=0)
    driver.commit(5)
    stick(driver, "b")
    assert driver.state("b") == "running"
    assert "no other worker that makes progress holds step 5" in driver.core.explain()


def test_of_a_generation_that_forms_each_counts_with_what_it_brought(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    driver.lost("d")
    for name in "abc":
        froze(driver, name, number, 5)
    stick(driver, "b")
    assert driver.state("b") == "lost"
