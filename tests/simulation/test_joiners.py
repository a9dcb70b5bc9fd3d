"""A worker that joins a training job and cannot take part costs it neither a step nor its end."""

from __future__ import annotations

import pytest

from tests.sim.cluster import Cluster


@pytest.mark.parametrize("seed", range(3))
def test_others_that_fail_in_a_joiners_presence_go_on_without_it(seed: int) -> None:
    """Both of the old members raise in its first step, in any order."""
    cluster = Cluster(seed, workers=2).submit(steps=60).unwelcome("worker-3")
    cluster.restart("worker-3", at_s=4.0).run()
    assert [cluster.succeeded(), cluster.lost_steps()] == [True, 0]
    assert any("worker-3 is set aside" in line for line in cluster.story)
    assert not any(f"worker-{old} is set aside" in line for old in (1, 2) for line in cluster.story)


def test_an_unwelcome_worker_that_was_there_from_the_start_fails_the_job() -> None:
    cluster = Cluster(1, workers=3).submit(steps=60, settle_s=2.0).unwelcome("worker-3").run()
    assert not cluster.succeeded()
    assert "too few rows beside worker-3" in cluster.job().reason
