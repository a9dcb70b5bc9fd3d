"""Jobs whose state is sharded: what they continue from, wait for, and save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.core.engine.shards import ShardSet
from dtd.core.membership.events import CancelRequested, DrainRequested
from dtd.core.trust import vouching
from dtd.wire import messages as m
from tests.shards import held_shards

FOUR = ("a", "b", "c", "d")
THREE = ("a", "c", "d")


def wire(part: ShardSet) -> tuple[int, ...]:
    return tuple(part.to_wire())


def share(name: str, names: tuple[str, ...] = FOUR, mirrors: int = 1) -> tuple[int, ...]:
    return wire(held_shards(names.index(name), len(names), mirrors))


def at(
    generation: int, step: int, part: tuple[int, ...], where: str = "memory", job: str = "j-1"
) -> m.Held:
    return m.Held(job=job, generation=generation, step=step, digest="", where=where, part=part)


def running(desk: Any, *, mirrors: int = 1, **more: Any) -> int:
    """Four workers run a sharded job."""
    strategy = {"name": "sharded", "mirrors": mirrors}
    desk.submit(strategy=strategy, **{"min_workers": 2, **more})
    desk.warm_up(*FOUR)
    return int(desk.all_run(*FOUR))


def froze(desk: Any, name: str, number: int, step: int, *more: m.Held, **values: Any) -> None:
    """A member leaves with its share of what its generation has committed."""
    by = values.pop("by", number if step else 0)
    held = (at(by, step, values.pop("part", share(name))), *more)
    desk.froze(name, generation=number, step=step, held_generation=by, held=held, **values)


def saved(
    desk: Any,
    name: str,
    key: tuple[int, int],
    part: tuple[int, ...] | None = None,
    digest: str = "",
) -> None:
    desk.say(
        name,
        m.CheckpointSaved(
            job="j-1",
            generation=key[0],
            step=key[1],
            digest=digest,
            size_bytes=1,
            directory="",
            metrics={},
            kept=(),
            part=share(name) if part is None else part,
        ),
    )


def finished(desk: Any, name: str, number: int, step: int = 10) -> None:
    desk.finished(name, generation=number, step=step, saved=False, part=share(name))


def test_one_loss_costs_no_step(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("b")
    for name in "acd":
        froze(desk, name, number, 5)
    (assign,) = desk.told("a", m.Assign)[1:]
    assert (assign.held_generation, assign.held_step) == (number, 5)
    assert [one.name for one in assign.roster] == ["a", "c", "d"]
    assert all(one.holds for one in assign.roster)


def lose_two(desk: Any, *, on_disk: int = 3) -> int:
    """Two neighbours are lost after step 5; all had saved their parts of an earlier step."""
    number = running(desk)
    desk.commit(5)
    for name in FOUR:
        saved(desk, name, (number, on_disk))
    for name in "bc":
        desk.lost(name)
    for name in "ad":
        disk = at(number, on_disk, share(name), "checkpoint")
        froze(desk, name, number, 5, disk)
    return number


def test_the_job_waits_for_the_neighbours_and_says_what_they_have(desk: Any) -> None:
    lose_two(desk)
    assert desk.cluster.run.generation == 1
    assert "waiting for b, c: no present worker has the shards 1/2 to 3/4 of step 5" in (
        desk.core.explain()
    )
    assert "which b, c had; `dtdctl resume j-1` goes on without it" in desk.core.explain()


def test_the_last_step_alone_is_waited_for_too(desk: Any) -> None:
    """The checkpoint is of the step before, and all of it is there."""
    number = lose_two(desk, on_disk=4)
    desk.register("c", incarnation=2)
    desk.warmed("c", held=(at(number, 4, share("c"), "checkpoint"),))
    assert desk.cluster.run.generation == number
    assert "waiting for b: no present worker has the shards 1/2 to 3/4 of step 5" in (
        desk.core.explain()
    )


def test_a_step_that_only_one_who_has_left_has_told_of_is_waited_for_too(desk: Any) -> None:
    """It counts when two members tell of it, and the others are away, as is a shard of it."""
    number = running(desk)
    desk.commit(4)
    for name in FOUR:
        saved(desk, name, (number, 4))
    for name in "cd":
        desk.lost(name)
        desk.register(name, incarnation=2)
        desk.warmed(name, held=(at(number, 4, share(name), "checkpoint"),))
    desk.silence(desk.now + 20.0, "c", "d")
    desk.back("a", generation=number, roster_id=desk.cluster.job.roster_id)
    froze(desk, "a", number, 5, at(number, 4, share("a"), "checkpoint"))
    assert (desk.cluster.job.step, desk.cluster.run.generation) == (4, number)
    assert "no present worker has the shards" in desk.core.explain()
    desk.back("b", generation=number, roster_id=desk.cluster.job.roster_id)
    froze(desk, "b", number, 5)
    assert desk.told("a", m.Assign)[-1].held_step == 4  # b and a lack a shard of step 5


def test_it_goes_on_at_once_when_one_of_them_is_back_with_its_memory(desk: Any) -> None:
    number = lose_two(desk)
    desk.back("b", generation=number, roster_id=desk.cluster.job.roster_id)
    froze(desk, "b", number, 5)
    assert desk.told("a", m.Assign)[-1].held_step == 5
    assert "shards_missing" not in desk.kinds()


def test_else_it_falls_back_to_the_newest_complete_checkpoint_and_says_so(desk: Any) -> None:
    number = lose_two(desk)
    for name in "bc":
        desk.register(name, incarnation=2)
        desk.warmed(name, held=(at(number, 3, share(name), "checkpoint"),))
    assign = desk.told("a", m.Assign)[-1]
    assert (assign.held_generation, assign.held_step) == (number, 3)
    assert [one.holds for one in assign.roster] == [True] * 4
    (told,) = desk.told_of("shards_missing")
    assert told.message == (
        "no present worker has the shards 1/2 to 3/4 of step 5; the job falls back to step 3"
    )
    assert desk.cluster.job.steps_lost == 2
    assert desk.told_of("branch_left") == []
    assert len(desk.cluster.job.branches) == 1


def test_when_the_wait_is_over_it_says_whose_the_shards_were(desk: Any) -> None:
    number = lose_two(desk)
    desk.register("c", incarnation=2)
    desk.warmed("c", held=(at(number, 3, share("c"), "checkpoint"),))
    assert desk.cluster.run.generation == number
    desk.tick(70.0)
    assert desk.told("a", m.Assign)[-1].held_step == 3
    (told,) = desk.told_of("shards_missing")
    assert "1/2 to 3/4 of step 5, which b had; the job falls back to step 3" in told.message


def test_who_has_not_gone_back_yet_is_no_liar(desk: Any) -> None:
    """The next generation breaks before all have read the checkpoint."""
    number = lose_two(desk)
    for name in "bc":
        desk.register(name, incarnation=2)
        desk.warmed(name, held=(at(number, 3, share(name), "checkpoint"),))
    second = desk.cluster.run.generation
    desk.lost("b", incarnation=2)
    froze(desk, "a", second, 5, at(number, 3, share("a"), "checkpoint"), by=number)
    froze(desk, "c", second, 3, by=number)
    froze(desk, "d", second, 3, by=number)
    assert "report_contradicted" not in desk.kinds()
    assign = desk.told("a", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (second + 1, 3)


def test_it_waits_for_holders_of_a_checkpoint_that_is_not_complete_without_them(desk: Any) -> None:
    number = lose_two(desk)
    for name in "ad":
        desk.lost(name)
    assert desk.cluster.job.checkpoint_holders == FOUR
    for name in "bc":
        desk.register(name, incarnation=2)
        desk.warmed(name, held=(at(number, 3, share(name), "checkpoint"),))
    assert "waiting for a, d" in desk.core.explain()
    desk.register("a", incarnation=2)
    desk.warmed("a", held=(at(number, 3, share("a"), "checkpoint"),))
    assert desk.cluster.run.generation == number  # d may still remember step 5
    desk.tick(70.0)
    assert desk.told("a", m.Assign)[-1].held_step == 3


def test_without_any_complete_state_it_begins_afresh(desk: Any) -> None:
    number = running(desk)
    desk.lost("b")
    desk.lost("c")
    for name in "ad":
        froze(desk, name, number, 0)
    assert "waiting for b, c: no present worker has the shards 1/2 to 3/4 of step 0" in (
        desk.core.explain()
    )
    desk.tick(70.0)
    assert [one.state for one in desk.told("a", m.Release)] == ["evicted"]
    assert "the job begins afresh: no present worker has the shards 1/2 to 3/4 of step 0" in (
        desk.told("a", m.Release)[0].reason
    )
    for name in "ad":
        desk.register(name, incarnation=2)
        desk.warmed(name)
    assign = desk.told("a", m.Assign)[-1]
    assert (assign.generation, assign.held_step) == (number + 1, 0)
    assert [one.holds for one in assign.roster] == [True, False]


def test_part_of_a_state_that_a_decision_names_is_not_enough_to_survive(desk: Any) -> None:
    """What was committed since counts, too: the survivors of an older generation have a hole."""
    number = running(desk)
    desk.commit(5)
    for name in "abcd":
        desk.lost(name)
    desk.back("a", generation=number, roster_id=desk.cluster.job.roster_id)
    froze(desk, "a", number, 4)
    assert "waiting for b, c, d" in desk.core.explain() or "at least 2" in desk.core.explain()


# --- links ---------------------------------------------------------------------------------------


def test_it_waits_for_a_link_rather_than_for_a_hole(desk: Any) -> None:
    """Of three, two without a link have no place in one ring, and without mirrors both must."""
    three = ("a", "b", "c")
    desk.submit(strategy={"name": "sharded", "mirrors": 0})
    desk.warm_up(*three)
    number = desk.all_run(*three)
    desk.commit(5)
    for name, suspect, evidence in (("a", "b", "silent"), ("b", "a", "reset"), ("c", "a", "reset")):
        part = wire(held_shards(three.index(name), 3, 0))
        froze(desk, name, number, 5, part=part, suspect=suspect, evidence=evidence)
    assert desk.cluster.isolation.links.bad == {("a", "b")}
    assert desk.cluster.run.roster == []
    assert desk.core.explain() == "waiting for a working link between a and b"


# --- leaving -------------------------------------------------------------------------------------


def test_two_neighbours_that_leave_do_so_one_after_the_other(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    for name in "bc":
        desk.say(name, m.Leave(reason="stops"))
    for name in FOUR:
        froze(desk, name, number, 5)
    assert [one.state for one in desk.told("b", m.Release)] == ["left"]
    assert desk.told("c", m.Release) == []
    three = ("a", "c", "d")
    second = desk.all_run(*three)
    for name in three:
        froze(desk, name, second, 5, by=number, part=share(name, three))
    assert [one.state for one in desk.told("c", m.Release)] == ["left"]
    assert [one.name for one in desk.told("a", m.Assign)[-1].roster] == ["a", "d"]
    assert desk.cluster.job.steps_lost == 0


def test_without_mirrors_nobody_leaves_but_the_job_goes_on(desk: Any) -> None:
    running(desk, mirrors=0)
    desk.commit(5)
    desk.handle(DrainRequested(name="b"))
    assert desk.told("a", m.Freeze) == []
    assert "nobody else has its shards" in desk.cluster.workers["b"].reason


def test_who_stays_for_its_shards_does_not_end_each_generation(desk: Any) -> None:
    number = running(desk, mirrors=0)
    desk.commit(5)
    desk.handle(DrainRequested(name="b"))
    for name in FOUR:
        froze(desk, name, number, 5, part=wire(held_shards(FOUR.index(name), 4, 0)))
    second = desk.all_run(*FOUR)
    assert second == number + 1
    assert [one.generation for one in desk.told("a", m.Freeze)] != [second]


# --- stuck ---------------------------------------------------------------------------------------


def stick(desk: Any, *names: str) -> None:
    for name in names:
        desk.beat(name, step=5, stalled_s=9.0, patience_s=5.0)


def test_a_stuck_member_restarts_if_the_others_have_its_shards(desk: Any) -> None:
    running(desk)
    desk.commit(5)
    stick(desk, "b")
    assert desk.state("b") == "lost"


def test_without_mirrors_a_stuck_member_is_kept(desk: Any) -> None:
    running(desk, mirrors=0)
    desk.commit(5)
    stick(desk, "b")
    assert desk.state("b") == "running"
    assert "no other worker that makes progress holds step 5" in desk.core.explain()


def test_of_a_generation_that_forms_each_counts_with_what_it_brought(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("d")
    for name in "abc":
        froze(desk, name, number, 5)
    stick(desk, "b")
    assert desk.state("b") == "lost"


# --- saving --------------------------------------------------------------------------------------


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
    assert set(vouching.parts_at(job, (number, 10))) == {"a", "c"}


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
    assert len(desk.cluster.job.parts) == vouching.MAX_CLAIMS
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


# --- what nobody can have ------------------------------------------------------------------------


def test_a_member_cannot_claim_more_than_its_rank_has(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("b")
    desk.lost("c")
    froze(desk, "a", number, 5, part=())
    froze(desk, "d", number, 5, prepared=(number, 6))
    assert desk.cluster.run.generation == number
    (told,) = desk.told_of("report_contradicted")
    assert told.message == (
        "a claims the shards all of step 5, of which it can have 0 to 1/2: only those count"
    )
    assert desk.cluster.workers["a"].holdings.prepared == (number, 5)


def test_who_has_not_run_yet_has_what_it_brought_and_what_it_was_assigned(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("d")
    three = ("a", "b", "c")
    for name in three:
        froze(desk, name, number, 5)
    second = desk.cluster.run.generation
    held = desk.cluster.workers["a"].holdings
    froze(desk, "a", second, 5, by=number, part=())
    assert held.held.part == wire(
        ShardSet.from_wire(share("a")) | ShardSet.from_wire(share("a", three))
    )


def test_a_member_without_a_share_of_an_older_state_cannot_claim_one(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.lost("d")
    for name in "abc":
        froze(desk, name, number, 5)
    second = desk.cluster.run.generation
    froze(desk, "a", second, 4, by=number, prepared=(number, 5))
    assert desk.cluster.workers["a"].holdings.held.where == "none"
    assert desk.cluster.workers["a"].holdings.prepared == (0, 0)


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


def test_what_a_worker_has_saved_is_limited_by_its_rank(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    saved(desk, "a", (number, 5), part=())
    assert desk.cluster.job.checkpoint_step == 0
    assert vouching.parts_at(desk.cluster.job, (number, 5)) == {"a": ShardSet.from_wire(share("a"))}
    saved(desk, "b", (number, 5), part=share("d"))
    assert set(vouching.parts_at(desk.cluster.job, (number, 5))) == {"a"}


def test_a_part_of_a_state_that_is_not_sharded_is_nothing(desk: Any) -> None:
    desk.submit(min_workers=1)
    desk.register("a")
    desk.warmed("a", held=(at(0, 5, (0, 1, 1, 2), "checkpoint"), at(0, 3, (), "checkpoint")))
    (told,) = desk.told_of("report_contradicted")
    assert "a claims the shards 0 to 1/2 of step 5, of which it can have nothing" in told.message
    assert desk.told("a", m.Assign)[-1].held_step == 0
    assert desk.cluster.workers["a"].holdings.saved == ()


@pytest.mark.parametrize(
    ("claim", "counts"),
    [
        (at(1, 3, share("a"), "checkpoint"), True),
        (at(1, 0, share("a"), "checkpoint"), False),
        (at(1, 3, share("a"), "checkpoint", "j-0"), False),
        (at(0, 0, (), "none"), False),
    ],
)
def test_only_checkpoints_that_it_can_have_count(desk: Any, claim: m.Held, counts: bool) -> None:
    running(desk)
    desk.commit(5)
    desk.register("e")
    desk.warmed("e", held=(at(1, 4, share("b"), "checkpoint"), claim))
    assert desk.cluster.workers["e"].holdings.saved == ((claim,) if counts else ())
    assert desk.disconnected == []


def test_a_checkpoint_that_the_members_had_not_got_to_does_not_count(desk: Any) -> None:
    number = running(desk)
    desk.commit(5)
    desk.register("e")
    beyond = at(number, 9, share("b"), "checkpoint")
    desk.warmed("e", held=(at(number, 3, share("a"), "checkpoint"), beyond))
    for name in FOUR:
        froze(desk, name, number, 5)
    assert desk.cluster.workers["e"].holdings.saved == ()


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
        froze(desk, name, number, 5, digest=OF_FOUR)
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
    parts = vouching.parts_at(desk.cluster.job, key)
    assert {name: wire(parts[name]) for name in THREE} == {n: share(n, THREE) for n in THREE}
    confirmed = vouching.remembered(desk.cluster.job.agreed)
    for digest in (OF_FOUR, OF_THREE):
        assert vouching.verdict(confirmed, key, digest, sharded=True) == vouching.VERIFIED
    assert vouching.verdict(confirmed, key, "", sharded=True) == vouching.UNCONFIRMED


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
        froze(desk, name, number + 1, 5, by=number, part=share(name, THREE), digest=OF_THREE)
    assert {desk.state(name) for name in "ad"} == {"forming"}
    assert "worker_expelled" not in desk.kinds()
    print(desk.kinds())
