"""What one member says it holds, and all others say cannot be, is not started from."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.state_records import CoordinatorIdentity
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


def test_one_that_denies_a_step_which_another_has_committed_does_not_undo_it(desk: Any) -> None:
    """Who of the two lies nobody knows; the third has prepared the step, and goes on from it."""
    number = generation(desk, "a", "b", "c")
    desk.froze("c", generation=number, step=5)
    desk.froze("b", generation=number, step=5, prepared=(number, 6))
    desk.froze("a", generation=number, step=6)
    (told,) = desk.told_of("report_contradicted")
    assert told.worker == ""
    assert told.message.startswith("a has committed step 6, and c says")
    assert desk.disconnected == []
    (assign,) = desk.told("a", m.Assign)[1:]
    assert (assign.held_generation, assign.held_step) == (number, 6)
    assert [one.holds for one in assign.roster] == [True, True, False]
    assert desk.cluster.job.steps_lost == 0


def test_that_two_contradict_each_other_is_told_once(desk: Any) -> None:
    number = generation(desk, "a", "b", "c", "d", min_workers=4)
    desk.lost("d")
    desk.froze("c", generation=number, step=5)
    desk.froze("b", generation=number, step=5, prepared=(number, 6))
    desk.froze("a", generation=number, step=6)
    desk.tick(3.0)
    assert len(desk.told_of("report_contradicted")) == 1


def test_a_third_that_contradicts_both_starts_afresh(desk: Any) -> None:
    number = generation(desk, "a", "b", "c", "d")
    desk.froze("d", generation=number, step=9)
    desk.froze("c", generation=number, step=5)
    desk.froze("b", generation=number, step=5, prepared=(number, 6))
    desk.froze("a", generation=number, step=6)
    assert sorted(contradicted(desk)) == ["", "d"]
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


def at_start(desk: Any, **origin: Any) -> None:
    """A job that starts from another one."""
    job = desk.submit()
    for name, value in origin.items():
        setattr(job, name, value)


def parents(step: int, *, generation: int = 0, job: str = "parent") -> tuple[m.Held, ...]:
    return (m.Held(job=job, generation=generation, step=step, digest="x", where="checkpoint"),)


def test_another_jobs_checkpoint_is_another_matter(desk: Any) -> None:
    at_start(desk, from_job="parent", from_newest=50)
    desk.register("a")
    desk.warmed("a", held=parents(50))
    assert (contradicted(desk), desk.cluster.run.start_step) == ([], 50)


@pytest.mark.parametrize(
    ("origin", "claimed", "why"),
    [
        ({}, parents(50), "does not start from 'parent'"),
        ({"from_job": "parent"}, parents(50, job="other"), "does not start from 'other'"),
        ({"from_job": "parent", "from_step": 40}, parents(50), "starts from step 40"),
        ({"from_job": "parent", "from_mode": "weights"}, parents(10**9), "only weights"),
    ],
)
def test_a_job_does_not_begin_with_what_it_is_not_to_begin_with(
    desk: Any, origin: dict[str, Any], claimed: tuple[m.Held, ...], why: str
) -> None:
    at_start(desk, **origin)
    desk.register("a")
    desk.warmed("a", held=claimed)
    assert why in desk.told_of("report_contradicted")[-1].message
    assert desk.cluster.workers["a"].holdings.held.where == "none"


def test_a_job_that_has_begun_is_not_thrown_back_to_what_it_began_with(desk: Any) -> None:
    """Numbers of generations belong to all jobs, so that of another one may be the newest."""
    at_start(desk, from_job="parent", from_step=50)
    desk.register("a")
    desk.warmed("a", held=parents(50))
    desk.all_run("a")
    desk.cluster.run.generation += 5
    desk.register("b")
    desk.warmed("b", held=parents(50, generation=5))
    assert contradicted(desk) == ["b"]
    desk.register("c")
    desk.warmed("c", held=parents(50))
    assert contradicted(desk) == ["b"]


def claimed(generation: int, step: int, where: str = "checkpoint") -> m.Held:
    return m.Held(job="j-1", generation=generation, step=step, digest="x", where=where)


def in_its_second_generation(desk: Any) -> tuple[int, int]:
    """Of two workers: it began with step 5 of the first, which is over."""
    first = generation(desk, "a", "b")
    for name in "ab":
        desk.froze(name, generation=first, step=5)
    return first, desk.all_run("a", "b")


@pytest.mark.parametrize("step", [6, 9_000, 10**9])
def test_no_checkpoint_is_of_a_step_that_its_generation_never_committed(
    desk: Any, step: int
) -> None:
    """The others lose what they hold, and one says that its disk has more than there was."""
    first, second = in_its_second_generation(desk)
    desk.register("c")
    desk.warmed("c", held=(claimed(first, step),))
    for name in "ab":
        desk.lost(name)
        desk.register(name, incarnation=2)
    assert contradicted(desk) == ["c"]
    assert desk.cluster.workers["c"].holdings.held.where == "none"
    for name in "ab":
        desk.warmed(name, held=(claimed(first, 5),))
    assert (desk.cluster.run.generation, desk.cluster.run.start_step) == (second + 1, 5)
    assert (desk.cluster.job.step, desk.cluster.job.steps_lost) == (5, 0)


def test_what_the_job_has_left_behind_may_have_got_further(desk: Any) -> None:
    first, _ = in_its_second_generation(desk)
    desk.cluster.job.branches = ((first, 4, first + 1),)
    desk.register("c")
    desk.warmed("c", held=(claimed(first, 9_000),))
    assert contradicted(desk) == []


def test_nor_is_it_believed_when_it_leaves(desk: Any) -> None:
    first, second = in_its_second_generation(desk)
    desk.froze(
        "b",
        generation=second,
        step=9_000,
        held_generation=first,
        where="checkpoint",
    )
    assert contradicted(desk) == ["b"]
    assert desk.cluster.workers["b"].holdings.prepared == (0, 0)


def test_nothing_is_no_state_whatever_its_step(desk: Any) -> None:
    desk.submit()
    desk.register("a")
    desk.warmed("a", held=(claimed(0, 9_000, "none"),))
    assert desk.cluster.workers["a"].holdings.held.step == 0
    assert (contradicted(desk), desk.cluster.run.start_step) == ([], 0)


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
