"""One worker that lies to the coordinator, among others that do not: the job ends as it should.

A failure names its seed.
"""

import random

import pytest

from tests.sim.cluster import Cluster

SEEDS = 120
SEEDS_AT_A_TIME = 20


def plan(seed: int) -> Cluster:
    """A job, one liar from some moment on, and one who joins: then what is held is asked for."""
    rng = random.Random(f"liar {seed}")
    workers = rng.randint(4, 6)
    liar = f"worker-{rng.randint(1, workers)}"
    cluster = Cluster(seed, workers=workers)
    cluster.submit(
        steps=rng.randint(20, 60),
        checkpoint_every=rng.choice((2, 5)),
        copies=rng.choice((1, 2)),
        min_workers=2,
    )
    cluster.do("lie", liar, at_s=rng.uniform(0.0, 6.0))
    cluster.restart(f"worker-{workers + 1}", at_s=rng.uniform(3.0, 6.0))
    honest = [f"worker-{number}" for number in range(1, workers + 1) if f"worker-{number}" != liar]
    if rng.random() < 0.5:
        cluster.bounce(rng.choice(honest), at_s=rng.uniform(3.0, 7.0))
    return cluster


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_A_TIME))
def test_one_liar_neither_ends_nor_moves_nor_holds_up_a_job(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_A_TIME):
        cluster = plan(seed).run(patience_s=60.0)
        assert cluster.succeeded(), seed
        assert cluster.lost_steps() == 0, seed
