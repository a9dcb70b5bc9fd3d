"""A job that starts from another one's checkpoint, whose holders may be away."""

from __future__ import annotations

import pytest

from dtd.cluster.generation import waiting
from tests.sim.cluster import Cluster
from tests.sim.oracle import Broken

AWAY_S = 8.0
BACK_S = AWAY_S + waiting.RESUME_WAIT_S + 5.0


def a_child(*, sharded: bool = False) -> Cluster:
    """The first of three workers has the result of job-1, and is away when job-2 comes."""
    strategy = {"name": "sharded", "mirrors": 1} if sharded else None
    cluster = Cluster(3, workers=3).submit(steps=4)
    cluster.crash("worker-1", at_s=AWAY_S)
    return cluster.submit(steps=5, strategy=strategy, at_s=AWAY_S + 1.0, from_job="job-1")


def told(cluster: Cluster, what: str) -> list[str]:
    return [line for line in cluster.story if what in line]


@pytest.mark.parametrize("sharded", [False, True])
def test_it_waits_for_the_holder(sharded: bool) -> None:
    cluster = a_child(sharded=sharded).restart("worker-1", at_s=BACK_S).run()
    assert cluster.succeeded(2)
    assert told(cluster, "waiting for workers that have the checkpoint of step")
    *_, last = told(cluster, "of step 0 from worker-1")
    assert float(last.split()[0]) > BACK_S


def test_the_operator_may_do_without() -> None:
    cluster = a_child().do("resume", "job-2", at_s=20.0).run()
    assert cluster.succeeded(2)


def test_one_that_begins_at_step_0_by_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "lacks_origin", lambda cluster, job: False)
    with pytest.raises(Broken, match="a job begins without what it is to start from"):
        a_child().run()
