"""Random plans: a cluster, a job, and a few seconds in which much goes wrong.

Everything follows from the seed, so a run that fails is repeated by `python -m dtd.sim SEED`.  All
faults are over by `CALM_S`, when every worker that is down is started again; from then on the job
must end.
"""

from __future__ import annotations

import random
from typing import Final

from dtd.sim.cluster import Cluster
from dtd.sim.surroundings import COORDINATOR

CALM_S: Final = 14.0
WORLDS: Final = (2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 8, 12, 16)
MOST_FAULTS: Final = 9
NEIGHBOURS: Final = 0.6


def draw(seed: int) -> Cluster:
    """The cluster of a seed, ready to run."""
    rng = random.Random(f"plan {seed}")  # noqa: S311 - repeatable on purpose
    workers = rng.choice(WORLDS)
    cluster = Cluster(seed, workers=workers)
    cluster.submit(
        steps=rng.randint(5, 60 if workers < 8 else 15),
        buckets=[rng.choice((0, 1, 5, 17, 40)) for _ in range(rng.randint(1, 3))],
        min_workers=rng.randint(1, max(1, workers // 2)),
        max_workers=rng.choice((64, 64, workers, max(workers // 2, 1))),
        checkpoint_every=rng.choice((0, 2, 5)),
        settle_s=rng.choice((0.2, 1.0)),
    )
    if rng.random() < 0.2:
        cluster.submit(steps=3, at_s=rng.uniform(0, 3))
    names = [f"worker-{number}" for number in range(1, workers + 2)]
    if rng.random() < 0.1 and workers > 2:
        cluster.misfit(rng.choice(names))
    for _ in range(rng.randint(0, MOST_FAULTS)):
        _add_fault(cluster, rng, names)
    for name in (COORDINATOR, *names):
        cluster.restart(name, at_s=CALM_S).do("unpause", name, at_s=CALM_S)
    return cluster


def _add_fault(cluster: Cluster, rng: random.Random, names: list[str]) -> None:
    at_s = rng.uniform(0.5, CALM_S * 0.6)
    until_s = at_s + rng.choice((rng.uniform(0.01, 0.5), rng.uniform(0.5, 6.5)))
    one, other = _pair(rng, names)
    worker = rng.choice(names)
    kind = rng.choice(KINDS)
    if kind == "bounce":
        cluster.bounce(worker, at_s=at_s, down_s=until_s - at_s)
    elif kind == "bounce coordinator":
        cluster.bounce(COORDINATOR, at_s=at_s, down_s=until_s - at_s)
    elif kind == "hold":
        cluster.hold(one, other, at_s=at_s, until_s=until_s)
    elif kind == "partition_oneway":
        cluster.partition_oneway(one, other, at_s=at_s, until_s=until_s)
    elif kind == "pause":
        cluster.pause(worker, at_s=at_s, until_s=until_s)
    elif kind == "reset":
        cluster.reset(one, other, at_s=at_s)
    elif kind == "join":
        cluster.restart(worker, at_s=at_s)
    elif kind == "kill":
        cluster.do("kill", worker, rng.choice(("KILL", "TERM", "STOP")), at_s=at_s)
    elif kind == "cancel":
        cluster.do("cancel", "job-1", at_s=at_s)
    else:
        cluster.do(kind, worker, at_s=at_s)


def _pair(rng: random.Random, names: list[str]) -> tuple[str, str]:
    """Two processes with much to say to each other: ring neighbours, or one and the coordinator."""
    index = rng.randrange(len(names) - 1)
    if rng.random() < NEIGHBOURS:
        return names[index], names[(index + 1) % (len(names) - 1)]
    pair = [names[index], COORDINATOR]
    rng.shuffle(pair)
    return pair[0], pair[1]


KINDS: Final = (
    *("bounce",) * 6,
    *("bounce coordinator",) * 3,
    *("hold",) * 4,
    *("partition_oneway",) * 3,
    *("pause",) * 3,
    *("reset",) * 4,
    *("join",) * 3,
    "crash",
    "drain",
    "drain",
    "leave",
    "kill",
    "cancel",
)
