"""Scenes: sequences of faults of a simulated cluster that random plans would hardly produce.

Each scene targets a part of the protocol that only fails if several things go wrong in sequence.
All other faults of the cluster are random (`tests.sim.plans`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.sim.cluster import Cluster
from tests.sim.phases import Phase
from tests.sim.surroundings import COORDINATOR

WINDOW: Final = (
    *(Phase.ALL_GATHER, Phase.CONTROL_WORD, Phase.CONTROL_WORD),
    *(Phase.OPTIMIZER, Phase.COMMITTED, Phase.COMMITTED, Phase.FORWARD, Phase.TAKE_OVER),
)
"""Phases in which some ranks, but not all, have committed a step."""
LAST: Final = (
    *(Phase.CONTROL_WORD, Phase.OPTIMIZER, Phase.COMMITTED, Phase.EXCHANGE, Phase.CHECKPOINT),
)
"""Phases of a job's last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting of a scene.

    Attributes:
        cluster: the cluster to whose plan the scene is added.
        rng: random generator.
        names: names of all workers; the last one is not running at the beginning.
        steps: number of steps of the first job.
        calm_s: time at which all faults are over.
    """

    cluster: Cluster
    rng: random.Random
    names: Sequence[str]
    steps: int
    calm_s: float


def commit_window(at: Setting) -> None:
    """Several faults strike in one step, while some ranks have committed it and others have not.

    In addition the coordinator is down, or members that hold the step cannot be reached.
    """
    cluster, rng, names = at.cluster, at.rng, at.names
    for _ in range(rng.randint(1, 2)):
        step = rng.randint(2, max(2, min(at.steps, 8)))
        for _ in range(rng.randint(1, 3)):
            worker, phase = rng.choice(names), rng.choice(WINDOW)
            verb = rng.choice(("crash", "crash", "pause", "hold", "hold", "partition_oneway"))
            other = rng.choice([COORDINATOR, *(name for name in names if name != worker)])
            struck = step if phase is not Phase.TAKE_OVER else step - rng.randint(0, 1)
            if verb in ("hold", "partition_oneway"):
                whom = (worker, other) if rng.random() < 0.5 else (other, worker)
                cluster.when(verb, *whom, name=worker).at(phase=phase, step=struck)
            else:
                back_after_s = rng.choice((None, rng.uniform(0.05, 4.0)))
                moment = cluster.when(verb, name=worker, back_after_s=back_after_s)
                moment.at(phase=phase, step=struck)
        if rng.random() < 0.5:
            worker = rng.choice(names)
            cluster.when("crash", COORDINATOR, name=worker).at(phase=rng.choice(WINDOW), step=step)
            cluster.restart(COORDINATOR, at_s=rng.uniform(3.0, 9.0))


def relay(at: Setting) -> None:
    """All prepare a step and one commits it and dies; then the workers that complete it die."""
    cluster, rng, names = at.cluster, at.rng, at.names
    step = rng.randint(2, max(2, min(at.steps - 1, 6)))
    first, *others = rng.sample(names[:-1], len(names) - 1)
    phase = rng.choice((Phase.CONTROL_WORD, Phase.OPTIMIZER, Phase.COMMITTED))
    cluster.when("crash", name=first, back_after_s=rng.choice((None, 5.0, 20.0))).at(
        phase=phase, step=step
    )
    for name in others[: rng.randint(1, max(1, len(others) - 1))]:
        # after it has taken over the state: while it waits for the others, or in the next step
        where = rng.choice((Phase.EXCHANGE, Phase.FORWARD, Phase.TAKE_OVER))
        at_step = step if where is Phase.TAKE_OVER else step + 1
        back_after_s = rng.choice((None, 1.0, 10.0))
        cluster.when("crash", name=name, back_after_s=back_after_s).at(phase=where, step=at_step)
    if rng.random() < 0.3:
        cluster.bounce(COORDINATOR, at_s=rng.uniform(3.0, 12.0), down_s=rng.uniform(0.1, 2.0))


def exile(at: Setting) -> None:
    """Most members cannot be reached, some are dead, and a worker without any state is present."""
    cluster, rng = at.cluster, at.rng
    begun_s = rng.uniform(4.0, 15.0)
    *trains, spare = at.names
    for name in trains:
        until_s = begun_s + rng.choice((rng.uniform(5.0, 30.0), rng.uniform(70.0, 100.0)))
        if rng.random() < 0.3:
            cluster.crash(name, at_s=begun_s).restart(name, at_s=until_s)
        else:
            cluster.hold(name, COORDINATOR, at_s=begun_s, until_s=until_s)
        for _ in range(3):
            cluster.do("echo", name, at_s=rng.uniform(begun_s, until_s + 5.0))
    cluster.restart(spare, at_s=begun_s + 0.5)
    if rng.random() < 0.7:
        cluster.bounce(COORDINATOR, at_s=begun_s + 0.1, down_s=rng.uniform(0.2, 3.0))


def blackouts(at: Setting) -> None:
    """Repeated power failures; each time only some workers return, and the operator resumes jobs.

    Alternatively, some of the others keep running but cannot be reached.

    As a result steps are repeated, and different states are saved for the same step.
    """
    cluster, rng = at.cluster, at.rng
    unheard = rng.random() < 0.3  # then the operator must not declare them gone
    from_s = 0.0
    for _ in range(rng.randint(2, 4)):
        from_s += rng.uniform(3.0, 7.0)
        back = rng.sample(at.names, rng.randint(1, len(at.names)))
        for name in at.names:
            if unheard and name not in back and rng.random() < 0.5:
                cluster.hold(
                    name, COORDINATOR, at_s=from_s, until_s=from_s + rng.uniform(2.0, 12.0)
                )
                continue
            cluster.crash(name, at_s=from_s + rng.choice((0.0, 0.0, rng.uniform(0.0, 0.3))))
            late_s = 0.0 if name in back else rng.uniform(4.0, 14.0)
            cluster.restart(name, at_s=from_s + 0.4 + rng.random() + late_s)
        if rng.random() < 0.3:
            cluster.bounce(COORDINATOR, at_s=from_s + rng.uniform(-0.2, 2.0), down_s=0.3)
        for _ in range(0 if unheard else rng.choice((0, 1, 3))):
            cluster.do("resume", "job-1", at_s=from_s + rng.uniform(1.5, 4.5))


def cut_off(at: Setting) -> None:
    """Some links are dead for long, so that workers are excluded or the ring is reordered."""
    cluster, rng = at.cluster, at.rng
    for _ in range(rng.choice((1, 1, 2))):
        one, other = rng.sample(at.names, 2)
        begun_s = rng.uniform(1.0, 5.0)
        verb, ends = rng.choice((("hold", "release"), ("narrow", "widen")))
        if rng.random() < 0.3:
            until_s = rng.uniform(begun_s + 3.0, at.calm_s)
            cluster.partition_oneway(one, other, at_s=begun_s, until_s=until_s)
        else:
            cluster.do(verb, one, other, at_s=begun_s)
            cluster.do(ends, one, other, at_s=rng.uniform(begun_s + 3.0, at.calm_s))
    if rng.random() < 0.5:
        commit_window(at)


def gone_back(at: Setting) -> None:
    """The store is restored from a backup while only some workers that know more are present."""
    cluster, rng, names = at.cluster, at.rng, at.names
    cluster.do("backup", at_s=rng.uniform(2.5, 4.5))
    for _ in range(rng.randint(1, 2)):
        cluster.bounce(rng.choice(names), at_s=rng.uniform(4.0, 6.0), down_s=rng.random())
    down_s = rng.uniform(6.0, 9.0)
    cluster.do("restore", COORDINATOR, at_s=down_s)
    for name in names:
        if rng.random() < 0.4:
            until_s = down_s + rng.uniform(1.0, 12.0)
            cluster.hold(name, COORDINATOR, at_s=down_s - rng.random(), until_s=until_s)
        elif rng.random() < 0.25:
            cluster.bounce(name, at_s=down_s + rng.uniform(-0.5, 1.0), down_s=rng.random())
    cluster.restart(COORDINATOR, at_s=down_s + rng.uniform(0.05, 1.0))
    looks_after(cluster, at.calm_s)


def flipped(at: Setting) -> None:
    """Bits flip in one or several states, and a worker cannot be reached when that is detected."""
    cluster, rng, names = at.cluster, at.rng, at.names
    step = rng.randint(2, max(2, min(at.steps, 9)))
    phase = rng.choice((Phase.FORWARD, Phase.COMMITTED, Phase.BACKWARD))
    for name in rng.sample(names, rng.choice((1, 1, 2, len(names)))):
        cluster.when("corrupt", name=name).at(phase=phase, step=step)
    name = rng.choice(names)
    where = rng.choice((Phase.FORWARD, Phase.EXCHANGE, Phase.CONTROL_WORD, Phase.COMMITTED))
    after = step + rng.randint(0, 3)
    if rng.random() < 0.6:
        cluster.when("crash", COORDINATOR, name=name).at(phase=where, step=after)
        cluster.restart(COORDINATOR, at_s=rng.uniform(5.0, 12.0))
    if rng.random() < 0.6:
        cluster.when("hold", name, COORDINATOR, name=name).at(phase=where, step=after)
    if rng.random() < 0.3:
        cluster.when("crash", name=rng.choice(names), back_after_s=1.0).at(phase=where, step=after)


def ending(at: Setting) -> None:
    """A job ends or is ended, and not every worker can write its state."""
    cluster, rng, names = at.cluster, at.rng, at.names
    if rng.random() < 0.3:  # only an operator who cancels, perhaps repeatedly
        at_s = rng.uniform(2.0, 6.0)
        for again in range(rng.randint(1, 3)):
            cluster.do("cancel", "job-1", at_s=at_s + again * rng.random())
        return
    if rng.random() < 0.5:
        for name in rng.sample(names, rng.randint(1, len(names))):
            cluster.do("fill", name, at_s=0.0).do("clear", name, at_s=rng.uniform(6.0, at.calm_s))
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            cluster.do("cancel", "job-1", at_s=rng.uniform(2.0, 10.0))
    for _ in range(rng.choice((0, 0, 1, 2))):
        step = at.steps - rng.randint(0, 1)
        worker, verb = rng.choice(names), rng.choice(("crash", "crash", "pause", "drain", "leave"))
        moment = cluster.when(verb, name=worker, back_after_s=rng.choice((None, 2.0)))
        moment.at(phase=rng.choice(LAST), step=step)
    if rng.random() < 0.4:
        cluster.bounce(COORDINATOR, at_s=rng.uniform(3.0, 9.0), down_s=rng.uniform(0.1, 2.0))


def departures(at: Setting) -> None:
    """Workers leave in order, including the only holders of a state, while others join."""
    cluster, rng = at.cluster, at.rng
    for name in at.names:
        at_s = rng.uniform(1.0, at.calm_s * 0.6)
        verb = rng.choice(("drain", "drain", "leave", "leave", "crash"))
        cluster.do(verb, name, at_s=at_s)
        cluster.restart(name, at_s=at_s + rng.uniform(0.5, 8.0))
    if rng.random() < 0.4:
        cluster.bounce(COORDINATOR, at_s=rng.uniform(3.0, 9.0), down_s=rng.uniform(0.1, 2.0))


LOOKS: Final = 30
"""Number of times that the operator looks at waiting jobs."""
HOME_S: Final = 6.0
"""Time after the last fault by which all workers have returned."""


def looks_after(cluster: Cluster, calm_s: float) -> None:
    """Let the operator resume jobs that wait for a worker once all others have returned."""
    for job in ("job-1", "job-2", *cluster.further_jobs()):
        for look in range(LOOKS):
            cluster.do("resume", job, at_s=calm_s + HOME_S * (1 + look))
