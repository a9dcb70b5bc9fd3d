"""A running generation: its progress, and the admission of ready workers.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from dtd.cluster import forming
from dtd.cluster import roster as choice
from dtd.cluster.ending import end_at_boundary
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState, most_workers
from dtd.cluster.transitions import GONE, GenerationState, JobState, WorkerState
from dtd.wire import messages as m

MISSED_BEATS = 2.5
"""After this many heartbeat intervals without a message a worker counts as silent."""

_UNHEARD = GONE | {WorkerState.DISCONNECTED}

ADMIT_PATIENCE_S = 0.5
"""Seconds that a ready worker waits for others that warm up, to join together with them."""


def progressed(
    cluster: ClusterState, job: Job, name: str, generation: int, step: int, now: float
) -> None:
    """A member reports a committed step; it counts once another member confirms it.

    A member that is still forming has committed none in this generation: it may still have the
    steps that the generation is to redo.
    """
    if generation != cluster.run.generation or step <= cluster.run.reported_step(name):
        return
    if cluster.workers[name].state is WorkerState.FORMING:
        return
    cluster.run.reported_steps[name] = step
    bear_out(cluster, job, now)


def bear_out(cluster: ClusterState, job: Job, now: float) -> None:
    """Count the members' committed steps as far as others confirm them."""
    if cluster.run.phase is GenerationState.NONE:
        return
    step = _borne_out(cluster, now)
    if step <= max(cluster.run.start_step, job.step):
        return
    cluster.advance(step)
    cluster.run.advanced_at = now
    job.step = step
    if cluster.ending.recovery is not None and cluster.run.phase is not GenerationState.ENDING:
        recovery, cluster.ending.recovery = cluster.ending.recovery, None
        cluster.incident(
            "recovered",
            f"job {job.id} trains again: {recovery.cause}",
            worker=recovery.worker,
            step=step,
            **recovery.details(now),
        )


def _borne_out(cluster: ClusterState, now: float) -> int:
    """The newest step that two members report, so that no single report advances the job.

    A member that is away, or has not been heard from recently, confirms nothing.  If only one
    member is heard from, its report counts.
    """
    late_s = MISSED_BEATS * cluster.heartbeat_interval_s
    heard = [
        one.name
        for one in cluster.members()
        if one.state not in _UNHEARD and cluster.detector.silence_s(one.name, now) <= late_s
    ]
    told = sorted(map(cluster.run.reported_step, heard), reverse=True)
    return told[min(1, len(told) - 1)] if told else cluster.run.start_step


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
    # No member makes room for those that come, so that no word about a link puts it out.
    bad_links = {pair: pair for pair in cluster.isolation.links.bad}
    choice_now = choice.choose(
        candidates,
        start=(job.start_generation, job.start_step),
        max_workers=most_workers(job),
        bad_links=bad_links,
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
