"""Sharded state in simulation: one loss costs no step, and two neighbours cost a few.

`python -m tests.sim --shards --seeds 0:2000` runs many random plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dtd.cluster.records import Job
from dtd.engine.digests import Shared, Tally
from dtd.engine.shards import ShardSet
from dtd.wire import messages as m
from tests.sim import many, regroup, shard_rules, shards
from tests.sim.cluster import Cluster
from tests.sim.lineage import Lineage, Memory
from tests.sim.oracle import Broken
from tests.sim.phases import BACKWARD, CONTROL_WORD, REGROUP, Phase
from tests.sim.replica import State, fresh
from tests.sim.shard_rules import ShardRules

SEEDS = 20
SEEDS_AT_A_TIME = 10
HALF = ShardSet.segments([0], 2)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_A_TIME))
def test_no_rule_is_broken(first: int) -> None:
    seeds = range(first, first + SEEDS_AT_A_TIME)
    played = many.play_all(seeds, jobs=1, sharded=True)
    assert not [f"{one.seed}: {one.failure}" for one in played if one.failure]


def four(seed: int = 7, *, mirrors: int = 1, every: int = 4, steps: int = 12) -> Cluster:
    """Four workers and a sharded job, with checkpoints."""
    strategy = {"name": "sharded", "mirrors": mirrors}
    return Cluster(seed, workers=4).submit(
        steps=steps, strategy=strategy, checkpoint_every=every, min_workers=2
    )


def told(cluster: Cluster, what: str) -> list[str]:
    return [line for line in cluster.story if what in line]


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("phase", [BACKWARD, CONTROL_WORD, Phase.OPTIMIZER, Phase.COMMITTED])
def test_one_loss_costs_no_step(rank: int, phase: Phase) -> None:
    cluster = four().crash(rank=rank, back_after_s=1.0).at(step=6, phase=phase).run()
    assert cluster.succeeded()
    assert cluster.lost_steps() == 0
    assert cluster.oracle.shards.regroups >= 4 + 3
    assert not told(cluster, "has the shards")


@pytest.mark.parametrize("second", range(3))
def test_a_second_loss_while_shards_change_hands_costs_no_step_with_two_mirrors(
    second: int,
) -> None:
    cluster = four(mirrors=2).crash(rank=1).at(step=6, phase=BACKWARD)
    cluster.crash(rank=second).at(step=5, phase=REGROUP)
    cluster.run()
    assert cluster.succeeded()
    assert cluster.lost_steps() == 0
    assert len(told(cluster, "* crash")) == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_joins_and_is_lost_while_shards_change_hands_costs_no_step(seed: int) -> None:
    strategy = {"name": "sharded", "mirrors": 1}
    cluster = Cluster(seed, workers=3).submit(steps=20, strategy=strategy)
    cluster.restart("worker-4", at_s=3.0).crash(name="worker-4").at(phase=REGROUP)
    assert cluster.run().succeeded()
    assert len(told(cluster, "* crash worker-4 (worker-4 at regroup)")) == 1
    assert cluster.lost_steps() == 0


def test_two_neighbours_cost_the_steps_since_the_newest_complete_checkpoint() -> None:
    cluster = four(steps=16).crash(rank=1, back_after_s=9.0).at(step=8, phase=BACKWARD)
    cluster.crash(rank=2, back_after_s=9.0).at(step=8, phase=BACKWARD)
    cluster.run()
    assert cluster.succeeded()
    (fallen,) = told(cluster, "the job falls back to step 4")
    assert "no present worker has the shards 1/2 to 3/4 of step 7" in fallen
    assert cluster.lost_steps() == 3
    waits = told(cluster, "which worker-2, worker-3 had; `dtdctl resume job-1` goes on without it")
    assert waits


def test_two_that_are_no_neighbours_cost_nothing() -> None:
    cluster = four(steps=16).crash(rank=0).at(step=8, phase=BACKWARD)
    cluster.crash(rank=2).at(step=8, phase=BACKWARD)
    assert cluster.run().succeeded()
    assert cluster.lost_steps() == 0


def test_neighbours_that_were_only_unreachable_bring_their_shards_back() -> None:
    cluster = four(steps=16)
    for name in ("worker-2", "worker-3"):
        cluster.pause(name, at_s=3.0, until_s=12.0)
    assert cluster.run().succeeded()
    assert told(cluster, "* pause")
    assert cluster.lost_steps() == 0


def test_without_a_checkpoint_the_job_begins_afresh() -> None:
    cluster = four(every=0).crash(rank=1, back_after_s=4.0).at(step=6, phase=BACKWARD)
    cluster.crash(rank=2, back_after_s=4.0).at(step=6, phase=BACKWARD)
    assert cluster.run().succeeded()
    assert told(cluster, "the job begins afresh: no present worker has the shards")
    assert cluster.lost_steps() == 5


# --- damage --------------------------------------------------------------------------------------


def damaged_before_joins(step: int) -> Cluster:
    """One of two ranks is damaged; then three join, so that some shards get other holders only."""
    strategy = {"name": "sharded", "mirrors": 1}
    cluster = Cluster(step, workers=2).submit(steps=60, strategy=strategy)
    cluster.when("damage", rank=1).at(step=step, phase=BACKWARD)
    for name in ("worker-3", "worker-4", "worker-5"):
        cluster.restart(name, at_s=5.2)
        cluster.hold(name, "coordinator", at_s=5.6, until_s=7.3)  # so that all join at once
    return cluster


def test_a_damaged_shard_is_found_before_it_moves() -> None:
    lost = 0
    for step in (3, 4):
        cluster = damaged_before_joins(step).run()
        assert cluster.succeeded()
        lost += cluster.lost_steps()
    assert lost > 0, "no two copies agree, so their steps are repeated"


def test_of_three_holders_the_damaged_one_restarts_and_no_step_is_lost() -> None:
    cluster = four(mirrors=2, steps=16)
    cluster.when("damage", rank=1).at(step=7, phase=BACKWARD)
    cluster.restart("worker-5", at_s=0.5)
    assert cluster.run().succeeded()
    assert cluster.lost_steps() == 0


def test_damage_that_spreads_is_seen_if_nobody_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(shared: Sequence[Shared], words: Sequence[bytes]) -> Tally:
        del shared
        return Tally(digests=(b"",) * len(words), disputed=None)

    monkeypatch.setattr(regroup, "compared", blind)
    broken = []
    for step in (4, 5):
        try:
            damaged_before_joins(step).run()
        except Broken as error:
            broken.append(str(error))
    assert any("damage passes though a rank knew better" in one for one in broken), broken


# --- the rules -----------------------------------------------------------------------------------


def an_assign() -> m.Assign:
    one = m.Member(name="a", incarnation=1, host="h", port=1, holds=True)
    return m.Assign(
        job="j", generation=2, roster_id=1, rank=0, roster=(one,), held_generation=1, held_step=0
    )


def a_state(part: ShardSet, *, step: int = 0) -> State:
    one = replace(fresh("j", sharded=True), step=step, lineage=f"{step}")
    return replace(one, atoms=shards.cut(one.atoms, part))


def test_a_hole_is_found() -> None:
    with pytest.raises(Broken, match="a generation begins with a hole"):
        ShardRules().hole(an_assign(), "0 to 1/2 is missing")


def test_another_part_than_its_own_is_found() -> None:
    rules = ShardRules()
    rules.regrouped(an_assign(), a_state(HALF), HALF)
    with pytest.raises(Broken, match="another part than its own"):
        rules.regrouped(an_assign(), fresh("j", sharded=True), HALF)


def test_a_shard_that_is_dropped_before_all_have_agreed_is_found() -> None:
    rules = ShardRules()
    rules.adopted("a", fresh("j", sharded=True))
    rules.froze("a", fresh("j", sharded=True))
    with pytest.raises(Broken, match="a shard is dropped before all have agreed"):
        rules.froze("a", a_state(HALF))
    rules.froze("a", a_state(HALF, step=3))
    rules.froze("b", a_state(HALF))


def test_a_part_of_a_checkpoint_is_none() -> None:
    job = Job(
        id="j",
        spec={"strategy": {"name": "sharded"}},
        checkpoint_step=3,
        checkpoint_holders=("a", "b"),
    )
    oracle = four().oracle
    oracle.keeping.published("a", a_state(HALF, step=3))
    oracle.keeping.published("b", a_state(ShardSet.segments([1], 2), step=3))
    oracle.keeping.written(job)
    with pytest.raises(Broken, match="a part of a checkpoint counts as all of it"):
        oracle.keeping.written(replace(job, checkpoint_holders=("a",)))


def test_a_shard_of_another_step_is_found() -> None:
    state = fresh("j", sharded=True)
    mixed = replace(state, atoms=("0" * 32, *state.atoms[1:]))
    with pytest.raises(Broken, match="a shard is of another state"):
        ShardRules().honest(mixed)


def test_a_state_is_remembered_by_those_that_have_all_of_it() -> None:
    rest = ShardSet.segments([1], 2)
    one, other = (
        Memory(name=name, incarnation=1, state=a_state(part, step=3), prepared=None)
        for name, part in (("a", HALF), ("b", rest))
    )
    assert shard_rules.known([one], most=3) == -1
    assert shard_rules.known([one, other], most=3) == 3
    assert shard_rules.known([one, other], most=2) == -1


def test_steps_count_as_lost_without_reason_only_if_all_shards_of_them_are_there() -> None:
    parts = [HALF, ShardSet.segments([1], 2)]
    memories = [
        Memory(name=name, incarnation=1, state=a_state(part, step=3), prepared=None)
        for name, part in zip("ab", parts, strict=True)
    ]
    for living, broken in ((memories[:1], False), (memories, True)):
        lineage = Lineage()
        start = (memories[0].state.generation, 3)
        lineage.decided("j", 1, start, members=["a", "b"], living=memories)
        if broken:
            with pytest.raises(Broken, match="committed steps are lost that somebody remembers"):
                lineage.decided("j", 2, (0, 0), members=["a"], living=living)
        else:
            lineage.decided("j", 2, (0, 0), members=["a"], living=living)
            assert lineage.lost("j") == 3
