"""What one member says it holds, and all others say cannot be, is not started from."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.core.membership.state_records import CoordinatorIdentity
from dtd.wire import messages as m


def generation(desk: Any, *names: str, step: int = 5, **elastic: Any) -> int:
    """One that has committed so many steps, as all members have told."""
    desk.submit(**elastic)
    number = int(desk.run_generation(*names))
    desk.commit(step)
    return number


def contradicted(desk: Any) -> list[str]:
    return [one.worker for one in desk.told_of("report_contradicted")]


@pytest.mark.parametrize("lie", [9_000, 1])
def test_one_of_three_that_claims_more_or_less_than_can_be_starts_afresh(
    desk: Any, lie: int
) -> None:
    number = generation(desk, "a", "b", "c")
    desk.froze("c", generation=number, step=lie, held_generation=number)
    desk.froze("a", generation=number, step=5, prepared=(number, 6))
    desk.froze("b", generation=number, step=6)
    assert contradicted(desk) == ["c"]
    assert [one.name for one in desk.disconnected] == ["c"]
    assert desk.told("c", m.Release)[-1].state == "evicted"
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["a", "b"], 6)
    assert desk.cluster.job.steps_lost == 0


def test_what_can_all_be_is_left_alone(desk: Any) -> None:
    number = generation(desk, "a", "b", "c")
    desk.froze("a", generation=number, step=6)
    desk.froze("b", generation=number, step=5, prepared=(number, 6))
    desk.froze("c", generation=number, step=6, prepared=(number, 7))
    assert contradicted(desk) == []
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["a", "b", "c"], 6)


def test_of_two_the_one_counts_that_claims_less_but_no_less_than_both_have_told(desk: Any) -> None:
    """Who lies of two cannot be told; what both have told of is kept."""
    number = generation(desk, "a", "b")
    desk.froze("a", generation=number, step=9_000)
    desk.froze("b", generation=number, step=5)
    assert contradicted(desk) == ["a"]
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b"], 5)


def test_of_two_one_that_forgets_what_it_has_told_does_not_throw_the_job_back(desk: Any) -> None:
    number = generation(desk, "a", "b")
    desk.froze("a", generation=number, step=1)
    desk.froze("b", generation=number, step=5)
    assert contradicted(desk) == ["a"]
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["b"], 5)


def test_who_was_contradicted_is_not_asked_again_what_it_holds(desk: Any) -> None:
    """It would keep the next generation from forming whenever it calls."""
    number = generation(desk, "a", "b", "c", min_workers=3)
    desk.froze("c", generation=number, step=9_000)
    for name in "ab":
        desk.froze(name, generation=number, step=5)
    roster_id = desk.cluster.job.roster_id
    desk.back("c", "frozen", generation=number, roster_id=roster_id)
    assert desk.told("c", m.Freeze) == []
    assert "contradict" in desk.told("c", m.Release)[-1].reason
    desk.register("c", incarnation=2)
    assert desk.state("c") == "warming"


def test_a_checkpoint_from_beyond_what_the_members_hold_is_not_started_from(desk: Any) -> None:
    number = generation(desk, "a", "b", "c")
    desk.lost("c")
    held = m.Held(job="j-1", generation=number, step=9_000, digest="x", where="checkpoint")
    desk.register("c", incarnation=2)
    desk.warmed("c", held=(held,))
    for name in "ab":
        desk.froze(name, generation=number, step=5)
    assert contradicted(desk) == ["c"]
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["a", "b", "c"], 5)
    assert [one.holds for one in desk.told("c", m.Assign)[-1].roster] == [True, True, False]


def test_a_checkpoint_of_a_generation_that_never_was_does_not_count(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.cluster.run.generation = 5  # other jobs have had numbers, too
    held = m.Held(job="j-1", generation=3, step=50, digest="x", where="checkpoint")
    desk.register("b")
    desk.warmed("b", held=(held,))
    assert contradicted(desk) == ["b"]
    assert desk.cluster.workers["b"].holdings.held.where == "none"


def test_a_restored_store_has_forgotten_generations_whose_checkpoints_count(make_desk: Any) -> None:
    """The operator has said that nobody trains any more, and then somebody comes with its disk."""
    desk = make_desk(identity=CoordinatorIdentity(version="", store_id="s", epoch=2))
    desk.submit()
    held = m.Held(job="j-1", generation=2, step=3, digest="x", where="checkpoint")
    desk.register("a")
    desk.warmed("a", held=(held,))
    assert (contradicted(desk), desk.cluster.run.start_step) == ([], 3)


def test_a_checkpoint_whose_digest_all_contradict_does_not_count(desk: Any) -> None:
    number = generation(desk, "a", "b")
    for name in "ab":
        desk.say(name, m.Agreed(job="j-1", generation=number, step=5, digest="d"))
    for digest, counts in (("d", True), ("forged", False)):
        held = m.Held(job="j-1", generation=number, step=5, digest=digest, where="checkpoint")
        desk.register(digest)
        desk.warmed(digest, held=(held,))
        assert (desk.cluster.workers[digest].holdings.held.where == "checkpoint") is counts
    assert contradicted(desk) == ["forged"]


def test_another_jobs_checkpoint_is_another_matter(desk: Any) -> None:
    desk.submit()
    held = m.Held(job="parent", generation=0, step=50, digest="x", where="checkpoint")
    desk.register("a")
    desk.warmed("a", held=(held,))
    assert (contradicted(desk), desk.cluster.run.start_step) == ([], 50)


def test_one_of_an_older_generation_holds_no_more_than_the_newest_began_with(desk: Any) -> None:
    number = generation(desk, "a", "b", "c")
    desk.lost("c")
    for name in "ab":
        desk.froze(name, generation=number, step=5)
    later = desk.all_run("a", "b")
    desk.back("c", generation=number)
    desk.froze("c", generation=number, step=9, held_generation=number)
    for name in "ab":
        desk.froze(name, generation=later, step=5, held_generation=number)
    assert contradicted(desk) == ["c"]
    assert (desk.cluster.run.roster, desk.cluster.run.start_step) == (["a", "b"], 5)
