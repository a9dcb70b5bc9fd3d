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


def all_finished(desk: Any, **more: Any) -> int:
    number = running(desk, **more)
    for name in FOUR:
        finished(desk, name, number)
    return number


def saves(desk: Any) -> list[str]:
    return [one.name for one in desk.sent if isinstance(one.message, m.Save)]


def test_as_many_write_as_cover_the_state(desk: Any) -> None:
    number = all_finished(desk)
    assert saves(desk) == ["a", "c"]
    saved(desk, "a", (number, 10))
    assert desk.ended == []
    assert desk.core.explain() == "saving step 10: c writes it"
    saved(desk, "c", (number, 10))
    assert [job.state.value for job in desk.ended] == ["done"]
    job = desk.ended[0]
    assert (job.checkpoint_step, job.checkpoint_holders) == (10, ("a", "c"))
    assert set(checkpoints.parts_at(job, (number, 10))) == {"a", "c"}


def test_two_copies_are_written_by_all(desk: Any) -> None:
    number = all_finished(desk, copies=2)
    assert sorted(saves(desk)) == ["a", "b", "c", "d"]
    for name in "abc":
        saved(desk, name, (number, 10))
    assert desk.ended == []
    saved(desk, "d", (number, 10))
    assert [job.state.value for job in desk.ended] == ["done"]


def test_more_copies_than_there_are_mirrors_are_said_to_be_missing(desk: Any) -> None:
    number = all_finished(desk, copies=3)
    for name in FOUR:
        saved(desk, name, (number, 10))
    assert [job.state.value for job in desk.ended] == ["done"]
    (told,) = desk.told_of("copies_missing")
    assert "is on a, b, c, d alone; checkpoint.copies asks for 3" in told.message


def test_who_is_to_write_and_is_lost_is_replaced(desk: Any) -> None:
    number = all_finished(desk)
    desk.lost("c")
    assert saves(desk) == ["a", "c", "b", "d"]
    for name in "abd":
        saved(desk, name, (number, 10))
    assert [job.state.value for job in desk.ended] == ["done"]


def test_without_a_shard_of_the_result_the_end_is_trained_again(desk: Any) -> None:
    number = running(desk, mirrors=0)
    own = {name: wire(held_shards(rank, 4, 0)) for rank, name in enumerate(FOUR)}
    desk.commit(5)
    for name in FOUR:
        saved(desk, name, (number, 5), own[name])
    desk.commit(10)
    for name in "abc":
        desk.finished(name, generation=number, saved=False, part=own[name])
    desk.lost("d")
    assert desk.ended == []
    assert saves(desk) == []
    assert "waiting for d: no present worker has the shards 0 to 1/4 of step 10" in (
        desk.core.explain()
    )


def test_a_part_alone_is_no_checkpoint(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    saved(desk, "a", (number, 5))
    assert desk.cluster.job.checkpoint_step == 0
    saved(desk, "c", (number, 5))
    assert (desk.cluster.job.checkpoint_step, desk.cluster.job.checkpoint_holders) == (
        5,
        ("a", "c"),
    )
    before = len(desk.saved)
    saved(desk, "a", (number, 5))
    assert len(desk.saved) == before
    saved(desk, "b", (number, 5))
    assert desk.cluster.job.checkpoint_holders == ("a", "b", "c")
    saved(desk, "a", (number, 4))
    assert desk.cluster.job.checkpoint_step == 5


def test_a_part_that_was_saved_in_an_older_generation_counts_late(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("d")
    for name in "abc":
        froze(desk, name, number, 5)
    for name in "ac":
        saved(desk, name, (number, 5))
    assert desk.cluster.job.generation > number
    assert desk.cluster.job.checkpoint_step == 5


def test_parts_of_older_checkpoints_are_forgotten_and_those_of_one_worker_bounded(
    desk: Any,
) -> None:
    number = running(desk)
    desk.commit(50)
    for step in range(1, 21):
        saved(desk, "a", (number, step))
    assert len(desk.cluster.job.parts) == checkpoints.MAX_PARTS
    for name in FOUR:
        saved(desk, name, (number, 30))
    assert {one[:2] for one in desk.cluster.job.parts} == {(number, 30)}


def test_a_cancelled_job_says_which_shards_are_not_saved(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("b")
    desk.lost("c")
    for name in "ad":
        froze(desk, name, number, 5)
    desk.handle(CancelRequested(job="j-1"))
    assert [job.state.value for job in desk.ended] == ["cancelled"]
    (told,) = desk.told_of("state_discarded")
    assert "no present worker has the shards 1/2 to 3/4 of step 5" in told.message


def test_a_part_that_nobody_can_write_is_named(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.handle(CancelRequested(job="j-1"))
    for name in FOUR:
        froze(desk, name, number, 5)
    assert saves(desk) == ["a", "c"]
    saved(desk, "a", (number, 5))
    desk.handle(CancelRequested(job="j-1"))
    assert [job.state.value for job in desk.ended] == ["cancelled"]
    (told,) = desk.told_of("state_discarded")
    assert "the parts that a wrote lack the shards 1/2 to 1" in told.message


# --- what nobody can have ---


def test_who_provides_the_untrained_state_has_all_of_it(desk: Any) -> None:
    desk.submit(min_workers=2, strategy={"name": "sharded"})
    desk.warm_up("a", "b", "c")
    first = desk.cluster.run.generation
    desk.lost("b")
    froze(desk, "a", first, 0, part=())
    assert desk.cluster.workers["a"].holdings.held.part == ()
    assert "report_contradicted" not in desk.kinds()


def test_what_a_member_brought_is_not_known_to_a_coordinator_that_has_started(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    worker = desk.cluster.workers["a"]
    worker.holdings.held = None
    desk.cluster.job.start_generation, desk.cluster.job.start_step = 0, 5
    froze(desk, "a", number, 5, by=0, part=())
    assert worker.holdings.held.part == ()


def agreed(desk: Any, name: str, key: tuple[int, int], digest: str) -> None:
    desk.say(name, m.Agreed(job="j-1", generation=key[0], step=key[1], digest=digest))


OF_FOUR, OF_THREE = 32 * "4", 32 * "3"
"""Digests of one state: what is hashed is cut for the ranks of a generation."""


def three_left(desk: Any) -> int:
    """Four ranks have agreed on step 5 and saved it, and three continue from it."""
    number = running(desk)
    desk.commit(5)
    for name in FOUR:
        agreed(desk, name, (number, 5), OF_FOUR)
        saved(desk, name, (number, 5), digest=OF_FOUR)
    desk.lost("b")
    for name in "acd":
        froze(desk, name, number, 5)
    desk.all_run(*THREE)
    return number


def test_a_state_has_another_digest_once_it_is_divided_among_others(desk: Any) -> None:
    key = (three_left(desk), 5)
    saved(desk, "a", key, share("a", THREE), digest=OF_THREE)  # before the others have told theirs
    for name in THREE:
        agreed(desk, name, key, OF_THREE)
    for name in "cd":
        saved(desk, name, key, share(name, THREE), digest=OF_THREE)
    assert "checkpoint_contradicted" not in desk.kinds()
    parts = checkpoints.parts_at(desk.cluster.job, key)
    assert {name: wire(parts[name]) for name in THREE} == {n: share(n, THREE) for n in THREE}
    confirmed = checkpoints.remembered(desk.cluster.job.agreed)
    for digest in (OF_FOUR, OF_THREE):
        assert checkpoints.verdict(confirmed, key, digest, sharded=True) == checkpoints.VERIFIED
    assert checkpoints.verdict(confirmed, key, "", sharded=True) == checkpoints.UNCONFIRMED


def test_whoever_holds_parts_of_either_division_is_believed(desk: Any) -> None:
    number = three_left(desk)
    for name in THREE:
        agreed(desk, name, (number, 5), OF_THREE)
    for name, names, digest in (("a", THREE, OF_THREE), ("b", FOUR, OF_FOUR)):
        held = at(number, 5, share(name, names), "checkpoint")
        desk.register(name, incarnation=2)
        desk.warmed(name, held=(replace(held, digest=digest),))
        assert desk.cluster.workers[name].holdings.held.step == 5
    assert "report_contradicted" not in desk.kinds()


def test_nobody_dissents_who_has_the_digest_of_the_present_division(desk: Any) -> None:
    number = three_left(desk)
    desk.lost("c")
    for name in "ad":
        froze(desk, name, number + 1, 5, by=number, part=share(name, THREE))
    assert {desk.state(name) for name in "ad"} == {"forming"}
    assert "worker_expelled" not in desk.kinds()
