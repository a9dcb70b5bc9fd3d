"""Jobs whose state is divided among the workers."""

from __future__ import annotations

from typing import Any

from dtd.cluster.events import CancelRequested, DrainRequested
from dtd.cluster.generation import checkpoints
from dtd.wire import messages as m
from tests.shards import held_shards
from tests.unit.cluster.sharded_job import (
    FOUR,
    THREE,
    at,
    finished,
    froze,
    running,
    saved,
    share,
    wire,
)

# --- jobs whose state is sharded: what they continue from, wait for, and save --------------------


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


# --- stuck ---------------------------------------------------------------------------------------


def stick(driver: Any, *names: str) -> None:
    for name in names:
        driver.beat(name, step=5, stalled_s=9.0, patience_s=5.0)


def test_of_a_generation_that_forms_each_counts_with_what_it_brought(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    driver.lost("d")
    for name in "abc":
        froze(driver, name, number, 5)
    stick(driver, "b")
    assert driver.state("b") == "lost"


# --- a sharded job that ends, and shards that nobody can have any more ---------------------------


def all_finished(driver: Any, **more: Any) -> int:
    number = running(driver, **more)
    for name in FOUR:
        finished(driver, name, number)
    return number


def saves(driver: Any) -> list[str]:
    return [one.name for one in driver.sent if isinstance(one.message, m.Save)]


def test_as_many_write_as_cover_the_state(driver: Any) -> None:
    number = all_finished(driver)
    assert saves(driver) == ["a", "c"]
    saved(driver, "a", (number, 10))
    assert driver.ended == []
    assert driver.core.explain() == "saving step 10: c writes it"
    saved(driver, "c", (number, 10))
    assert [job.state.value for job in driver.ended] == ["done"]
    job = driver.ended[0]
    assert (job.checkpoint_step, job.checkpoint_holders) == (10, ("a", "c"))
    assert set(checkpoints.parts_at(job, (number, 10))) == {"a", "c"}


def test_more_copies_than_there_are_mirrors_are_said_to_be_missing(driver: Any) -> None:
    number = all_finished(driver, copies=3)
    for name in FOUR:
        saved(driver, name, (number, 10))
    assert [job.state.value for job in driver.ended] == ["done"]
    (told,) = driver.told_of("copies_missing")
    assert "is on a, b, c, d alone; checkpoint.copies asks for 3" in told.message


def test_without_a_shard_of_the_result_the_end_is_trained_again(driver: Any) -> None:
    number = running(driver, mirrors=0)
    own = {name: wire(held_shards(rank, 4, 0)) for rank, name in enumerate(FOUR)}
    driver.commit(5)
    for name in FOUR:
        saved(driver, name, (number, 5), own[name])
    driver.commit(10)
    for name in "abc":
        driver.finished(name, generation=number, saved=False, part=own[name])
    driver.lost("d")
    assert driver.ended == []
    assert saves(driver) == []
    assert "waiting for d: no present worker has the shards 0 to 1/4 of step 10" in (
        driver.core.explain()
    )


def test_a_part_alone_is_no_checkpoint(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    saved(driver, "a", (number, 5))
    assert driver.cluster.job.checkpoint_step == 0
    saved(driver, "c", (number, 5))
    assert (driver.cluster.job.checkpoint_step, driver.cluster.job.checkpoint_holders) == (
        5,
        ("a", "c"),
    )
    before = len(driver.saved)
    saved(driver, "a", (number, 5))
    assert len(driver.saved) == before
    saved(driver, "b", (number, 5))
    assert driver.cluster.job.checkpoint_holders == ("a", "b", "c")
    saved(driver, "a", (number, 4))
    assert driver.cluster.job.checkpoint_step == 5


def test_a_cancelled_job_says_which_shards_are_not_saved(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    driver.lost("b")
    driver.lost("c")
    for name in "ad":
        froze(driver, name, number, 5)
    driver.handle(CancelRequested(job="j-1"))
    assert [job.state.value for job in driver.ended] == ["cancelled"]
    (told,) = driver.told_of("state_discarded")
    assert "no present worker has the shards 1/2 to 3/4 of step 5" in told.message


def test_a_part_that_nobody_can_write_is_named(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    driver.handle(CancelRequested(job="j-1"))
    for name in FOUR:
        froze(driver, name, number, 5)
    assert saves(driver) == ["a", "c"]
    saved(driver, "a", (number, 5))
    driver.handle(CancelRequested(job="j-1"))
    assert [job.state.value for job in driver.ended] == ["cancelled"]
    (told,) = driver.told_of("state_discarded")
    assert "the parts that a wrote lack the shards 1/2 to 1" in told.message


# --- what nobody can have ---


def agreed(driver: Any, name: str, key: tuple[int, int], digest: str) -> None:
    driver.say(name, m.Agreed(job="j-1", generation=key[0], step=key[1], digest=digest))


OF_FOUR, OF_THREE = 32 * "4", 32 * "3"
"""Digests of one state: what is hashed is cut for the ranks of a generation."""


def three_left(driver: Any) -> int:
    """Four ranks have agreed on step 5 and saved it, and three continue from it."""
    number = running(driver)
    driver.commit(5)
    for name in FOUR:
        agreed(driver, name, (number, 5), OF_FOUR)
        saved(driver, name, (number, 5), digest=OF_FOUR)
    driver.lost("b")
    for name in "acd":
        froze(driver, name, number, 5)
    driver.all_run(*THREE)
    return number


def test_a_state_has_another_digest_once_it_is_divided_among_others(driver: Any) -> None:
    key = (three_left(driver), 5)
    saved(
        driver, "a", key, share("a", THREE), digest=OF_THREE
    )  # before the others have told theirs
    for name in THREE:
        agreed(driver, name, key, OF_THREE)
    for name in "cd":
        saved(driver, name, key, share(name, THREE), digest=OF_THREE)
    assert "checkpoint_contradicted" not in driver.kinds()
    parts = checkpoints.parts_at(driver.cluster.job, key)
    assert {name: wire(parts[name]) for name in THREE} == {n: share(n, THREE) for n in THREE}
    confirmed = checkpoints.remembered(driver.cluster.job.agreed)
    for digest in (OF_FOUR, OF_THREE):
        assert checkpoints.verdict(confirmed, key, digest, sharded=True) == checkpoints.VERIFIED
    assert checkpoints.verdict(confirmed, key, "", sharded=True) == checkpoints.UNCONFIRMED
