"""A large roster: 32 workers, two buckets, several steps, and one of them dies."""

from tests.sim.cluster import Cluster


def test_thirty_two_workers_lose_one_and_nothing_else() -> None:
    cluster = Cluster(1, workers=32).submit(steps=3, buckets=(70, 7))
    cluster.crash("worker-17", at_s=3.9).run()
    assert cluster.succeeded()
    assert cluster.lost_steps() == 0
    assert [cluster.job().generation, cluster.job().world_size] == [2, 31]
    assert cluster.oracle.frames > 9_000
