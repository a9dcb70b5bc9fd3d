"""The only server is lost, and the operator lets the job go on without the optimizer's state."""

from __future__ import annotations

import pytest

from tests.sim.cluster import Cluster
from tests.sim.lineage import Broken, Lineage, Memory
from tests.sim.phases import BACKWARD, CONTROL_WORD, Phase
from tests.sim.replica import State, expected, fresh, remade

STEPS = 12
LOST_AT = 6


def served(seed: int = 7, *, every: int = 4) -> Cluster:
    """Two workers and a server; another server, worker-4, is not running."""
    strategy = {"name": "sharded", "owners": "servers", "mirrors": 1, "stage": 1}
    cluster = Cluster(seed, workers=3)
    cluster.serve(["worker-3", "worker-4"])
    return cluster.submit(steps=STEPS, strategy=strategy, checkpoint_every=every)


def told(cluster: Cluster, what: str) -> list[str]:
    return [line for line in cluster.story if what in line]


@pytest.mark.parametrize("phase", [BACKWARD, CONTROL_WORD])
@pytest.mark.parametrize("seed", range(2))
def test_no_step_is_lost(seed: int, phase: Phase) -> None:
    cluster = served(seed).crash(name="worker-3").at(step=LOST_AT, phase=phase)
    cluster.do("make_do", "job-1", at_s=30.0).restart("worker-4", at_s=31.0).run()
    assert cluster.succeeded()
    assert (cluster.job().optimizer_resets, cluster.lost_steps()) == (1, 0)


def test_if_nobody_asks_the_job_returns_to_its_checkpoint() -> None:
    cluster = served(every=0).crash(name="worker-3").at(step=LOST_AT, phase=CONTROL_WORD)
    cluster.restart("worker-4", at_s=31.0).run()
    assert cluster.succeeded()
    assert (cluster.job().optimizer_resets, cluster.lost_steps() > 0) == (0, True)


@pytest.mark.parametrize("phase", [Phase.TAKE_OVER, Phase.REGROUP, CONTROL_WORD])
def test_the_new_server_may_be_lost_as_well(phase: Phase) -> None:
    cluster = served().crash(name="worker-3").at(step=LOST_AT, phase=CONTROL_WORD)
    cluster.do("make_do", "job-1", at_s=30.0).restart("worker-4", at_s=31.0)
    cluster.crash(name="worker-4", back_after_s=2.0).at(phase=phase)
    cluster.do("make_do", "job-1", at_s=60.0).do("resume", "job-1", at_s=90.0).run()
    assert cluster.succeeded()
    assert cluster.job().optimizer_resets >= 1


@pytest.mark.parametrize(("back_s", "resets"), [(30.5, 0), (34.5, 1)])
def test_an_old_server_that_returns_is_part_of_no_other_state(back_s: float, resets: int) -> None:
    """It was stopped, not dead, and comes back before the wish is met, or while the job trains."""
    cluster = served().when("pause", name="worker-3").at(step=LOST_AT, phase=CONTROL_WORD)
    cluster.do("unpause", "worker-3", at_s=back_s)
    cluster.do("make_do", "job-1", at_s=30.0).restart("worker-4", at_s=31.0).run()
    assert cluster.succeeded()
    assert (cluster.job().optimizer_resets, cluster.lost_steps()) == (resets, 0)


# --- its rules ---------------------------------------------------------------------------------


def memories(*states: State) -> list[Memory]:
    return [
        Memory(name=f"w{number}", incarnation=1, state=state, prepared=None)
        for number, state in enumerate(states)
    ]


def test_a_reset_of_a_state_that_is_there_is_seen() -> None:
    state = fresh("job", sharded=True)
    with pytest.raises(Broken, match="an optimizer is reset whose state is there"):
        Lineage().decided("job", 3, (2, 0), members=["w0"], living=memories(state), made_of=(0, 0))


def test_a_reset_state_is_told_from_the_one_whose_parameters_it_has() -> None:
    state = fresh("job", sharded=True)
    made = remade(state, 2)
    assert made.key == (2, 0)
    assert made.part.is_whole
    assert made.content == expected("job", 0, state.data, (0,)) != state.content
    assert made.lineage != state.lineage
