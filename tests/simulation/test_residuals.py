"""A rank's local state: every rule about it is broken here once, and noticed."""

from dataclasses import replace

import pytest

from dtd.strategy.codec.api import ResidualHandoff
from dtd.wire import messages as m
from tests.sim import rows
from tests.sim.cluster import Cluster
from tests.sim.oracle import Broken
from tests.sim.phases import ALL_GATHER, COMMITTED, Phase
from tests.sim.replica import State, after_commit, fresh
from tests.sim.residuals import Residuals, add, given, part_of, taken, value, zero


def an_assign(rank: int = 0, generation: int = 1) -> m.Assign:
    roster = tuple(
        m.Member(name=f"w-{one}", incarnation=one, host="h", port=1, holds=True) for one in range(3)
    )
    return m.Assign(
        job="j",
        generation=generation,
        roster_id=generation,
        rank=rank,
        roster=roster,
        held_generation=0,
        held_step=0,
    )


def first_step() -> tuple[State, float]:
    """The state after it, and what rank 0 has not sent then."""
    start = fresh("j")
    state = after_commit(start, 1, rows.expected(start.data, 0))
    return state, part_of(rows.share(start.data, 0, rank=0, world_size=3))


@pytest.fixture
def judge() -> Residuals:
    """Three ranks have begun with a fresh state."""
    judge = Residuals()
    for rank in range(3):
        judge.begins(f"w-{rank}", "j")
        judge.adopted(an_assign(rank), fresh("j"), 0.0)
    return judge


def test_residual_that_was_not_rolled_back(judge: Residuals) -> None:
    state, held = first_step()
    judge.computed("w-0", "j", 0.0)
    with pytest.raises(Broken, match="another residual than of before"):
        judge.computed("w-0", "j", held)
    with pytest.raises(Broken, match="does not follow from what was committed"):
        judge.committed("w-0", state, 2 * held)


def test_residual_of_another_rank_or_of_no_commit(judge: Residuals) -> None:
    state, held = first_step()
    judge.committed("w-0", state, held)
    with pytest.raises(Broken, match="does not follow from what was committed"):
        judge.committed("w-1", state, held)


def test_residual_that_outlives_its_state(judge: Residuals) -> None:
    state, held = first_step()
    judge.committed("w-0", state, held)
    judge.adopted(an_assign(generation=2), state, held)
    other = replace(state, generation=2)
    with pytest.raises(Broken, match="another residual than is right"):
        judge.adopted(an_assign(generation=3), other, held)
    judge.adopted(an_assign(generation=3), other, 0.0)
    judge.forgets("w-1", "j")
    with pytest.raises(Broken, match="another residual than is right"):
        judge.adopted(an_assign(1, generation=3), fresh("j"), 1.0)


def test_residual_that_is_not_handed_on(judge: Residuals) -> None:
    state, held = first_step()
    judge.committed("w-0", state, held)
    for rank in range(3):
        judge.gives(an_assign(rank), leaves=rank == 0)
    judge.handed_on(an_assign(0), 0.0)
    judge.handed_on(an_assign(1), held / 2)
    with pytest.raises(Broken, match="a leaver had not sent is lost"):
        judge.handed_on(an_assign(2), 0.0)


def test_what_is_handed_on_is_shared_by_those_that_stay() -> None:
    own = [zero() for _ in range(3)]
    for residual, share in zip(own, (900, 8, 9), strict=True):
        add(residual, share)
        residual.commit()
    exchanges = [ResidualHandoff([one], leaves=rank == 0) for rank, one in enumerate(own)]
    sums = [sum(column) for column in zip(*map(given, exchanges), strict=True)]
    for one in exchanges:
        taken(one, sums)
    assert [value(one) for one in own] == [0.0, 9 + 450.5, 10 + 450.5]


def local_steps(seed: int = 1, *, inner_steps: int = 4) -> Cluster:
    """Three workers, 22 steps in rounds: the last one has two."""
    strategy = {"name": "diloco", "inner_steps": inner_steps}
    return Cluster(seed, workers=3).submit(
        steps=22, buckets=(40, 7), checkpoint_every=6, evaluate_every=5, strategy=strategy
    )


def test_round_is_committed_as_a_whole() -> None:
    cluster = local_steps().run()
    assert [cluster.succeeded(), cluster.job().step] == [True, 22]
    assert cluster.oracle.commits == 3 * 6


@pytest.mark.parametrize("phase", [Phase.FORWARD, ALL_GATHER, Phase.CONTROL_WORD, COMMITTED])
def test_crash_in_a_round_costs_no_committed_step(phase: Phase) -> None:
    cluster = local_steps().crash(rank=1, back_after_s=0.1).at(step=10, phase=phase).run()
    assert any("* crash" in line for line in cluster.story)
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]


def test_leaver_hands_on() -> None:
    cluster = Cluster(3, workers=3).submit(steps=12, hands_on=True)
    cluster.when("drain", name="worker-2").at(step=5, phase=COMMITTED).run()
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]
    assert cluster.oracle.residuals.handed == 3
