"""The judge itself: every rule is broken here once, and noticed."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dtd.core.books import GenerationState
from dtd.core.membership_events import Job, JobState
from dtd.sim.oracle import Broken, Oracle
from dtd.sim.replica import State, after_commit, expected, fresh
from dtd.wire import messages as m


def an_assign(generation: int = 1, *, start: int = 0, ranks: int = 2) -> m.Assign:
    roster = tuple(
        m.Member(name=f"w-{rank}", incarnation=rank, host="h", port=1) for rank in range(ranks)
    )
    return m.Assign(
        job="j",
        generation=generation,
        roster_id=generation,
        rank=0,
        roster=roster,
        source_rank=0,
        held_generation=generation - 1,
        held_step=start,
    )


def state(generation: int, step: int) -> State:
    """An honest state, all of whose steps one generation has committed."""
    made = fresh("j")
    for _ in range(step):
        made = after_commit(made, generation)
    return replace(made, generation=generation)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(remembered=lambda job: {"w-0": 0}, saved=lambda job: 3)


def running(oracle: Oracle, assign: m.Assign) -> m.Assign:
    oracle.joined(assign)
    return assign


def test_frame_of_another_roster(oracle: Oracle) -> None:
    oracle.accepted(1, 1)
    with pytest.raises(Broken, match="another roster"):
        oracle.accepted(1, 2)


@pytest.mark.parametrize("bucket", [[7, 6], [7, 8], [0]])
def test_missing_or_repeated_contribution(oracle: Oracle, bucket: list[int]) -> None:
    oracle.summed(3, [7, 7])
    with pytest.raises(Broken, match="missing or counted twice"):
        oracle.summed(3, bucket)


def test_two_rosters_with_one_number(oracle: Oracle) -> None:
    oracle.assigned(an_assign(), (0, 0), "data")
    with pytest.raises(Broken, match="two rosters"):
        oracle.assigned(replace(an_assign(), roster_id=9), (0, 0), "data")


def test_different_data_in_one_roster(oracle: Oracle) -> None:
    oracle.assigned(an_assign(), (0, 0), "data")
    with pytest.raises(Broken, match="different data"):
        oracle.assigned(an_assign(), (0, 0), "other")


def test_old_start_although_a_member_has_a_newer_state(oracle: Oracle) -> None:
    with pytest.raises(Broken, match="a member has a newer one"):
        oracle.assigned(an_assign(), (1, 0), "data")


def test_old_start_although_somebody_alive_is_further() -> None:
    oracle = Oracle(remembered=lambda job: {"w-9": 4}, saved=lambda job: 0)
    oracle.assigned(an_assign(start=3), (0, 0), "data")
    with pytest.raises(Broken, match="a living worker remembers"):
        oracle.assigned(an_assign(2, start=2), (0, 0), "data")
    oracle.joined(an_assign(9))
    oracle.assigned(an_assign(3, start=2), (0, 0), "data")


def test_start_from_another_state(oracle: Oracle) -> None:
    oracle.adopted(an_assign(), fresh("j"))
    with pytest.raises(Broken, match="another state than it was told"):
        oracle.adopted(an_assign(2, start=1), state(1, 2))


def test_state_that_is_not_what_its_step_says(oracle: Oracle) -> None:
    assign = running(oracle, an_assign())
    oracle.committed(assign, state(1, 1))
    with pytest.raises(Broken, match="not what its step says"):
        oracle.committed(assign, replace(state(1, 1), step=2))


def test_two_lineages_of_one_step(oracle: Oracle) -> None:
    assign = running(oracle, an_assign())
    oracle.committed(assign, state(1, 1))
    with pytest.raises(Broken, match="two states have one generation and step"):
        oracle.committed(assign, replace(state(1, 1), lineage="another"))


def test_rank_that_is_two_steps_ahead(oracle: Oracle) -> None:
    assign = running(oracle, an_assign())
    oracle.committed(assign, state(1, 1))
    with pytest.raises(Broken, match="two steps ahead"):
        oracle.committed(assign, state(1, 2))


def test_fenced_generation_that_goes_on(oracle: Oracle) -> None:
    old = running(oracle, an_assign(1, ranks=1))
    oracle.committed(old, state(1, 1))
    running(oracle, an_assign(2, start=1))
    oracle.committed(old, state(1, 2))
    with pytest.raises(Broken, match="a fenced generation goes on"):
        oracle.committed(old, state(1, 3))


def core(**more: Any) -> Any:
    """A core that says what the test wants."""
    books = SimpleNamespace(
        job=object(), generation_state=GenerationState.NONE, members=lambda: more.get("members", [])
    )
    return SimpleNamespace(
        books=books,
        check_invariants=lambda: None,
        explain=lambda: more.get("explain", "why"),
        next_deadline=lambda now: more.get("deadline"),
        state=None,
    )


@pytest.mark.parametrize(
    ("judge", "rule"),
    [
        (lambda o: o.membership(core(explain=""), 1.0), "does not say for what"),
        (lambda o: o.membership(core(deadline=1.0), 1.0), "asked for again"),
        (lambda o: o.membership(core(members=["w"]), 1.0), "nobody looks at the clock"),
        (lambda o: o.member("w", core(explain="")), "a member waits"),
        (lambda o: [o.ring(core(explain="")) for _ in range(16)], "a ring does not say"),
    ],
)
def test_core_that_is_silent_or_forgets_the_clock(
    oracle: Oracle, judge: Callable[[Oracle], None], rule: str
) -> None:
    with pytest.raises(Broken, match=rule):
        judge(oracle)


def done(job: str = "j", **more: Any) -> Job:
    values: dict[str, Any] = {"step": 3, "total_steps": 3, **more}
    digests = {"w": values.pop("digest", expected(job, values["step"]))}
    return Job(id=job, spec={}, state=JobState.DONE, result={"replica_digests": digests}, **values)


def test_honest_end(oracle: Oracle) -> None:
    oracle.ended(done())
    assert oracle.ended_jobs["j"].step == 3
    with pytest.raises(Broken, match="ends twice"):
        oracle.ended(done())


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (done(total_steps=4), "before its last step"),
        (done(step=2, total_steps=2), "no disk has the result"),
        (done(digest="other"), "differ from an honest one"),
    ],
)
def test_dishonest_end(oracle: Oracle, job: Job, rule: str) -> None:
    with pytest.raises(Broken, match=rule):
        oracle.ended(job)
