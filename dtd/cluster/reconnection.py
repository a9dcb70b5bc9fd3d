"""Loss and return of control connections, or of the coordinator, while a generation runs.

A generation needs its ring, not its coordinator.  A member whose control connection is lost is
*away*: it has a time limit to come back, extended while its generation's step advances, since that
needs every member.  A coordinator that starts adopts the generation that its store names: all its
members are away at first.  Part of the membership machine; changes the cluster's state, adds
effects.
"""

from __future__ import annotations

from dataclasses import replace

from dtd.cluster import ending, forming, registration
from dtd.cluster.records import Holdings, Job, Liveness, Registration, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import (
    GONE,
    MEMBERS,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    MemberState,
    WorkerEvent,
    WorkerState,
)
from dtd.wire import messages as m

ADOPTION_PATIENCE = 2
"""Heartbeat time-outs within which members must return to a newly started coordinator."""

NEVER_HEARD = 0
"""Incarnation of a member that this coordinator knows from its store alone."""


def has_left(cluster: ClusterState, job: Job) -> bool:
    """Whether a member of the generation that the job's record names is here, and not in it.

    It has registered while another job was active, and this generation cannot go on without it.
    """
    here = (cluster.workers.get(name) for name in job.roster)
    return any(one is not None and one.state not in GONE for one in here)


def adopt(cluster: ClusterState, job: Job, now: float) -> None:
    """Adopt the generation that an earlier coordinator has announced."""
    cluster.run.generation = job.generation
    cluster.run.roster, cluster.run.roster_id = list(job.roster), job.roster_id
    cluster.run.start_step = job.start_step
    cluster.run.begin()
    formed = job.state is not JobState.FORMING
    if job.state is JobState.STOPPING:  # even if its generation was still forming
        formed = job.step > job.start_step
    cluster.move_generation(
        GenerationEvent.ADOPTED_RUNNING if formed else GenerationEvent.ADOPTED_FORMING
    )
    cluster.waiting.must_settle = False
    patience_s = ADOPTION_PATIENCE * cluster.heartbeat_timeout_s
    instances = dict(zip(job.roster, job.instances, strict=False))
    servers = job.roster[len(job.roster) - job.servers :]
    for name in job.roster:
        worker = _absent(name, instances.get(name, ""), serves=name in servers)
        cluster.workers[name] = worker
        cluster.move_worker(worker, WorkerEvent.EXPECTED)
        cluster.detector.watch(name, now, timeout_s=patience_s)
    run = cluster.run
    cluster.incident(
        "generation_adopted",
        f"generation {run.generation} is taken up: {', '.join(run.roster)} are expected",
        step=job.step,
    )


def take_up(cluster: ClusterState, job: Job, phase: MemberState) -> None:
    """Adopt a generation that is known only from its members, if all of them are in this phase.

    Args:
        cluster: the cluster's state.
        job: the active one.
        phase: RUNNING: all of them still train.  FINISHED: all of them have finished it, and say so
            again, for the job can end.
    """
    members = [cluster.workers.get(name) for name in job.roster]
    if job.generation < cluster.run.generation:
        return
    if not all(_is_there(one, job, phase) for one in members):
        return
    cluster.run.generation = job.generation
    cluster.run.roster, cluster.run.roster_id = list(job.roster), job.roster_id
    cluster.run.start_step = job.start_step
    cluster.run.begin()
    cluster.move_generation(GenerationEvent.TAKEN_UP)
    cluster.waiting.must_settle, cluster.waiting.newer_since = False, None
    cluster.move_job(job, JobEvent.TAKEN_UP)
    for name in job.roster:
        worker = cluster.workers[name]
        worker.reconnection.returning = False
        cluster.move_worker(worker, WorkerEvent.TAKEN_UP)
    finished = phase is MemberState.FINISHED
    cluster.incident(
        "generation_adopted",
        f"generation {cluster.run.generation} is taken up: {', '.join(cluster.run.roster)}"
        f" {'have finished' if finished else 'train in'} it",
        step=job.start_step,
    )
    if finished:
        ending.freeze(cluster, at_boundary=True, stop=False, reason="it is taken up")


def _is_there(worker: Worker | None, job: Job, phase: MemberState) -> bool:
    """Whether it came back in this phase of the job's newest generation, or has reached it since.

    One that trains has not left; one that has finished has reported that.
    """
    finished = phase is MemberState.FINISHED
    state = WorkerState.READY if finished else WorkerState.WARMING
    if worker is None or worker.state is not state:
        return False
    came = worker.reconnection
    there = (came.generation, came.phase) == (job.generation, phase.value)
    return there and came.returning is not finished


def _absent(name: str, instance: str, *, serves: bool) -> Worker:
    return Worker(
        registration=Registration(
            name=name, incarnation=NEVER_HEARD, instance=instance, serves=serves
        ),
        reason="has not come back since the coordinator started",
    )


def goes_away(cluster: ClusterState, worker: Worker, reason: str) -> bool:
    """Whether the generation may continue without this member's control connection."""
    trains = worker.state in (WorkerState.RUNNING, WorkerState.FINISHED)
    if not trains or cluster.run.phase is not GenerationState.RUNNING:
        return False
    cluster.move_worker(worker, WorkerEvent.DISCONNECTED)
    worker.reason = f"control connection lost: {reason}"
    cluster.incident("worker_away", f"{worker.name}: {worker.reason}", worker=worker.name)
    return True


def comes_back(cluster: ClusterState, message: m.Register, now: float) -> bool:
    """Whether this is a member of the current generation that reconnects."""
    known, job = cluster.workers.get(message.name), cluster.job
    if known is None or job is None or known.state not in MEMBERS:
        return False
    if message.identity != job.identity:
        return False
    same_process = known.incarnation in (message.incarnation, NEVER_HEARD)
    run = cluster.run
    same_generation = (message.generation, message.roster_id) == (run.generation, run.roster_id)
    if not (same_process and same_generation):
        return False
    worker = replace(registration.newcomer(message), state=known.state)
    worker.leaving = known.leaving
    worker.holdings = Holdings(held=known.holdings.held, warmed=known.holdings.warmed)
    worker.liveness = Liveness(
        heartbeat=known.liveness.heartbeat, signalled=known.liveness.signalled
    )
    cluster.workers[worker.name] = worker
    forms = message.phase == MemberState.FORMING.value
    cluster.move_worker(
        worker, WorkerEvent.RECONNECTED_FORMING if forms else WorkerEvent.RECONNECTED
    )
    registration.greet(cluster, worker)
    if cluster.run.phase is GenerationState.ENDING:
        _catch_up(cluster, worker)
    elif job.state is JobState.STOPPING:
        ending.freeze_one(cluster, worker, at_boundary=True, stop=True, reason=job.reason)
    forming.check_running(cluster, job, now)
    return True


def _catch_up(cluster: ClusterState, worker: Worker) -> None:
    """Repeat the end of the generation, which it may have missed."""
    recovery = cluster.ending.recovery
    at_boundary = cluster.ending.freeze_by is None
    reason = recovery.cause if recovery is not None else "the generation ends"
    ending.freeze_one(cluster, worker, at_boundary=at_boundary, stop=False, reason=reason)
