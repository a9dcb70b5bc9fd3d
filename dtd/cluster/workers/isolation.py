"""Failures of a job's code on a worker: decides whether the job or that host is at fault.

A host without a driver, memory or the data set must not fail the job for all.  It is set aside and
retried later, at growing intervals.  The job is at fault if the same work fails on two workers (the
warm-up where no worker has completed it yet, or one step), or on all present workers, or if its
code does what no code of a job may do.

Workers that join a job which trains without them harm only themselves.  A joiner may make a rank's
slice of rows too small for the model, may be unable to load the state, may hang, or may come to
hold another state than it was given: those that trained before go on, and it is set aside.  A
failure is put down to it from its arrival to the first committed step, and only if the others are
enough.  Before it has taken the state over it counts as warming up.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from dtd.cluster import jobs
from dtd.cluster.generation import branches, ending, states
from dtd.cluster.records import WARM_UP, Job, SetAside, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE, MEMBERS, GenerationState, WorkerState
from dtd.cluster.workers import admission
from dtd.text.names import natural_key
from dtd.wire import messages as m

FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 600.0


def failed(cluster: ClusterState, job: Job, worker: Worker, message: m.Failed) -> None:
    """Set a worker aside, or fail the job."""
    if worker.state in GONE:
        return
    to_blame = blamed(cluster, job, message.step)
    if to_blame and worker.name in cluster.run.roster and worker.name not in to_blame:
        _blame(cluster, job, worker, to_blame, message)
        return
    at = message.step if _has_begun(job, worker) else WARM_UP
    aside = _excluded(cluster, worker, message, at=at)
    harmless = at == WARM_UP and job.state in admission.ENDING_JOBS
    if harmless or worker.name in to_blame:  # it was not a member of the generation that goes on
        _set_aside(cluster, worker, aside)
        return
    also = _also_on(cluster, job, worker, aside)
    if also:
        named = ", ".join(sorted(also, key=natural_key))
        message = replace(message, reason=f"{message.reason} (on {named}, too)")
    ends = bool(also) or message.of_code or job.state in admission.ENDING_JOBS
    if ends or not _can_do_without(cluster, job, worker, aside):
        jobs.fail(cluster, worker.name, message)
    else:
        _set_aside(cluster, worker, aside)


def _blame(
    cluster: ClusterState,
    job: Job,
    worker: Worker,
    to_blame: Collection[str],
    message: m.Failed,
) -> None:
    """Set joiners aside in whose presence a worker fails that trained before; it keeps its state.

    If it fails without them, too, it is judged for itself.
    """
    why = replace(message, reason=f"since it joined, {worker.name} fails: {message.reason}")
    for name in sorted(to_blame, key=natural_key):
        one = cluster.workers[name]
        if one.state not in GONE:
            aside = _excluded(cluster, one, why, at=WARM_UP)
            _set_aside(cluster, one, aside)
    cluster.fence(job)  # the worker that failed takes no further step of this generation


def _has_begun(job: Job, worker: Worker) -> bool:
    """Whether the worker can fail in a step: it has trained, or needs no state from others first.

    A member's state is not known when this coordinator has just started.
    """
    if worker.state is WorkerState.FORMING and job.start_step and worker.holdings.held is not None:
        return states.has(worker, (job.start_generation, job.start_step))
    return worker.state in MEMBERS or worker.reconnection.returning or states.in_memory(worker)


def _also_on(cluster: ClusterState, job: Job, worker: Worker, aside: SetAside) -> list[str]:
    """Workers with the same failure: the same step, or a warm-up with the same message.

    If another worker has warmed up, the job is not at fault in a failed warm-up.  Nor is it while
    others still find out whether they can run a job that not every worker may run.
    """
    alike = [
        name
        for name, one in cluster.set_aside.items()
        if one is not aside
        and one.at == aside.at
        and (one.at != WARM_UP or (one.until > 0 and _words(one) == _words(aside)))
    ]
    others_may = _somebody_can(cluster, worker) or _somebody_else_tries(cluster, job, worker)
    return [] if aside.at == WARM_UP and others_may else alike


def _words(one: SetAside) -> str:
    return re.sub(r"\d+", "", one.failed.reason)


def _somebody_else_tries(cluster: ClusterState, job: Job, worker: Worker) -> bool:
    """Whether the job requires the strict sandbox, and others that may support it still warm up."""
    if job.terms.sandbox != "strict":
        return False
    names = cluster.warming_since.keys() - cluster.set_aside.keys()
    return bool(names - {worker.name})


def _somebody_can(cluster: ClusterState, worker: Worker) -> bool:
    others = (one for one in cluster.workers.values() if one is not worker)
    return any(
        one.holdings.warmed is not None or one.state in MEMBERS or states.in_memory(one)
        for one in others
    )


def _can_do_without(cluster: ClusterState, job: Job, worker: Worker, aside: SetAside) -> bool:
    """Whether others are present, or may still come, that can do this worker's step.

    The last holder of committed steps is not set aside: the job ends, and they are saved.  A
    launched script that ends with an error ends the job.
    """
    if job.terms.launched and aside.at != WARM_UP:
        return False
    others = _others(cluster, worker.name)
    if not others:
        return _may_come(cluster, job)
    step = max(job.step, aside.failed.step)
    unsaved = aside.at != WARM_UP and step > branches.saved_step(job)
    if unsaved and not any(_is_heir(cluster, job, one) for one in others):
        return False
    return aside.at == WARM_UP or aside.again == 1 or len(others) >= job.terms.min_workers


def _is_heir(cluster: ClusterState, job: Job, worker: Worker) -> bool:
    """Whether it holds the job's state.  An absent member trains on if its generation has run."""
    if worker.state is WorkerState.DISCONNECTED:
        return cluster.run.has_run
    return not worker.reconnection.returning and cluster.remembers(job, worker)


def _others(cluster: ClusterState, name: str) -> list[Worker]:
    """Workers on which the job may still continue."""
    return [
        one
        for one in cluster.workers.values()
        if one.name != name
        and one.state not in GONE
        and not (one.state is WorkerState.INCOMPATIBLE and one.holdings.warmed is None)
    ]


def _may_come(cluster: ClusterState, job: Job) -> bool:
    """Whether other workers may still come: a new job waits briefly before it is judged."""
    settle_s = job.terms.settle_s
    if not cluster.waiting.must_settle or not settle_s:
        return False
    if cluster.verdict_by is None:
        cluster.verdict_by = cluster.now + settle_s
    return cluster.now < cluster.verdict_by


def _excluded(cluster: ClusterState, worker: Worker, failed: m.Failed, *, at: int) -> SetAside:
    """Record that a worker is not given the job for a while.

    `failed` is what it, or another worker because of it, has reported after `at` committed steps.
    """
    known = cluster.set_aside.get(worker.name)
    if known is not None and known.incarnation == worker.incarnation:
        return known  # a repeated report on another connection
    pause_s = FIRST_PAUSE_S if known is None else min(2 * known.pause_s, MAX_PAUSE_S)
    aside = cluster.set_aside[worker.name] = SetAside(
        at=at,
        failed=failed,
        until=cluster.now + pause_s,
        pause_s=pause_s,
        incarnation=worker.incarnation,
        pid=worker.registration.pid,
        again=known.again + 1 if known is not None and known.at == at else 1,
    )
    return aside


def _set_aside(cluster: ClusterState, worker: Worker, aside: SetAside) -> None:
    """Restart its process and leave it alone for a while."""
    was_member = worker.state in MEMBERS
    _tell(cluster, worker, aside)
    job = cluster.job
    # One that returns from an older generation says nothing of the newest.
    if (
        job is not None
        and worker.name in job.roster
        and (was_member or worker.reconnection.returning)
    ):
        cluster.fence(job)  # its training thread has ended
    admission.release(cluster, worker, "evicted", aside.reason)
    if was_member and cluster.run.phase is not GenerationState.NONE:
        why = f"{worker.name} has failed: {aside.failed.reason}"
        ending.end_now(cluster, why, worker=worker.name)


def _tell(cluster: ClusterState, worker: Worker, aside: SetAside) -> None:
    cluster.incident(
        "worker_set_aside",
        f"{worker.name} is set aside for {aside.pause_s:g} s: {aside.failed.reason}",
        worker=worker.name,
        traceback=aside.failed.traceback,
    )


def try_again(cluster: ClusterState, job: Job) -> None:
    """Warm up set-aside workers whose pause is over; fail the job if no other worker has come.

    A job that is ending needs no more workers.
    """
    if job.state in admission.ENDING_JOBS:
        return
    for worker in _here(cluster):
        if cluster.now >= cluster.set_aside[worker.name].until:
            worker.reason = ""
            admission.prepare(cluster, worker, job)
    if cluster.verdict_by is not None and cluster.now >= cluster.verdict_by:
        _judge_all(cluster)


def _here(cluster: ClusterState) -> list[Worker]:
    known = (cluster.workers[name] for name in cluster.set_aside if name in cluster.workers)
    return [worker for worker in known if admission.is_set_aside(cluster, worker)]


def _judge_all(cluster: ClusterState) -> None:
    """Fail the job: it failed on the only worker, and no other has come."""
    cluster.verdict_by = None
    if cluster.waiting.must_settle and cluster.set_aside and not _others(cluster, ""):
        name, aside = list(cluster.set_aside.items())[-1]
        jobs.fail(cluster, name, aside.failed)


def next_deadline(cluster: ClusterState) -> float | None:
    """Return when a worker is retried, or the job is judged."""
    times = [cluster.set_aside[worker.name].until for worker in _here(cluster)]
    if cluster.verdict_by is not None:
        times.append(cluster.verdict_by)
    return min(times, default=None)


def dispensable(cluster: ClusterState, job: Job) -> frozenset[str]:
    """Names of the generation's joiners; empty if the other members could not go on alone."""
    joined = cluster.run.joined
    if cluster.run.phase is GenerationState.NONE or not joined:
        return frozenset()
    staying = [one for one in cluster.members() if one.name not in joined and one.state not in GONE]
    enough = sum(not one.serves for one in staying) >= job.terms.min_workers
    return joined if enough and states.can_spare(job, *joined) else frozenset()


def blamed(cluster: ClusterState, job: Job, step: int) -> frozenset[str]:
    """Joiners to which a failure is put down, after `step` committed steps; empty if none."""
    return dispensable(cluster, job) if step == job.start_step >= job.step else frozenset()


def keep_away(cluster: ClusterState, job: Job, worker: Worker, why: str) -> None:
    """Do not give a joiner the job again as soon as it has restarted, which it is about to do."""
    known = cluster.set_aside.get(worker.name)
    if known is not None and known.incarnation == worker.incarnation:
        return
    failed = m.Failed(job=job.id, reason=why, traceback="", step=job.step)
    aside = _excluded(cluster, worker, failed, at=WARM_UP)
    _tell(cluster, worker, aside)
