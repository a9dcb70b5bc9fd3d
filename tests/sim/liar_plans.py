"""Plans in which one worker lies or withholds its reports, among others that do not.

The seed determines everything, as in `tests.sim.plans`.
"""

from __future__ import annotations

import random
from typing import Final

from tests.sim.cluster import Cluster

UNTRUE: Final = 0.1
"""Share of the plans in which a worker withholds reports, or slanders another one."""
LEAST_WITH_LIAR: Final = 3
WORDS: Final = ("Running", "Frozen", "Finished", "Probed", "Warmed", "CheckpointSaved", "Agreed")
"""Reports that a worker may keep to itself, by the names of their messages."""


def with_liar(seed: int, *, sharded: bool = False) -> Cluster:
    """A job, one liar from some moment on, and one who joins: then what is held is asked for.

    With more faults a liar can be the only one left, and no rule can hold then.
    """
    rng = random.Random(f"sharded liar {seed}" if sharded else f"liar {seed}")
    workers = rng.randint(4, 5 if sharded else 6)
    liar = f"worker-{rng.randint(1, workers)}"
    cluster = Cluster(seed, workers=workers)
    cluster.submit(
        steps=rng.randint(20, 60),
        checkpoint_every=rng.choice((2, 5)),
        copies=rng.choice((1, 2)),
        min_workers=2,
        strategy={"name": "sharded", "mirrors": rng.choice((1, 2))} if sharded else None,
    )
    cluster.do("lie", liar, at_s=rng.uniform(0.0, 6.0))
    cluster.restart(f"worker-{workers + 1}", at_s=rng.uniform(3.0, 6.0))
    honest = [f"worker-{number}" for number in range(1, workers + 1) if f"worker-{number}" != liar]
    if rng.random() < 0.5:
        cluster.bounce(rng.choice(honest), at_s=rng.uniform(3.0, 7.0))
    return cluster


def with_forger(seed: int, *, sharded: bool = False) -> Cluster:
    """A job and one worker that lies to the other ranks from some moment on, and one who joins.

    Of a sharded state three workers hold each shard, so that two of them outvote the liar.
    """
    rng = random.Random(f"sharded forger {seed}" if sharded else f"forger {seed}")
    workers = rng.randint(4, 5)
    liar = f"worker-{rng.randint(1, workers)}"
    cluster = Cluster(seed, workers=workers)
    cluster.submit(
        steps=rng.randint(20, 60),
        checkpoint_every=rng.choice((2, 5)),
        min_workers=2,
        strategy={"name": "sharded", "mirrors": 2} if sharded else None,
    )
    cluster.do("forge", liar, at_s=rng.uniform(0.0, 6.0))
    cluster.restart(f"worker-{workers + 1}", at_s=rng.uniform(3.0, 6.0))
    return cluster


def with_slanderer(seed: int) -> Cluster:
    """A small ring in which one worker claims again and again that it does not reach another."""
    rng = random.Random(f"slander {seed}")
    workers = rng.choice((2, 2, 3, 3, 4))
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    liar, other = rng.sample(names, 2)
    cluster = Cluster(seed, workers=workers)
    cluster.submit(steps=rng.randint(20, 60), checkpoint_every=rng.choice((0, 2, 5)))
    cluster.do("slander", liar, other, at_s=rng.uniform(0.0, 6.0))
    if rng.random() < 0.5:
        cluster.restart(f"worker-{workers + 1}", at_s=rng.uniform(3.0, 6.0))
    return cluster


def with_withholder(seed: int) -> Cluster:
    """A job of which one worker sends heartbeats and keeps some of its reports to itself."""
    rng = random.Random(f"withholder {seed}")
    workers = rng.choice((2, 2, 3, 4))
    cluster = Cluster(seed, workers=workers)
    cluster.submit(
        steps=rng.randint(20, 60),
        checkpoint_every=rng.choice((0, 2, 5)),
        copies=rng.choice((1, 2)),
    )
    words = rng.sample(WORDS, rng.choice((1, 1, 2, len(WORDS))))
    cluster.do("withhold", f"worker-{rng.randint(1, workers)}", *words, at_s=rng.uniform(0.0, 8.0))
    if rng.random() < 0.5:
        cluster.restart(f"worker-{workers + 1}", at_s=rng.uniform(3.0, 6.0))
    return cluster


def lie_in_some(cluster: Cluster, seed: int, names: list[str], calm_s: float) -> None:
    """In some plans, a worker withholds its reports, or claims not to reach another one.

    It does so until all faults end.  Uses a separate random generator, so that other plans do not
    change.
    """
    rng = random.Random(f"words {seed}")
    if rng.random() >= UNTRUE or len(names) < LEAST_WITH_LIAR:
        return
    liar, other = rng.sample(names, 2)
    at_s = rng.uniform(0.0, calm_s * 0.8)
    if rng.random() < 0.5:
        cluster.do("slander", liar, other, at_s=at_s)
    else:
        cluster.do("withhold", liar, *rng.sample(WORDS, rng.choice((1, 1, 2))), at_s=at_s)
    cluster.do("speak", liar, at_s=calm_s)
