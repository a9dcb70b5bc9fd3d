"""A worker dies at every place of a step, and wherever else it can be: nothing is lost by that."""

import pytest

from tests.sim.cluster import Cluster
from tests.sim.phases import (
    ALL_GATHER,
    BACKWARD,
    CHECKPOINT,
    COMMITTED,
    CONTROL_WORD,
    EVALUATE,
    EXCHANGE,
    FORWARD,
    OPTIMIZER,
    RECEIVE_STATE,
    REDUCE_SCATTER,
    REGISTER,
    SEND_STATE,
    TAKE_OVER,
    Phase,
)

IN_A_STEP = (
    FORWARD,
    BACKWARD,
    REDUCE_SCATTER,
    ALL_GATHER,
    EXCHANGE,
    CONTROL_WORD,
    OPTIMIZER,
    COMMITTED,
)


def a_cluster(seed: int = 1) -> Cluster:
    return Cluster(seed, workers=4).submit(
        steps=12, buckets=(40, 7), checkpoint_every=4, evaluate_every=4, settle_s=2.0
    )


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("phase", IN_A_STEP)
def test_crash_in_a_step(phase: Phase, rank: int) -> None:
    cluster = a_cluster(rank).crash(rank=rank, back_after_s=0.1).at(step=7, phase=phase).run()
    assert cluster.machines.incarnations - len(cluster.workers_state()) == 5
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]


@pytest.mark.parametrize("phase", [REGISTER, RECEIVE_STATE, SEND_STATE, TAKE_OVER])
def test_crash_before_the_first_step(phase: Phase) -> None:
    crash_of("worker-1" if phase is SEND_STATE else "worker-2", phase, step=None)


@pytest.mark.parametrize(("phase", "step"), [(EVALUATE, 8), (CHECKPOINT, 8), (CHECKPOINT, 12)])
def test_crash_between_steps(phase: Phase, step: int) -> None:
    crash_of("worker-1", phase, step=step)


def crash_of(name: str, phase: Phase, *, step: int | None) -> None:
    cluster = a_cluster().crash(name, back_after_s=0.1).at(step=step, phase=phase).run()
    assert any(f"* crash {name}" in line for line in cluster.story)
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]


def test_crash_of_two_at_the_same_place() -> None:
    cluster = a_cluster()
    for name in ("worker-2", "worker-3"):
        cluster.crash(name, back_after_s=0.1).at(step=9, phase=CONTROL_WORD)
    cluster.run()
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]
