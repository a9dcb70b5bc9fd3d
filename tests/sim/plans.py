"""Random plans: a cluster, a job, and a period with many faults.

The seed determines everything, so `python -m tests.sim SEED` repeats a run that failed.  A plan
calms down after seconds or minutes: all faults end, and every worker that is down is started again.
From then on the job must reach its end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.sim import scenes, shards
from tests.sim.cluster import Cluster
from tests.sim.phases import Phase
from tests.sim.surroundings import COORDINATOR, Pace

CALM_S: Final = 14.0
WORLDS: Final = (*(2, 3, 4) * 18, *(5, 6) * 8, *(8, 12, 16) * 3, 24, 32)
MOST_FAULTS: Final = 9
STORES: Final = ("restore", "fill", *("",) * 4)
NEIGHBOURS: Final = 0.6
LOCAL_STEPS: Final = 0.3
"""Share of jobs that take rounds of several steps."""
BY_SPEED: Final = 0.5
"""Share of plans in which rows are divided by speed."""
HANDS_ON: Final = 0.5
"""Share of jobs in which leaving ranks hand on their residuals."""
PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.REGROUP)
"""Phases of every job; shards change hands only in some."""
AMBUSHED: Final = ("crash", "crash", "crash", "pause", "stick", "corrupt")
AFTER_CALM: Final = ("restart", "unpause", "unstick", "clear")
SMALL: Final = (2, 3, 3, 4)


USUAL_PACE: Final = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The parameters of a kind of plan.

    Attributes:
        worlds: possible numbers of workers.
        pace: durations and sizes.
        steps: maximum number of steps of a job.
        calm_s: time at which all faults are over.
        scene: planned sequence of faults, in addition to random ones.
        faults: maximum number of random faults.
    """

    worlds: tuple[int, ...] = WORLDS
    pace: Pace = USUAL_PACE
    steps: int = 60
    calm_s: float = CALM_S
    scene: Callable[[scenes.Setting], None] | None = None
    faults: int = MOST_FAULTS


USUAL: Final = Kind()
AIMED: Final = Kind(worlds=(2, 3, 3, 4, 5), steps=30, scene=scenes.commit_window)
LONG: Final = Kind(
    worlds=SMALL, pace=Pace(compute_s=(0.5, 2.5), evaluate_s=(1.0, 5.0)), steps=60, calm_s=100.0
)
SLOW_STORE: Final = Kind(worlds=SMALL, pace=Pace(store_s=(0.2, 2.5)), scene=scenes.commit_window)
LARGE: Final = Kind(
    worlds=SMALL,
    pace=Pace(
        load_s=(0.1, 0.7), digest_s=(0.5, 3.0), checkpoint_s=(1.0, 6.0), state_bytes=(1.5e9, 1.5e9)
    ),
    calm_s=40.0,
)
EXILE: Final = Kind(
    worlds=(2, 2, 3),
    pace=Pace(compute_s=(0.5, 1.5)),
    steps=40,
    calm_s=120.0,
    scene=scenes.exile,
)
RELAY: Final = Kind(
    worlds=SMALL, pace=Pace(load_s=(0.01, 1.0)), steps=20, scene=scenes.relay, faults=2
)
BLACKOUT: Final = Kind(
    worlds=SMALL, pace=Pace(compute_s=(0.1, 0.5)), calm_s=25.0, scene=scenes.blackouts, faults=1
)
CUT: Final = Kind(worlds=(3, 3, 4, 4, 5), calm_s=25.0, steps=40, scene=scenes.cut_off, faults=3)
GONE_BACK: Final = Kind(
    worlds=SMALL, pace=Pace(compute_s=(0.2, 0.8)), calm_s=22.0, scene=scenes.gone_back, faults=1
)
FLIPPED: Final = Kind(worlds=(2, 3, 3, 4, 5), steps=30, scene=scenes.flipped, faults=2)
ENDING: Final = Kind(worlds=SMALL, steps=12, scene=scenes.ending, faults=1)
DEPARTURES: Final = Kind(worlds=SMALL, steps=40, scene=scenes.departures, faults=1)
KINDS_OF_PLANS: Final = (
    *(USUAL, AIMED, EXILE, RELAY, ENDING, GONE_BACK, LONG, BLACKOUT, CUT, SLOW_STORE, AIMED),
    *(FLIPPED, DEPARTURES, USUAL, EXILE, LARGE, BLACKOUT),
)


SHARDED_PLANS: Final = (
    *(USUAL, AIMED, RELAY, ENDING, GONE_BACK, LONG, BLACKOUT, CUT, SLOW_STORE, DEPARTURES),
    *(USUAL, AIMED, EXILE, USUAL, AIMED, RELAY, USUAL),
)
MIRRORS: Final = (0, 1, 1, 1, 2)
AT_A_REGROUP: Final = 0.3
SERVED: Final = 0.4
"""Share of the sharded plans in which parameter servers own the state."""
SERVED_BESIDE: Final = 0.6
"""Share of jobs with servers among sharded ones, where there are any."""
SHOWN: Final = 0.5
"""Share of plans in which links show what they carry in the time of a hop."""
HOP_BYTES: Final = (0, 1, 2, 4, 8, 100)
"""With buckets of up to 320 bytes, all, some or none of them travel whole."""
DAMAGED: Final = 0.25
"""Share of plans with damaged shards."""
SHARED: Final = Kind(pace=Pace(compute_s=(0.2, 0.8)), steps=100, calm_s=60.0)
"""Long enough for several moves of workers between jobs."""
BESIDE: Final = (
    *(USUAL, AIMED, RELAY, ENDING, SHARED, GONE_BACK, BLACKOUT, CUT, SLOW_STORE, DEPARTURES),
    *(SHARED, AIMED, EXILE, USUAL, SHARED),
)
"""Kinds of plans with several jobs at once."""
SHARING: Final = 0.7
"""Share of those in which jobs take from some to more workers, and have priorities."""
LONGER: Final = 3
"""Their jobs come later and take longer, by this factor, so that workers move between them."""
BY_HAND: Final = 0.4
"""Share of those in which processes that were started by hand train one more job."""
SHARDED_BESIDE: Final = {False: 0.2, True: 0.8}
"""Share of sharded jobs among several, and among several of which most are to be sharded."""


def draw(seed: int, *, sharded: bool = False) -> Cluster:
    """The cluster of a seed, ready to run; perhaps the first job's state is sharded."""
    rng = random.Random(f"sharded plan {seed}" if sharded else f"plan {seed}")
    kinds = SHARDED_PLANS if sharded else KINDS_OF_PLANS
    kind = kinds[seed % len(kinds)]
    worlds = [world for world in kind.worlds if world < shards.LARGEST_WORLD or not sharded]
    workers = rng.choice(worlds)
    cluster = Cluster(seed, workers=workers, pace=kind.pace)
    steps = rng.randint(5, kind.steps if workers < 8 else 15 if workers < 24 else 6)
    strategy_rng = random.Random(f"strategy {seed}")
    least = rng.randint(1, max(1, workers // 2))
    strategy = _shards(strategy_rng) if sharded else _rounds(strategy_rng)
    if sharded and workers > 1 and strategy_rng.random() < SERVED:
        least = min(least, cluster.serve(_servers(strategy_rng, workers)))
        strategy = {**(strategy or {}), "owners": "servers"}
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
        strategy=strategy,
        shares=_shares(seed),
        hands_on=not sharded and strategy_rng.random() < HANDS_ON,
    )
    if rng.random() < 0.2:
        cluster.submit(steps=3, at_s=rng.uniform(0, 3))
    names = [f"worker-{number}" for number in range(1, workers + 2)]
    if rng.random() < 0.1 and workers > 2:
        _unless_server(cluster, rng.choice(names), cluster.misfit)
    if rng.random() < 0.05:
        failing, step = rng.choice(names), rng.randint(1, steps)
        _unless_server(cluster, failing, lambda name: cluster.failing(name, step=step))
    if rng.random() < 0.1:
        cluster.broken(rng.choice(names), until_s=rng.uniform(1.0, kind.calm_s))
    for _ in range(rng.randint(0, kind.faults)):
        _add_fault(cluster, rng, names, steps, kind.calm_s, sharded=sharded)
    if kind.scene is not None:
        setting = scenes.Setting(
            cluster=cluster, rng=rng, names=names, steps=steps, calm_s=kind.calm_s
        )
        kind.scene(setting)
    if not cluster.machines.broken:  # a job may rightly fail if its only worker cannot warm up
        _hurt_the_store(cluster, seed, names, kind.calm_s)
    if sharded:
        _harm_shards(cluster, seed, names, kind.calm_s)
    _look_after(cluster, rng, kind.calm_s)
    _show_links(cluster, seed)
    _calm(cluster, names, kind.calm_s)
    return cluster


def draw_beside(seed: int, *, sharded: bool = False) -> Cluster:
    """The cluster of a seed with several jobs, most of which run beside each other.

    With `sharded`, most jobs are sharded, and in some plans there are parameter servers.
    """
    rng = random.Random(f"plan of {'sharded ' if sharded else ''}jobs {seed}")
    kind = BESIDE[seed % len(BESIDE)]
    workers = rng.choice((5, 6, 6, 8) if sharded else (3, 4, 4, 5, 6, 8))
    cluster = Cluster(seed, workers=workers, pace=kind.pace)
    served = sharded and rng.random() < SERVED
    if served:  # so many that a job finds the workers that it takes beside them
        cluster.serve(_servers(rng, workers)[:2])
    steps, sharing = rng.randint(5, kind.steps), random.Random(f"ranges {seed}")
    longer = LONGER if sharing.random() < SHARING else 1
    for _ in range(rng.randint(2, 5)):
        takes = rng.choice((0, 1, 1, 2, 2, 3))
        cluster.submit(
            steps=longer * rng.randint(3, steps),
            **(_range(sharing, takes) if longer > 1 else {"workers": takes}),
            min_workers=rng.randint(1, max(1, takes)),
            checkpoint_every=rng.choice((0, 2, 5)),
            evaluate_every=rng.choice((0, 0, 3)),
            copies=rng.choice((1, 1, 2)),
            settle_s=rng.choice((0.2, 1.0)),
            strategy=_beside(rng, takes, sharded=sharded, served=served),
            shares=_shares(seed),
            at_s=longer * rng.choice((0.0, rng.uniform(0.0, 8.0))),
        )
    names = [f"worker-{number}" for number in range(1, workers + 2)]
    names += _by_hand(cluster, seed, steps)
    if rng.random() < 0.1:
        cluster.broken(rng.choice(names), until_s=rng.uniform(1.0, kind.calm_s))
    for _ in range(rng.randint(0, kind.faults)):
        _add_fault(cluster, rng, names, steps, kind.calm_s, sharded=True)
    if kind.scene is not None:
        setting = scenes.Setting(
            cluster=cluster, rng=rng, names=names, steps=steps, calm_s=kind.calm_s
        )
        kind.scene(setting)
    if not cluster.machines.broken:
        _hurt_the_store(cluster, seed, names, kind.calm_s)
    if sharded:
        _harm_shards(cluster, seed, names, kind.calm_s)
    _show_links(cluster, seed)
    _calm(cluster, names, kind.calm_s)
    return cluster


def _range(rng: random.Random, takes: int) -> dict[str, Any]:
    """The workers and the priority of a job that takes at least so many; few take all (0)."""
    least = takes or rng.choice((0, 1, 1, 2))
    most = min(least + rng.choice((0, 1, 2, 4)), shards.LARGEST_WORLD - 1)
    return {"workers": least and f"{least}-{most}", "priority": rng.choice((0, 0, 0, 1, 5))}


def _by_hand(cluster: Cluster, seed: int, steps: int) -> list[str]:
    """Names of the processes that in some plans were started by hand, and train one more job.

    Uses a separate random generator, so that other plans do not change.
    """
    rng = random.Random(f"by hand {seed}")
    if rng.random() >= BY_HAND:
        return []
    names = [f"hand-{number}" for number in range(1, rng.randint(2, 4))]
    cluster.submit(
        steps=rng.randint(3, steps),
        min_workers=rng.randint(1, len(names)),
        checkpoint_every=rng.choice((0, 2, 5)),
        settle_s=rng.choice((0.2, 1.0)),
        at_s=rng.choice((0.0, rng.uniform(0.0, 8.0))),
        by_hand=names,
    )
    return names


def _beside(
    rng: random.Random, takes: int, *, sharded: bool, served: bool
) -> dict[str, object] | None:
    """The [strategy] table of one of several jobs, which takes so many workers."""
    if not takes or rng.random() >= SHARDED_BESIDE[sharded]:
        return _rounds(rng)
    owners = {"owners": "servers"} if served and rng.random() < SERVED_BESIDE else {}
    return {**_shards(rng), **owners}


def _rounds(rng: random.Random) -> dict[str, object] | None:
    """The [strategy] table of some jobs: rounds of several steps, perhaps later, perhaps growing.

    Uses a separate random generator, so that other plans do not change.
    """
    if rng.random() >= LOCAL_STEPS:
        return None
    inner_steps = rng.choice((2, 3, 4, 8))
    grows = rng.random() < 0.3
    return {
        "name": rng.choice(("local_sgd", "diloco")),
        "inner_steps": inner_steps,
        "local_start_step": rng.choice((0, 0, 3, 7)),
        **({"inner_steps_double_every": 10, "inner_steps_max": 3 * inner_steps} if grows else {}),
    }


def _shares(seed: int) -> str:
    """How rows are divided in a plan; uses a separate random generator."""
    return "measured" if random.Random(f"rows {seed}").random() < BY_SPEED else "equal"


def _shards(rng: random.Random) -> dict[str, object]:
    """The [strategy] table of a job whose state is sharded."""
    return {"name": "sharded", "mirrors": rng.choice(MIRRORS)}


def _unless_server(cluster: Cluster, name: str, fault: Callable[[str], object]) -> None:
    """Plan what takes a worker out for good; without its only server a job rightly waits."""
    if name not in cluster.machines.surroundings.servers:
        fault(name)


def _servers(rng: random.Random, workers: int) -> list[str]:
    """Names of some workers, not of all, that are parameter servers."""
    count = rng.randint(1, min(3, workers - 1))
    return rng.sample([f"worker-{number}" for number in range(1, workers + 1)], count)


def _harm_shards(cluster: Cluster, seed: int, names: list[str], calm_s: float) -> None:
    """In some plans, damage shards in memory.

    Uses a separate random generator, so that other plans do not change.
    """
    rng = random.Random(f"shards {seed}")
    if rng.random() >= DAMAGED:
        return
    for _ in range(rng.choice((1, 1, 2))):
        at_s = rng.uniform(1.0, calm_s)
        cluster.do("damage", rng.choice(names), at_s=at_s)
        if rng.random() < 0.5:  # so that shards change hands soon
            cluster.bounce(rng.choice(names), at_s=at_s + rng.uniform(0.0, 0.3))


def _calm(cluster: Cluster, names: list[str], calm_s: float) -> None:
    """End all faults, and start all processes that are down."""
    cluster.do("calm", at_s=calm_s).restart(COORDINATOR, at_s=calm_s)
    for name in names:
        for verb in AFTER_CALM:
            cluster.do(verb, name, at_s=calm_s)
        cluster.do("unpause", name, at_s=calm_s + 1.0)  # a SIGNAL may have waited in its socket


def _show_links(cluster: Cluster, seed: int) -> None:
    """In some plans, let links show latencies and rates by which buckets travel whole or not.

    Uses separate random generators, so that other plans do not change.
    """

    def hop_bytes(name: str, incarnation: int) -> int:
        return random.Random(f"hop of {name} {incarnation} {seed}").choice(HOP_BYTES)

    if random.Random(f"links {seed}").random() < SHOWN:
        cluster.machines.surroundings.hop_bytes = hop_bytes


def _look_after(cluster: Cluster, rng: random.Random, calm_s: float) -> None:
    """Let an operator look at jobs at intervals and resume those waiting for absent workers."""
    for _ in range(rng.choice((0, 0, 0, 1, 4))):
        cluster.do("look_after", "job-1", at_s=rng.uniform(2.0, calm_s))


def _add_fault(
    cluster: Cluster,
    rng: random.Random,
    names: list[str],
    steps: int,
    calm_s: float,
    *,
    sharded: bool,
) -> None:
    at_s = rng.uniform(0.5, calm_s * 0.6)
    longest_s = max(6.5, calm_s * 0.4)
    until_s = at_s + rng.choice((rng.uniform(0.01, 0.5), rng.uniform(0.5, longest_s)))
    one, other = _pair(rng, names)
    worker = rng.choice(names)
    kind = rng.choice(KINDS)
    if sharded and kind == "corrupt":
        kind = "crash"  # nobody can tell which of two holders of a shard is right
    if kind == "ambush":
        _lay(cluster, rng, worker, steps, sharded=sharded)
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
    """Add an action of an operator on one worker or on the job."""
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
    """In some plans, restore the store from a backup or make it unwritable, across a restart.

    Meanwhile generations begin and end that the store then does not know, and some workers that
    know them cannot be reached when the coordinator is back.  Uses a separate random generator, so
    that other plans do not change.  Once all workers that will return have done so, the operator
    resumes jobs that wait for an absent one.
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
    scenes.looks_after(cluster, calm_s)


def _lay(cluster: Cluster, rng: random.Random, worker: str, steps: int, *, sharded: bool) -> None:
    """Add a fault that strikes a worker at a random phase, of one step or of any."""
    back_after_s = rng.choice((None, rng.uniform(0.05, 3.0)))
    verb = rng.choice(AMBUSHED[:-1] if sharded else AMBUSHED)
    moment = cluster.when(verb, name=worker, back_after_s=back_after_s)
    step = rng.choice((None, rng.randint(1, steps)))
    if sharded and rng.random() < AT_A_REGROUP:
        moment.at(phase=Phase.REGROUP)
    else:
        moment.at(phase=rng.choice(PHASES), step=step)


def _pair(rng: random.Random, names: list[str]) -> tuple[str, str]:
    """Two processes with much traffic: ring neighbours, or a worker and the coordinator."""
    index = rng.randrange(len(names) - 1)
    if rng.random() < NEIGHBOURS:
        return names[index], names[(index + 1) % (len(names) - 1)]
    pair = [names[index], COORDINATOR]
    rng.shuffle(pair)
    return pair[0], pair[1]


PASSING: Final = {"hold": "release", "narrow": "widen", "lose": "keep"}
"""Faults of a link, each with the verb that ends it."""
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
