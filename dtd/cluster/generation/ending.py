"""The end of a generation: at a step boundary or at once; members report their states.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster import figures
from dtd.cluster.generation import checkpoints
from dtd.cluster.records import Job, Worker
from dtd.cluster.run import Recovery
from dtd.cluster.state import FRUITFUL_S, ClusterState
from dtd.cluster.transitions import (
    GONE,
    MEMBERS,
    GenerationEvent,
    GenerationState,
    JobState,
    WorkerEvent,
    WorkerState,
)
from dtd.cluster.workers.links import DEAD
from dtd.exchange.schedule.neighbours import RESET
from dtd.wire import messages as m

FREEZE_PATIENCE_S = 5.0
FREEZE_PATIENCE_STEPS = 10
LEAVE_S: Final = 10.0
"""Extra seconds for a member to leave an aborted ring if its job is to end."""


def freeze(cluster: ClusterState, *, at_boundary: bool, stop: bool, reason: str) -> None:
    """Tell every member that still takes part to end the generation."""
    for name in cluster.not_frozen():
        freeze_one(
            cluster, cluster.workers[name], at_boundary=at_boundary, stop=stop, reason=reason
        )


def freeze_one(
    cluster: ClusterState, worker: Worker, *, at_boundary: bool, stop: bool, reason: str
) -> None:
    """Ask one member to end the generation."""
    message = m.Freeze(
        generation=cluster.run.generation,
        at_boundary=at_boundary,
        stop=stop,
        reason=reason,
        leave=worker.leaving,
    )
    cluster.send(worker.name, message)


def end_at_boundary(cluster: ClusterState, reason: str) -> None:
    """End a running generation after its current step; no step is redone."""
    freeze(cluster, at_boundary=True, stop=False, reason=reason)
    _begin_ending(cluster, reason, at_boundary=True)


def end_now(cluster: ClusterState, reason: str, *, worker: str = "", silent_s: float = 0) -> None:
    """End the generation at once; members that do not respond in time are evicted.

    If the job is to end and its time for a step boundary is over, they still have time to leave.
    """
    if cluster.ending.freeze_by is None and cluster.ending.stop_by is not None:
        cluster.ending.stop_by = max(cluster.ending.stop_by, cluster.now + LEAVE_S)
    if cluster.run.phase is not GenerationState.ENDING:
        _begin_ending(cluster, reason, worker=worker, silent_s=silent_s)
    else:
        assert cluster.ending.recovery is not None, (
            "a generation ends, and nothing is recovered from"
        )
        cluster.ending.recovery.breaks(reason, cluster.now, worker=worker, silent_s=silent_s)
    if cluster.ending.freeze_by is None:  # otherwise all have been told
        freeze(cluster, at_boundary=False, stop=False, reason=reason)
    waited_for = [cluster.workers[name] for name in cluster.not_frozen()]
    cluster.ending.freeze_by = cluster.now + max(
        map(freeze_patience_s, waited_for), default=FREEZE_PATIENCE_S
    )


def freeze_patience_s(worker: Worker) -> float:
    """The time in which a worker must freeze: it does so when it next waits for its ring.

    Never less than the time without progress that it is allowed anyway (its first step may have to
    be compiled); one that is stuck for longer is expelled for that.
    """
    beat = worker.liveness.heartbeat
    if beat is None:
        return FREEZE_PATIENCE_S
    return max(FREEZE_PATIENCE_S, FREEZE_PATIENCE_STEPS * beat.step_s, beat.patience_s)


def _begin_ending(
    cluster: ClusterState,
    reason: str,
    *,
    at_boundary: bool = False,
    worker: str = "",
    silent_s: float = 0.0,
) -> None:
    cluster.move_generation(GenerationEvent.ENDS)
    cluster.setbacks.last_cause = reason
    if cluster.ending.recovery is None:
        cluster.ending.recovery = Recovery(
            cause=reason,
            worker=worker,
            began_at=cluster.now,
            detected_after_s=silent_s,
            at_boundary=at_boundary,
            running=cluster.run.has_run,
        )
    else:
        cluster.ending.recovery.again(at_boundary=at_boundary, running=cluster.run.has_run)
    cluster.incident("generation_ending", f"generation {cluster.run.generation} ends: {reason}")


def member_lost(cluster: ClusterState, worker: Worker, reason: str, *, silent_s: float) -> None:
    """A member is gone: its ring cannot continue."""
    why = f"{worker.name} was lost ({reason})"
    recovery = cluster.ending.recovery
    if recovery is not None and (recovery.by_reset or recovery.worker == worker.name):
        # More precise than a neighbour's report.
        recovery.cause, recovery.worker, recovery.by_reset = why, worker.name, False
    end_now(cluster, why, worker=worker.name, silent_s=silent_s)


def member_frozen(cluster: ClusterState, job: Job, worker: Worker, message: m.Frozen) -> None:
    """A member takes no further part and reports its state."""
    cluster.move_worker(worker, WorkerEvent.FROZE)
    checkpoints.left(job, worker, message)
    job.fenced = True
    if message.evidence:
        _tell_evidence(cluster, worker, message)
    # At a step boundary the first to leave may reset its links to the others.
    known = message.evidence in ("", RESET) or cluster.ending.freeze_by is not None
    if cluster.run.phase is GenerationState.ENDING and known:
        return
    about, reason, silent_s = worker.name, f"{worker.name} has frozen: {message.reason}", 0.0
    if message.suspect:
        about = message.suspect
        reason = f"{worker.name} has lost {about} ({message.evidence}: {message.reason})"
    if message.evidence in DEAD:
        silent_s = cluster.heartbeat_timeout_s
    end_now(cluster, reason, worker=about, silent_s=silent_s)
    recovery = cluster.ending.recovery
    if recovery is not None and recovery.cause == reason:
        recovery.by_reset = message.evidence == RESET


def _tell_evidence(cluster: ClusterState, worker: Worker, message: m.Frozen) -> None:
    if message.evidence == "diverged":
        cluster.incident(
            "replicas_diverged", f"{worker.name}: {message.reason}", worker=worker.name
        )
        return
    suspect = cluster.workers.get(message.suspect)
    if suspect is not None and suspect.state in MEMBERS | {WorkerState.FROZEN}:
        cluster.links.accuse(worker.name, message.suspect, message.evidence)
    if message.evidence == RESET and cluster.run.phase is GenerationState.ENDING:
        return  # members that leave close their links: one event is enough
    lost = f"its link to {message.suspect}" if message.suspect else "its ring"
    cluster.incident(
        "ring_broken",
        f"{worker.name} lost {lost}: {message.reason}",
        worker=worker.name,
        suspect=message.suspect,
        evidence=message.evidence,
    )


def member_finished(cluster: ClusterState, job: Job, worker: Worker, message: m.Finished) -> None:
    """A member has committed the last step and its digest equals that of all others."""
    cluster.move_worker(worker, WorkerEvent.FINISHED)
    worker.holdings.digest = message.digest
    worker.stopped = message.stopped
    checkpoints.left(job, worker, message)
    job.fenced = True
    if message.result and worker.rank == 0:
        job.result = figures.finite(message.result)


STOP_FORGOTTEN = "stopped at a request that was lost with the coordinator's store"
"""Why a job has ended that was stopped, if its record does not say so."""


def was_stopped(cluster: ClusterState, job: Job) -> bool:
    """Whether its workers have ended it before its last step because they were told to.

    In a generation that an earlier process of the coordinator announced, they know it even if this
    one does not: the store could not write the request.
    """
    if 0 < job.total_steps <= job.step:
        return False
    return job.state is JobState.STOPPING or any(one.stopped for one in cluster.members())


def is_complete(cluster: ClusterState) -> bool:
    """Whether every remaining member has finished; then `saving` has the state saved.

    A rank 0 that died between the last step and its checkpoint leaves finished replicas and no
    checkpoint: then one of the replicas writes it.
    """
    return {member.state for member in cluster.members()} - GONE == {WorkerState.FINISHED}


def close(cluster: ClusterState, job: Job) -> None:
    """Close the generation: its last living member has frozen."""
    for member in cluster.members():
        if member.state is WorkerState.FINISHED:
            cluster.move_worker(member, WorkerEvent.CLOSED)
    for pair, evidence in cluster.links.judge(cluster.living(), cluster.now):
        one, other = pair
        every_s = cluster.links.probed_every_s(pair)
        cluster.incident(
            "link_bad",
            f"{one} and {other} live and cannot reach each other ({evidence}); probed every"
            f" {every_s:g} s",
            evidence=evidence,
            probed_every_s=every_s,
        )
    began_at = cluster.run.advanced_at
    if job.terms.launched and began_at is not None and cluster.now - began_at >= FRUITFUL_S:
        cluster.advance(cluster.setbacks.crash_step + 1)
    cluster.setbacks.crash_generations += cluster.run.lost_member
    cluster.note_brevity(job)
    job.announced = False
    cluster.move_generation(GenerationEvent.CLOSED)
