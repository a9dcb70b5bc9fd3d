"""Random plans: a cluster, a job, and a few seconds in which much goes wrong.

Everything follows from the seed, so a run that fails is repeated by `python -m tests.sim SEED`.
All faults are over by `CALM_S`, when every worker that is down is started again; from then on the
job must end.
"""

from __future__ import annotations

import random
from typing import Final

from tests.sim.cluster import Cluster
from tests.sim.phases import Phase
from tests.sim.surroundings import COORDINATOR

CALM_S: Final = 14.0
WORLDS: Final = (*(2, 3, 4) * 18, *(5, 6) * 8, *(8, 12, 16) * 3, 24, 32, 64)
MOST_FAULTS: Final = 9
HOME_S: Final = 6.0
"""After so long in calm everybody is back."""
LOOKS: Final = 6
"""So often the operator looks after them."""
STORES: Final = ("restore", "fill", *("",) * 4)
NEIGHBOURS: Final = 0.6
AMBUSHED: Final = ("crash", "crash", "crash", "pause", "stick", "corrupt")
AFTER_CALM: Final = ("restart", "unpause", "unstick", "clear")


def draw(seed: int) -> Cluster:
    """The cluster of a seed, ready to run."""
    rng = random.Random(f"plan {seed}")
    workers = rng.choice(WORLDS)
    cluster = Cluster(seed, workers=workers)
    steps = rng.randint(5, 60 if workers < 8 else 15 if workers < 24 else 6)
    cluster.submit(
        steps=steps,
        buckets=[rng.choice((0, 1, 5, 17, 40)) for _ in range(rng.randint(1, 3))],
        min_workers=rng.randint(1, max(1, workers // 2)),
        max_workers=rng.choice((64, 64, workers, max(workers // 2, 1))),
        checkpoint_every=rng.choice((0, 2, 5)),
        evaluate_every=rng.choice((0, 0, 3)),
        copies=rng.choice((1, 1, 2)),
        settle_s=rng.choice((0.2, 1.0)),
    )
    if rng.random() < 0.2:
        cluster.submit(steps=3, at_s=rng.uniform(0, 3))
    names = [f"worker-{number}" for number in range(1, workers + 2)]
    if rng.random() < 0.1 and workers > 2:
        cluster.misfit(rng.choice(names))
    if rng.random() < 0.05:
        cluster.failing(rng.choice(names), step=rng.randint(1, steps))
    if rng.random() < 0.1:
        cluster.broken(rng.choice(names), until_s=rng.uniform(1.0, CALM_S))
    for _ in range(rng.randint(0, MOST_FAULTS)):
        _add_fault(cluster, rng, names, steps)
    if not cluster.machines.broken:  # one that cannot warm up, left alone, rightly fails the job
        _hurt_the_store(cluster, seed, names)
    cluster.do("calm", at_s=CALM_S).restart(COORDINATOR, at_s=CALM_S)
    for name in names:
        for verb in AFTER_CALM:
            cluster.do(verb, name, at_s=CALM_S)
        cluster.do("unpause", name, at_s=CALM_S + 1.0)  # a SIGNAL may have waited in its socket
    return cluster


def _add_fault(cluster: Cluster, rng: random.Random, names: list[str], steps: int) -> None:
    at_s = rng.uniform(0.5, CALM_S * 0.6)
    until_s = at_s + rng.choice((rng.uniform(0.01, 0.5), rng.uniform(0.5, 6.5)))
    one, other = _pair(rng, names)
    worker = rng.choice(names)
    kind = rng.choice(KINDS)
    if kind == "ambush":
        _lay(cluster, rng, worker, steps)
    elif kind == "bounce":
        cluster.bounce(worker, at_s=at_s, down_s=until_s - at_s)
    elif kind == "bounce coordinator":
        cluster.bounce(COORDINATOR, at_s=at_s, down_s=until_s - at_s)
    elif kind in PASSING:
        cluster.do(kind, one, other, at_s=at_s).do(PASSING[kind], one, other, at_s=until_s)
    elif kind == "partition_oneway":
        cluster.partition_oneway(one, other, at_s=at_s, until_s=until_s)
    elif kind == "pause":
        cluster.pause(worker, at_s=at_s, until_s=until_s)
    elif kind == "fill":
        cluster.do("fill", worker, at_s=at_s).do("clear", worker, at_s=until_s + 4.0)
    elif kind in ("reset", "sever", "flip"):
        cluster.do(kind, one, other, at_s=at_s)
    elif kind == "join":
        cluster.restart(worker, at_s=at_s)
    elif kind == "kill":
        cluster.do("kill", worker, rng.choice(("KILL", "TERM", "STOP")), at_s=at_s)
    elif kind == "cancel":
        cluster.do("cancel", "job-1", at_s=at_s)
    else:
        cluster.do(kind, worker, at_s=at_s)


def _hurt_the_store(cluster: Cluster, seed: int, names: list[str]) -> None:
    """In some plans the store goes back to a backup, or cannot be written; both across a restart.

    Meanwhile generations come and go, of which the store then knows nothing, and some who know
    are out of hearing when the coordinator is back.  Chance of its own, so that other plans stay
    what they are.  Once everybody is back who will come back, the operator lets jobs go on that
    wait for somebody.
    """
    rng = random.Random(f"store {seed}")
    kind = rng.choice(STORES)
    if not kind:
        return
    begun_s = rng.uniform(1.0, CALM_S * 0.5)
    down_s = rng.uniform(begun_s + 0.2, CALM_S * 0.75)
    up_s = down_s + rng.uniform(0.05, 2.0)
    if kind == "restore":
        cluster.do("backup", at_s=begun_s).do("restore", COORDINATOR, at_s=down_s)
    else:
        cluster.do("fail_store", COORDINATOR, at_s=begun_s).crash(COORDINATOR, at_s=down_s)
        cluster.do("mend_store", COORDINATOR, at_s=rng.uniform(begun_s, CALM_S))
    cluster.restart(COORDINATOR, at_s=up_s)
    for _ in range(rng.randint(1, 3)):
        cluster.bounce(rng.choice(names), at_s=rng.uniform(begun_s, up_s), down_s=rng.random())
    for _ in range(rng.randint(0, 2)):
        at_s = rng.uniform(begun_s, up_s)
        cluster.hold(rng.choice(names), COORDINATOR, at_s=at_s, until_s=rng.uniform(up_s, CALM_S))
    for job in ("job-1", "job-2"):
        for look in range(LOOKS):
            cluster.do("resume", job, at_s=CALM_S + HOME_S * (1 + look))


def _lay(cluster: Cluster, rng: random.Random, worker: str, steps: int) -> None:
    """Let something strike a worker in the midst of a step, or wherever it is at last."""
    back_after_s = rng.choice((None, rng.uniform(0.05, 3.0)))
    moment = cluster.when(rng.choice(AMBUSHED), name=worker, back_after_s=back_after_s)
    step = rng.choice((None, rng.randint(1, steps)))
    moment.at(phase=rng.choice(tuple(Phase)), step=step)


def _pair(rng: random.Random, names: list[str]) -> tuple[str, str]:
    """Two processes with much to say to each other: ring neighbours, or one and the coordinator."""
    index = rng.randrange(len(names) - 1)
    if rng.random() < NEIGHBOURS:
        return names[index], names[(index + 1) % (len(names) - 1)]
    pair = [names[index], COORDINATOR]
    rng.shuffle(pair)
    return pair[0], pair[1]


PASSING: Final = {"hold": "release", "narrow": "widen"}
"""What befalls a link, and how it ends."""
KINDS: Final = (
    *("ambush",) * 10,
    *("bounce",) * 4,
    *("bounce coordinator",) * 4,
    *("hold",) * 5,
    *("partition_oneway",) * 4,
    *("narrow",) * 3,
    *("pause",) * 4,
    *("reset",) * 4,
    *("sever",) * 2,
    *("join",) * 3,
    *("drain",) * 2,
    *("stick",) * 2,
    *("flip",) * 2,
    *("fill",) * 2,
    "crash",
    "leave",
    "kill",
    "cancel",
    "corrupt",
)
