"""Random plans: a cluster, a job, and a few seconds in which much goes wrong.

Everything follows from the seed, so a run that fails is repeated by `python -m tests.sim SEED`.
All faults are over when a plan calms down, after seconds or after minutes: then every worker that
is down is started again, and from then on the job must end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.sim.cluster import Cluster
from tests.sim.phases import Phase
from tests.sim.surroundings import COORDINATOR, Pace

CALM_S: Final = 14.0
WORLDS: Final = (*(2, 3, 4) * 18, *(5, 6) * 8, *(8, 12, 16) * 3, 24, 32, 64)
MOST_FAULTS: Final = 9
HOME_S: Final = 6.0
"""After so long in calm everybody is back."""
LOOKS: Final = 30
"""So often the operator looks after them."""
STORES: Final = ("restore", "fill", *("",) * 4)
NEIGHBOURS: Final = 0.6
AMBUSHED: Final = ("crash", "crash", "crash", "pause", "stick", "corrupt")
AFTER_CALM: Final = ("restart", "unpause", "unstick", "clear")
WINDOW: Final = (
    *(Phase.ALL_GATHER, Phase.CONTROL_WORD, Phase.CONTROL_WORD),
    *(Phase.OPTIMIZER, Phase.COMMITTED, Phase.COMMITTED, Phase.FORWARD, Phase.TAKE_OVER),
)
"""Where a step is committed by some and not by all."""
SMALL: Final = (2, 3, 3, 4)


USUAL_PACE: Final = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a plan is like.

    Attributes:
        worlds: how many workers there may be.
        pace: how long things take.
        steps: of a job, at most.
        calm_s: when all faults are over.
        aims: strikes several at once where steps are committed.
        exiles: those who train cannot be heard for longer than anybody is waited for.
    """

    worlds: tuple[int, ...] = WORLDS
    pace: Pace = USUAL_PACE
    steps: int = 60
    calm_s: float = CALM_S
    aims: bool = False
    exiles: bool = False


USUAL: Final = Kind()
AIMED: Final = Kind(worlds=(2, 3, 3, 4, 5), steps=30, aims=True)
LONG: Final = Kind(
    worlds=SMALL, pace=Pace(compute_s=(0.5, 2.5), evaluate_s=(1.0, 5.0)), steps=60, calm_s=100.0
)
SLOW_STORE: Final = Kind(worlds=SMALL, pace=Pace(store_s=(0.2, 2.5)), aims=True)
LARGE: Final = Kind(
    worlds=SMALL,
    pace=Pace(
        load_s=(0.1, 0.7), digest_s=(0.5, 3.0), checkpoint_s=(1.0, 6.0), state_bytes=(1.5e9, 1.5e9)
    ),
    calm_s=40.0,
)
EXILE: Final = Kind(
    worlds=(2, 2, 3), pace=Pace(compute_s=(0.5, 1.5)), steps=40, calm_s=120.0, exiles=True
)
KINDS_OF_PLANS: Final = (
    *(USUAL, AIMED, EXILE, USUAL, LONG, AIMED, EXILE, SLOW_STORE, AIMED, LARGE),
)


def draw(seed: int) -> Cluster:
    """The cluster of a seed, ready to run."""
    rng = random.Random(f"plan {seed}")
    kind = KINDS_OF_PLANS[seed % len(KINDS_OF_PLANS)]
    workers = rng.choice(kind.worlds)
    cluster = Cluster(seed, workers=workers, pace=kind.pace)
    steps = rng.randint(5, kind.steps if workers < 8 else 15 if workers < 24 else 6)
    least = rng.randint(1, max(1, workers // 2))
    cluster.submit(
        steps=steps,
        buckets=[rng.choice((0, 1, 5, 17, 40)) for _ in range(rng.randint(1, 3))],
        rows=rng.choice((7, 50, 64, 101)),
        batch=rng.choice((3, 16, 20)),
        min_workers=least,
        max_workers=max(least, rng.choice((64, 64, workers, max(workers // 2, 1), 1))),
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
        cluster.broken(rng.choice(names), until_s=rng.uniform(1.0, kind.calm_s))
    for _ in range(rng.randint(0, MOST_FAULTS)):
        _add_fault(cluster, rng, names, steps, kind.calm_s)
    if kind.exiles:
        _exile(cluster, rng, names)
    if kind.aims:
        _aim(cluster, rng, names, steps)
    if not cluster.machines.broken:  # one that cannot warm up, left alone, rightly fails the job
        _hurt_the_store(cluster, seed, names, kind.calm_s)
    _look_after(cluster, rng, kind.calm_s)
    _calm(cluster, names, kind.calm_s)
    return cluster


def _calm(cluster: Cluster, names: list[str], calm_s: float) -> None:
    """Everything is mended, and everybody starts who does not run."""
    cluster.do("calm", at_s=calm_s).restart(COORDINATOR, at_s=calm_s)
    for name in names:
        for verb in AFTER_CALM:
            cluster.do(verb, name, at_s=calm_s)
        cluster.do("unpause", name, at_s=calm_s + 1.0)  # a SIGNAL may have waited in its socket


def _look_after(cluster: Cluster, rng: random.Random, calm_s: float) -> None:
    """An operator who looks now and then, and resumes what waits for somebody who is gone."""
    for _ in range(rng.choice((0, 0, 0, 1, 4))):
        cluster.do("look_after", "job-1", at_s=rng.uniform(2.0, calm_s))


def _exile(cluster: Cluster, rng: random.Random, names: list[str]) -> None:
    """Most who train are out of hearing, some are dead, and somebody is here who knows nothing."""
    begun_s = rng.uniform(4.0, 15.0)
    *trains, spare = names
    for name in trains:
        until_s = begun_s + rng.choice((rng.uniform(5.0, 30.0), rng.uniform(70.0, 100.0)))
        if rng.random() < 0.3:
            cluster.crash(name, at_s=begun_s).restart(name, at_s=until_s)
        else:
            cluster.hold(name, COORDINATOR, at_s=begun_s, until_s=until_s)
    cluster.restart(spare, at_s=begun_s + 0.5)
    if rng.random() < 0.7:
        cluster.bounce(COORDINATOR, at_s=begun_s + 0.1, down_s=rng.uniform(0.2, 3.0))


def _aim(cluster: Cluster, rng: random.Random, names: list[str], steps: int) -> None:
    """Several things strike in one step, while some ranks have committed it and others have not.

    And the coordinator is away, or the members that remember cannot be heard.
    """
    for _ in range(rng.randint(1, 2)):
        step = rng.randint(2, max(2, min(steps, 8)))
        for _ in range(rng.randint(1, 3)):
            worker, phase = rng.choice(names), rng.choice(WINDOW)
            verb = rng.choice(("crash", "crash", "pause", "hold", "hold", "partition_oneway"))
            other = rng.choice([COORDINATOR, *(name for name in names if name != worker)])
            if verb in ("hold", "partition_oneway"):
                whom = (worker, other) if rng.random() < 0.5 else (other, worker)
                cluster.when(verb, *whom, name=worker).at(phase=phase, step=step)
            else:
                back_after_s = rng.choice((None, rng.uniform(0.05, 4.0)))
                moment = cluster.when(verb, name=worker, back_after_s=back_after_s)
                moment.at(phase=phase, step=None if phase is Phase.TAKE_OVER else step)
        if rng.random() < 0.5:
            worker = rng.choice(names)
            cluster.when("crash", COORDINATOR, name=worker).at(phase=rng.choice(WINDOW), step=step)
            cluster.restart(COORDINATOR, at_s=rng.uniform(3.0, 9.0))


def _add_fault(
    cluster: Cluster, rng: random.Random, names: list[str], steps: int, calm_s: float
) -> None:
    at_s = rng.uniform(0.5, calm_s * 0.6)
    longest_s = max(6.5, calm_s * 0.4)
    until_s = at_s + rng.choice((rng.uniform(0.01, 0.5), rng.uniform(0.5, longest_s)))
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
    else:
        _ask_or_tell(cluster, rng, kind, worker, at_s)


def _ask_or_tell(cluster: Cluster, rng: random.Random, kind: str, worker: str, at_s: float) -> None:
    """What somebody does to one worker, or to the job."""
    if kind == "echo":
        for _ in range(3):
            cluster.do("echo", worker, at_s=at_s + rng.uniform(0.0, 6.0))
    elif kind == "join":
        cluster.restart(worker, at_s=at_s)
    elif kind == "kill":
        cluster.do("kill", worker, rng.choice(("KILL", "TERM", "STOP")), at_s=at_s)
    elif kind == "cancel":
        for again in range(rng.choice((1, 1, 2, 3))):
            cluster.do("cancel", "job-1", at_s=at_s + again * rng.uniform(0.0, 2.0))
        if rng.random() < 0.5:
            cluster.bounce(COORDINATOR, at_s=at_s + rng.uniform(0.0, 0.1))
    else:
        cluster.do(kind, worker, at_s=at_s)


def _hurt_the_store(cluster: Cluster, seed: int, names: list[str], calm_s: float) -> None:
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
    begun_s = rng.uniform(1.0, calm_s * 0.5)
    down_s = rng.uniform(begun_s + 0.2, calm_s * 0.75)
    up_s = down_s + rng.uniform(0.05, 2.0)
    if kind == "restore":
        cluster.do("backup", at_s=begun_s).do("restore", COORDINATOR, at_s=down_s)
    else:
        cluster.do("fail_store", COORDINATOR, at_s=begun_s).crash(COORDINATOR, at_s=down_s)
        cluster.do("mend_store", COORDINATOR, at_s=rng.uniform(begun_s, calm_s))
    cluster.restart(COORDINATOR, at_s=up_s)
    for _ in range(rng.randint(1, 3)):
        cluster.bounce(rng.choice(names), at_s=rng.uniform(begun_s, up_s), down_s=rng.random())
    for _ in range(rng.randint(0, 2)):
        at_s = rng.uniform(begun_s, up_s)
        cluster.hold(rng.choice(names), COORDINATOR, at_s=at_s, until_s=rng.uniform(up_s, calm_s))
    for job in ("job-1", "job-2"):
        for look in range(LOOKS):
            cluster.do("resume", job, at_s=calm_s + HOME_S * (1 + look))


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


PASSING: Final = {"hold": "release", "narrow": "widen", "lose": "keep"}
"""What befalls a link, and how it ends."""
KINDS: Final = (
    *("ambush",) * 10,
    *("bounce",) * 4,
    *("bounce coordinator",) * 4,
    *("hold",) * 5,
    *("partition_oneway",) * 4,
    *("narrow",) * 3,
    *("lose",) * 2,
    *("echo",) * 2,
    *("drain",) * 2,
    "cancel",
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
