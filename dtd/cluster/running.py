"""A running generation: its progress, and the admission of ready workers.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from dtd.cluster import forming
from dtd.cluster import roster as choice
from dtd.cluster.ending import end_at_boundary
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState, most_workers
from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.wire import messages as m

ADMIT_PATIENCE_S = 0.5
"""Seconds that a ready worker waits for others that warm up, to join together with them."""


def progressed(
    cluster: ClusterState, job: Job, name: str, generation: int, step: int, now: float
) -> None:
    """A member reports a committed step.

    A member that is still forming has committed none in this generation: it may still have the
    steps that the generation is to redo.
    """
    run = cluster.run
    if generation != run.generation or run.phase is GenerationState.NONE:
        return
    if cluster.workers[name].state is WorkerState.FORMING or step <= max(run.start_step, job.step):
        return
    cluster.advance(step)
    run.advanced_at = now
    job.step = step
    if cluster.ending.recovery is not None and run.phase is not GenerationState.ENDING:
        recovery, cluster.ending.recovery = cluster.ending.recovery, None
        cluster.incident(
            "recovered",
            f"job {job.id} trains again: {recovery.cause}",
            worker=recovery.worker,
            step=step,
            **recovery.details(now),
        )


def left(
    cluster: ClusterState, job: Job, name: str, message: m.Frozen | m.Finished, now: float
) -> None:
    """Count steps of a leaving member that no heartbeat has reported."""
    held = choice.held_by(message)
    if held.generation == message.generation:
        progressed(cluster, job, name, message.generation, held.step, now)


def admit_ready(cluster: ClusterState, job: Job, now: float) -> None:
    """End the running generation at a step boundary when a worker is ready to join."""
    finishing = any(member.state is WorkerState.FINISHED for member in cluster.members())
    if finishing or job.state is JobState.STOPPING:
        return
    full = len(cluster.run.roster) - job.servers >= most_workers(job)
    ready = [w for w in _ready(cluster) if now >= ready_by(cluster, w) and (w.serves or not full)]
    if not ready or not _fit_in(cluster, job, ready):
        return
    for worker in ready:
        worker.reason = "joins at the next step boundary"
    end_at_boundary(cluster, f"{', '.join(w.name for w in ready)} joins", now)


def _ready(cluster: ClusterState) -> list[Worker]:
    return [w for w in cluster.workers.values() if w.state is WorkerState.READY and not w.leaving]


def _fit_in(cluster: ClusterState, job: Job, ready: list[Worker]) -> bool:
    """Whether the ring would grow with these workers; bad links may leave no place for them."""
    candidates = [*cluster.members(), *ready]
    choice_now = choice.choose(
        candidates,
        start=(job.start_generation, job.start_step),
        max_workers=most_workers(job),
        bad_links=cluster.isolation.links.bad,
    )
    forming.bar(cluster, [worker for worker in choice_now.barred if worker in ready])
    return len(choice_now.members) > len(cluster.run.roster)


def ready_by(cluster: ClusterState, worker: Worker) -> float:
    """Return when a ready worker joins even though others still warm up."""
    return worker.ready_since + (ADMIT_PATIENCE_S if cluster.warming_since else 0.0)


def admission_deadline(cluster: ClusterState) -> float | None:
    """Return when the next ready worker will have waited long enough to join."""
    if cluster.run.phase is not GenerationState.RUNNING:
        return None
    return min((ready_by(cluster, worker) for worker in _ready(cluster)), default=None)
