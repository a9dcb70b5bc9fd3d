"""The largest roster: 64 workers, two buckets, several steps, and one of them dies."""

from tests.sim.cluster import Cluster


def test_sixty_four_workers_lose_one_and_nothing_else() -> None:
    cluster = Cluster(1, workers=64).submit(steps=3, buckets=(70, 7))
    cluster.crash("worker-17", at_s=3.9).run()
    assert cluster.succeeded()
    assert cluster.lost_steps() == 0
    assert [cluster.job().generation, cluster.job().world_size] == [2, 63]
    assert cluster.oracle.frames > 40_000
