"""Jobs: queued, started, cancelled, ended.

A cancelled job stops at its next step boundary, so that nothing is lost.  A step, or an evaluation,
that takes very long is aborted in the end, and at once when the operator asks a second time;
members that do not leave the ring even then are evicted.  What follows is
`dtd.cluster.generation.saving`.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

import math
from typing import Final

from dtd.cluster import figures
from dtd.cluster.events import JobEnded, SaveJob, Undeliverable
from dtd.cluster.generation import ending, forming
from dtd.cluster.records import Job
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import (
    GONE,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    WorkerState,
)
from dtd.cluster.workers import admission, registration
from dtd.errors import RequestRefused
from dtd.wire import messages as m

MAX_QUEUED_JOBS = 64
RECENT = 0.1
"""Weight of the newest step in means."""
BOUNDARY_S: Final = 600.0
"""Most seconds for an ending job to reach its next step boundary."""


def submit(cluster: ClusterState, job: Job) -> None:
    """Queue a job: after those that have begun, and those of its own or a higher priority.

    Raises:
        RequestRefused: too many are queued.
    """
    if len(cluster.queue) >= MAX_QUEUED_JOBS:
        raise RequestRefused(
            f"{MAX_QUEUED_JOBS} jobs are queued already",
            remedy="wait for one to end or cancel one with `dtdctl cancel JOB`",
        )
    later = (at for at, other in enumerate(cluster.queue) if _turn(other) > _turn(job))
    cluster.queue.insert(next(later, len(cluster.queue)), job)
    cluster.emit(SaveJob(job=job))


def _turn(job: Job) -> tuple[bool, int]:
    return job.state is JobState.QUEUED, -job.terms.priority


def may_start(cluster: ClusterState) -> bool:
    """Whether the first job of the queue becomes active here: it takes all workers.

    A job that takes some of them is started by `dtd.cluster.several_jobs.pools`.
    """
    if cluster.job is not None or cluster.shared or not cluster.queue:
        return False
    return not cluster.queue[0].terms.least


def activate(cluster: ClusterState, job: Job) -> None:
    """Make a queued job the active one and warm up idle workers."""
    cluster.job = job
    cluster.start_afresh()
    cluster.waiting.must_settle = True
    cluster.ending.recovery = cluster.verdict_by = None
    cluster.set_aside.clear()
    if job.state is JobState.SAVING:
        _is_to_end_again(cluster, job)
    if job.announced and not job.in_doubt:
        if not registration.has_left(cluster, job):
            registration.adopt(cluster, job)
            return
        cluster.fence(job)
        job.announced = False
    if job.state is not JobState.STOPPING:
        cluster.move_job(job, JobEvent.ACTIVATED)
    cluster.emit(SaveJob(job=job))
    cluster.incident("job_started", f"job {job.id} begins to warm up")
    warm_up_idle(cluster, job)


def _is_to_end_again(cluster: ClusterState, job: Job) -> None:
    """Resume the end of a job that was being saved; the requests to save it were not stored."""
    done = job.verdict == JobState.DONE.value
    cluster.move_job(job, JobEvent.TO_FINISH_AGAIN if done else JobEvent.TO_STOP_AGAIN)


def warm_up_idle(cluster: ClusterState, job: Job) -> None:
    """Warm up all idle workers."""
    for worker in cluster.workers.values():
        if worker.state is WorkerState.IDLE:
            admission.prepare(cluster, worker, job)


def cancel(cluster: ClusterState, job_id: str, reason: str = "") -> None:
    """Stop the active job at its next step boundary, or drop a queued one.

    A job that is already stopping is aborted, and one that is being saved ends without its state:
    the operator has been told why it waits.

    Raises:
        RequestRefused: no such job is active or queued.
    """
    for job in cluster.queue:
        if job.id == job_id:
            cluster.queue.remove(job)
            _end(cluster, job, JobState.CANCELLED, reason or "cancelled while queued")
            return
    active = cluster.job
    if active is None or active.id != job_id:
        raise RequestRefused(f"job {job_id} is neither running nor queued", remedy="dtdctl jobs")
    if active.state is JobState.SAVING:
        assert cluster.saving is not None, "a job is saved although it is not ending"
        cluster.saving.hurried = True
        return
    if active.state is JobState.STOPPING:
        hurry(cluster)
        return
    cluster.withdraw(active)
    cluster.move_job(active, JobEvent.STOPS)
    active.reason = reason or "cancelled by the operator"
    cluster.emit(SaveJob(job=active))
    if cluster.run.phase is GenerationState.RUNNING:
        ending.freeze(cluster, at_boundary=True, stop=True, reason=active.reason)


def resume(cluster: ClusterState, job_id: str) -> None:
    """Continue without absent workers that may hold newer state, on the operator's word.

    Raises:
        RequestRefused: the job does not wait for any worker.
    """
    job = cluster.job
    if job is None or job.id != job_id:
        raise RequestRefused(f"job {job_id} is not the active one", remedy="dtdctl jobs")
    waits = cluster.run.phase is GenerationState.NONE and job.state is not JobState.SAVING
    if not waits or cluster.run.decision is not None:
        raise RequestRefused(f"job {job_id} does not wait for any worker", remedy="dtdctl status")
    if job.in_doubt:
        admission.end_doubt(cluster, job)
    job.fenced = True
    cluster.waiting.resumed = True
    cluster.incident("job_resumed", f"job {job.id} continues without the absent workers")


def delete(cluster: ClusterState, job_id: str, step: int) -> None:
    """Delete an ended job, or with `step` its checkpoints of that step.

    Raises:
        RequestRefused: it has not ended, or a job that has not ended may still start from it.
    """
    check_unused(cluster, job_id, step)
    if step:
        what = f"the operator deletes the checkpoints of step {step} of {job_id}"
        cluster.incident("checkpoint_deleted", what, job=job_id, step=step)
    else:
        cluster.incident("job_deleted", f"the operator deletes job {job_id}", job=job_id)


def check_unused(cluster: ClusterState, job_id: str, step: int) -> None:
    """Check that no job that has not ended is, or starts from, what is to be deleted.

    Raises:
        RequestRefused: one does.
    """
    for job in [*([cluster.job] if cluster.job is not None else []), *cluster.queue]:
        if job.id == job_id:
            raise RequestRefused(
                f"job {job_id} has not ended: it is {job.state.value}",
                remedy=f"cancel it first: dtdctl cancel {job_id}",
            )
        if job.from_job == job_id and (not step or job.from_step in (0, step)):
            raise RequestRefused(
                f"job {job.id}, which is {job.state.value}, starts from {job_id}",
                remedy=f"delete it when {job.id} has ended",
            )


def progress(cluster: ClusterState, job: Job, name: str, message: m.Progress) -> None:
    """The newest committed step's figures, from rank 0."""
    forming.progressed(cluster, job, name, message.generation, message.step)
    if message.generation == cluster.run.generation:
        job.epoch, job.loss = message.epoch, figures.finite(message.loss)
        if 0 < message.step_s < math.inf:  # waiting times for workers depend on it
            job.step_s += (message.step_s - job.step_s) * (RECENT if job.step_s else 1.0)
            job.samples_per_s = message.rows / message.step_s
        job.skipped_steps = max(job.skipped_steps, message.skipped_steps)


def note_digests(cluster: ClusterState, job: Job) -> None:
    """Record the digests that finished members report of their common state."""
    finished = [w for w in cluster.workers.values() if w.state is WorkerState.FINISHED]
    if finished:
        job.result["replica_digests"] = {one.name: one.holdings.digest for one in finished}
        job.result |= {"world_size": len(cluster.run.roster), "servers": job.servers}


def finish(cluster: ClusterState, state: JobState, reason: str) -> None:
    """End the active job and release its workers; `saving` has had its state saved."""
    job = cluster.job
    assert job is not None
    note_digests(cluster, job)
    job.result = {
        "replica_digests": {},
        "world_size": len(cluster.run.roster) or job.world_size,
        "servers": job.servers,
        **job.result,
        "train_loss": job.loss,
        "steps_lost": job.steps_lost,
        "metrics": job.metrics,
    }
    _end(cluster, job, state, reason)
    for worker in cluster.workers.values():
        idle = worker.state is WorkerState.IDLE and not worker.registration.joined
        if worker.state not in GONE and not idle and not worker.foreign:
            drained = worker.leaving and worker.moving_since is None
            admission.release(cluster, worker, "left" if drained else state.value, reason)
    cluster.move_generation(GenerationEvent.CLOSED)
    cluster.job = None
    cluster.waiting.settle_by = cluster.waiting.newer_since = None
    cluster.waiting.resumed = False


def fail(cluster: ClusterState, name: str, message: m.Failed) -> None:
    """The job's own code, data or numbers failed on a worker; the others' state is saved first.

    Only the first failure is reported: later ones may be its consequences.
    """
    job = cluster.job
    assert job is not None
    if job.verdict:
        return
    if message.traceback:
        job.result["traceback"] = message.traceback
    give_up(cluster, job, f"{name}: {message.reason}")
    if cluster.run.phase is not GenerationState.NONE:
        ending.end_now(cluster, f"{name} has failed: {message.reason}", worker=name)


def undeliverable(cluster: ClusterState, event: Undeliverable) -> None:
    """End a job that no worker can be sent: it would be retried for ever."""
    job = cluster.job
    if job is None or job.id != event.job or job.verdict:
        return
    give_up(cluster, job, event.reason)
    if cluster.run.phase is not GenerationState.NONE:
        ending.end_now(cluster, event.reason)


def give_up(cluster: ClusterState, job: Job, reason: str) -> None:
    """Give the job up: it ends when no worker trains it and its state is saved."""
    cluster.withdraw(job)
    cluster.move_job(job, JobEvent.STOPS)
    job.verdict, job.reason = JobState.FAILED.value, reason
    cluster.emit(SaveJob(job=job))


def end_for_error(cluster: ClusterState, job: Job) -> None:
    """End the job because the coordinator repeatedly fails with it."""
    _end(
        cluster, job, JobState.FAILED, "the coordinator failed with it: see `internal_error` events"
    )


def _end(cluster: ClusterState, job: Job, state: JobState, reason: str) -> None:
    cluster.move_job(job, JobEvent(state.value))
    job.reason = reason
    cluster.emit(SaveJob(job=job))
    text = f"job {job.id} {state.value}" + (f": {reason}" if reason else "")
    cluster.incident(f"job_{state.value}", text, step=job.step)
    cluster.emit(JobEnded(job=job))


def hurry(cluster: ClusterState) -> None:
    """Hurry: the operator does not want to wait for a step boundary.

    Repeated requests do not extend the deadline.
    """
    broken_off = cluster.ending.freeze_by is not None
    by = cluster.now + (ending.LEAVE_S if broken_off else 0.0)
    cluster.ending.stop_by = (
        by if cluster.ending.stop_by is None else min(cluster.ending.stop_by, by)
    )


def break_off_late(cluster: ClusterState, job: Job) -> None:
    """Abort the generation of an ending job once its time is up."""
    if job.state is not JobState.STOPPING or cluster.run.phase is GenerationState.NONE:
        cluster.ending.stop_by = None
        return
    if cluster.ending.stop_by is None:
        cluster.ending.stop_by = cluster.now + BOUNDARY_S
    if cluster.now < cluster.ending.stop_by:
        return
    if cluster.run.phase is not GenerationState.ENDING or cluster.ending.freeze_by is None:
        ending.end_now(cluster, "the job is ending, and no step boundary was reached in time")
        return
    for name in cluster.not_frozen():
        worker = cluster.workers[name]
        if worker.state is not WorkerState.FINISHED:
            admission.expel(cluster, worker, "it did not leave the ring of an ending job")
