"""Workers that join a job which trains without them: their troubles cost only their own place.

A joiner may make a rank's slice of rows too small for the model, may be unable to load the state,
may hang, or may come to hold another state than it was given.  Those that trained before go on, and
it is set aside for a while, longer each time.  A failure is put down to it from its arrival to the
first committed step, and only if the others are enough; otherwise it is judged as usual
(`dtd.cluster.isolation`).  Part of the membership machine; changes the cluster's state, adds
effects.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster.coverage import can_spare
from dtd.cluster.records import WARM_UP, Job, SetAside, Worker
from dtd.cluster.state import ClusterState, least_workers
from dtd.cluster.transitions import GONE, GenerationState
from dtd.wire import messages as m

FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 600.0


def dispensable(cluster: ClusterState, job: Job) -> frozenset[str]:
    """Names of the generation's joiners; empty if the other members could not go on alone."""
    joined = cluster.run.joined
    if cluster.run.phase is GenerationState.NONE or not joined:
        return frozenset()
    staying = [one for one in cluster.members() if one.name not in joined and one.state not in GONE]
    enough = sum(not one.serves for one in staying) >= least_workers(job)
    return joined if enough and can_spare(job, *joined) else frozenset()


def blamed(cluster: ClusterState, job: Job, step: int) -> frozenset[str]:
    """Joiners to which a failure is put down, after `step` committed steps; empty if none."""
    return dispensable(cluster, job) if step == cluster.run.start_step >= job.step else frozenset()


def set_aside(
    cluster: ClusterState, worker: Worker, failed: m.Failed, now: float, *, at: int
) -> SetAside:
    """Record that a worker is not given the job for a while.

    Args:
        cluster: changes.
        worker: the worker.
        failed: what it, or another worker because of it, has reported.
        now: the time.
        at: committed steps at that time, or WARM_UP.
    """
    known = cluster.isolation.set_aside.get(worker.name)
    if known is not None and known.incarnation == worker.incarnation:
        return known  # a repeated report on another connection
    pause_s = FIRST_PAUSE_S if known is None else min(2 * known.pause_s, MAX_PAUSE_S)
    aside = cluster.isolation.set_aside[worker.name] = SetAside(
        at=at,
        failed=failed,
        until=now + pause_s,
        pause_s=pause_s,
        incarnation=worker.incarnation,
        pid=worker.registration.pid,
        again=known.again + 1 if known is not None and known.at == at else 1,
    )
    return aside


def keep_away(cluster: ClusterState, job: Job, worker: Worker, why: str, now: float) -> None:
    """Do not give a joiner the job again as soon as it has restarted, which it is about to do."""
    known = cluster.isolation.set_aside.get(worker.name)
    if known is not None and known.incarnation == worker.incarnation:
        return
    failed = m.Failed(job=job.id, reason=why, traceback="", step=job.step)
    aside = set_aside(cluster, worker, failed, now, at=WARM_UP)
    tell(cluster, worker, aside)


def tell(cluster: ClusterState, worker: Worker, aside: SetAside) -> None:
    """Tell that a worker is set aside, and why."""
    cluster.incident(
        "worker_set_aside",
        f"{worker.name} is set aside for {aside.pause_s:g} s: {aside.failed.reason}",
        worker=worker.name,
        traceback=aside.failed.traceback,
    )
