"""A sharded job that ends, and shards that nobody can have any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dtd.cluster import checkpoints
from dtd.cluster.events import CancelRequested
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


def test_two_copies_are_written_by_all(driver: Any) -> None:
    number = all_finished(driver, copies=2)
    assert sorted(saves(driver)) == ["a", "b", "c", "d"]
    for name in "abc":
        saved(driver, name, (number, 10))
    assert driver.ended == []
    saved(driver, "d", (number, 10))
    assert [job.state.value for job in driver.ended] == ["done"]


def test_more_copies_than_there_are_mirrors_are_said_to_be_missing(driver: Any) -> None:
    number = all_finished(driver, copies=3)
    for name in FOUR:
        saved(driver, name, (number, 10))
    assert [job.state.value for job in driver.ended] == ["done"]
    (told,) = driver.told_of("copies_missing")
    assert "is on a, b, c, d alone; checkpoint.copies asks for 3" in told.message


def test_a_worker_that_is_to_write_and_is_lost_is_replaced(driver: Any) -> None:
    number = all_finished(driver)
    driver.lost("c")
    assert saves(driver) == ["a", "c", "b", "d"]
    for name in "abd":
        saved(driver, name, (number, 10))
    assert [job.state.value for job in driver.ended] == ["done"]


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


def test_a_part_that_was_saved_in_an_older_generation_counts_late(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    driver.lost("d")
    for name in "abc":
        froze(driver, name, number, 5)
    for name in "ac":
        saved(driver, name, (number, 5))
    assert driver.cluster.job.generation > number
    assert driver.cluster.job.checkpoint_step == 5


def test_parts_of_older_checkpoints_are_forgotten_and_those_of_one_worker_bounded(
    driver: Any,
) -> None:
    number = running(driver)
    driver.commit(50)
    for step in range(1, 21):
        saved(driver, "a", (number, step))
    assert len(driver.cluster.job.parts) == checkpoints.MAX_PARTS
    for name in FOUR:
        saved(driver, name, (number, 30))
    assert {one[:2] for one in driver.cluster.job.parts} == {(number, 30)}


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


def test_a_worker_that_provides_the_untrained_state_has_all_of_it(driver: Any) -> None:
    driver.submit(min_workers=2, strategy={"name": "sharded"})
    driver.warm_up("a", "b", "c")
    first = driver.cluster.run.generation
    driver.lost("b")
    froze(driver, "a", first, 0, part=())
    assert driver.cluster.workers["a"].holdings.held.part == ()
    assert "report_contradicted" not in driver.kinds()


def test_what_a_member_brought_is_not_known_to_a_coordinator_that_has_started(driver: Any) -> None:
    number = running(driver)
    driver.commit(5)
    worker = driver.cluster.workers["a"]
    worker.holdings.held = None
    driver.cluster.job.start_generation, driver.cluster.job.start_step = 0, 5
    froze(driver, "a", number, 5, by=0, part=())
    assert worker.holdings.held.part == ()


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


def test_a_worker_that_holds_parts_of_either_division_is_believed(driver: Any) -> None:
    number = three_left(driver)
    for name in THREE:
        agreed(driver, name, (number, 5), OF_THREE)
    for name, names, digest in (("a", THREE, OF_THREE), ("b", FOUR, OF_FOUR)):
        held = at(number, 5, share(name, names), "checkpoint")
        driver.register(name, incarnation=2)
        driver.warmed(name, held=(replace(held, digest=digest),))
        assert driver.cluster.workers[name].holdings.held.step == 5
    assert "report_contradicted" not in driver.kinds()


def test_nobody_dissents_who_has_the_digest_of_the_present_division(driver: Any) -> None:
    number = three_left(driver)
    driver.lost("c")
    for name in "ad":
        froze(driver, name, number + 1, 5, by=number, part=share(name, THREE))
    assert {driver.state(name) for name in "ad"} == {"forming"}
    assert "worker_expelled" not in driver.kinds()
