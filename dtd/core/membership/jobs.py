"""Jobs: queued, started, cancelled, ended.

A cancelled job stops at its next step boundary, so that nothing is lost.  A step, or an evaluation,
that takes very long is broken off at last, and at once when the operator asks a second time;
members that do not leave the ring even then are put out.  What follows is `membership.saving`.

Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

import math
from typing import Final

from dtd.core.membership import admission, divergence, ending, reconnection, running
from dtd.core.membership.events import JobEnded, SaveJob, Undeliverable
from dtd.core.membership.records import Job
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import (
    GONE,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    WorkerState,
)
from dtd.core.observe import figures
from dtd.core.trust import doubt
from dtd.errors import RequestRefused
from dtd.wire import messages as m

MAX_QUEUED_JOBS = 64
RECENT = 0.1
"""Weight of the newest step in means."""
BOUNDARY_S: Final = 600.0
"""How long a job that is to end may take to its next step boundary."""
LEAVE_S: Final = 10.0
"""How much longer a member may take to leave a ring that was broken off."""


def submit(books: ClusterState, job: Job) -> None:
    """Queue a job.

    Raises:
        RequestRefused: too many are queued.
    """
    if len(books.queue) >= MAX_QUEUED_JOBS:
        raise RequestRefused(
            f"{MAX_QUEUED_JOBS} jobs are queued already",
            remedy="wait for one to end or cancel one with `dtdctl cancel JOB`",
        )
    books.queue.append(job)
    books.emit(SaveJob(job=job))


def activate(books: ClusterState, job: Job, now: float) -> None:
    """Make a queued job the active one and warm up whoever is idle."""
    books.job = job
    books.start_afresh()
    books.waiting.must_settle = True
    books.ending.recovery = books.isolation.verdict_by = None
    books.isolation.set_aside.clear()
    books.trust.agreed.clear()
    books.trust.claims.clear()
    books.trust.contradicted.clear()
    books.trust.distrusted = divergence.last_generation(divergence.remembered(job.divergences))
    if job.state is JobState.SAVING:
        _is_to_end_again(books, job)
    if job.announced and not doubt.lasts(books, job):
        reconnection.adopt(books, job, now)
        return
    if job.state is not JobState.STOPPING:
        books.move_job(job, JobEvent.ACTIVATED)
    books.emit(SaveJob(job=job))
    books.incident("job_started", f"job {job.id} begins to warm up")
    warm_up_idle(books, job)


def _is_to_end_again(books: ClusterState, job: Job) -> None:
    """A job that was to end, and was not done, is still to end; who was to save it is forgotten."""
    done = job.verdict == JobState.DONE.value
    books.move_job(job, JobEvent.TO_FINISH_AGAIN if done else JobEvent.TO_STOP_AGAIN)


def warm_up_idle(books: ClusterState, job: Job) -> None:
    """Have everybody warm up who has nothing to do."""
    for worker in books.workers.values():
        if worker.state is WorkerState.IDLE:
            admission.prepare(books, worker, job)


def cancel(books: ClusterState, job_id: str) -> None:
    """Stop the active job at its next step boundary, or drop a queued one.

    One that stops already is broken off, and one that is being saved ends without that: whoever
    cancels it again has been told why it waits.

    Raises:
        RequestRefused: no such job is active or queued.
    """
    for job in books.queue:
        if job.id == job_id:
            books.queue.remove(job)
            _end(books, job, JobState.CANCELLED, "cancelled while queued")
            return
    active = books.job
    if active is None or active.id != job_id:
        raise RequestRefused(f"job {job_id} is neither running nor queued", remedy="dtdctl jobs")
    if active.state is JobState.SAVING:
        assert books.saving is not None, "a job is saved that is not to end"
        books.saving.hurried = True
        return
    if active.state is JobState.STOPPING:
        hurry(books)
        return
    books.withdraw(active)
    books.move_job(active, JobEvent.STOPS)
    active.reason = "cancelled by the operator"
    books.emit(SaveJob(job=active))
    if books.run.phase is GenerationState.RUNNING:
        ending.freeze(books, at_boundary=True, stop=True, reason=active.reason)


def resume(books: ClusterState, job_id: str) -> None:
    """Go on without those who may hold a newer state: the operator knows that they are gone.

    Raises:
        RequestRefused: the job does not wait for anybody.
    """
    job = books.job
    if job is None or job.id != job_id:
        raise RequestRefused(f"job {job_id} is not the active one", remedy="dtdctl jobs")
    waits = books.run.phase is GenerationState.NONE and job.state is not JobState.SAVING
    if not waits or books.run.decision is not None:
        raise RequestRefused(f"job {job_id} does not wait for anybody", remedy="dtdctl status")
    if doubt.lasts(books, job):
        admission.end_doubt(books, job)
    job.fenced = True
    books.waiting.resumed = True
    books.incident("job_resumed", f"job {job.id} goes on without those who are away")


def delete(books: ClusterState, job_id: str, step: int) -> None:
    """Let an ended job go, or with `step` its checkpoints of that step.

    Raises:
        RequestRefused: it has not ended, or a job that has not ended may still start from it.
    """
    for job in [*([books.job] if books.job is not None else []), *books.queue]:
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
    if step:
        what = f"the operator deletes the checkpoints of step {step} of {job_id}"
        books.incident("checkpoint_deleted", what, job=job_id, step=step)
    else:
        books.incident("job_deleted", f"the operator deletes job {job_id}", job=job_id)


def progress(books: ClusterState, job: Job, name: str, message: m.Progress, now: float) -> None:
    """The newest committed step's figures, from rank 0."""
    running.progressed(books, job, name, message.generation, message.step, now)
    if message.generation == books.run.generation:
        job.epoch, job.loss = message.epoch, figures.finite(message.loss)
        if 0 <= message.step_s < math.inf:  # how long somebody is waited for is reckoned from it
            job.step_s += (message.step_s - job.step_s) * (RECENT if job.step_s else 1.0)
            job.samples_per_s = message.rows / message.step_s if message.step_s > 0 else 0.0
        job.skipped_steps = max(job.skipped_steps, message.skipped_steps)


def note_digests(books: ClusterState, job: Job) -> None:
    """What those who have finished say of the state that they all hold."""
    finished = [w for w in books.workers.values() if w.state is WorkerState.FINISHED]
    if finished:
        job.result["replica_digests"] = {worker.name: worker.holdings.digest for worker in finished}
        job.result["world_size"] = len(books.run.roster)


def finish(books: ClusterState, state: JobState, reason: str) -> None:
    """End the active job and let all its workers go; `saving` has had its state saved."""
    job = books.job
    assert job is not None
    note_digests(books, job)
    job.result = {
        "replica_digests": {},
        "world_size": len(books.run.roster) or job.world_size,
        **job.result,
        "steps_lost": job.steps_lost,
        "metrics": job.metrics,
    }
    _end(books, job, state, reason)
    for worker in books.workers.values():
        if worker.state not in GONE | {WorkerState.IDLE} and not worker.foreign:
            admission.release(books, worker, "left" if worker.leaving else state.value, reason)
    books.move_generation(GenerationEvent.CLOSED)
    books.job = None
    books.waiting.settle_by = books.waiting.newer_since = None
    books.waiting.resumed = False


def fail(books: ClusterState, name: str, message: m.Failed, now: float) -> None:
    """The job's own code, data or numbers failed on a worker: what the others hold is saved first.

    Only the first failure is told: what follows in other workers may be due to that.
    """
    job = books.job
    assert job is not None
    if job.verdict:
        return
    if message.traceback:
        job.result["traceback"] = message.traceback
    give_up(books, job, f"{name}: {message.reason}")
    if books.run.phase is not GenerationState.NONE:
        ending.end_now(books, f"{name} has failed: {message.reason}", now, worker=name)


def undeliverable(books: ClusterState, event: Undeliverable, now: float) -> None:
    """No worker can be told of the job: it would be tried for ever."""
    job = books.job
    if job is None or job.id != event.job or job.verdict:
        return
    give_up(books, job, event.reason)
    if books.run.phase is not GenerationState.NONE:
        ending.end_now(books, event.reason, now)


def give_up(books: ClusterState, job: Job, reason: str) -> None:
    """It makes no sense to go on; the job ends when nothing of it trains and its state is saved."""
    books.withdraw(job)
    books.move_job(job, JobEvent.STOPS)
    job.verdict, job.reason = JobState.FAILED.value, reason
    books.emit(SaveJob(job=job))


def end_for_error(books: ClusterState, job: Job) -> None:
    """The job ends since this process fails with it, again and again."""
    _end(books, job, JobState.FAILED, "the coordinator failed with it: see `internal_error` events")


def _end(books: ClusterState, job: Job, state: JobState, reason: str) -> None:
    books.move_job(job, JobEvent(state.value))
    job.reason = reason
    books.emit(SaveJob(job=job))
    text = f"job {job.id} {state.value}" + (f": {reason}" if reason else "")
    books.incident(f"job_{state.value}", text, step=job.step)
    books.emit(JobEnded(job=job))


def hurry(books: ClusterState) -> None:
    """The operator does not want to wait for a step boundary.

    Asking again and again gives no more time.
    """
    broken_off = books.ending.freeze_by is not None
    by = books.now + (LEAVE_S if broken_off else 0.0)
    books.ending.stop_by = by if books.ending.stop_by is None else min(books.ending.stop_by, by)


def break_off_late(books: ClusterState, job: Job, now: float) -> None:
    """Break off a generation of a job that is to end, once it has had its time."""
    if job.state is not JobState.STOPPING or books.run.phase is GenerationState.NONE:
        books.ending.stop_by = None
        return
    if books.ending.stop_by is None:
        books.ending.stop_by = now + BOUNDARY_S
    if now < books.ending.stop_by:
        return
    if books.run.phase is not GenerationState.ENDING or books.ending.freeze_by is None:
        ending.end_now(books, "the job is to end, and no step boundary comes", now)
        books.ending.stop_by = now + LEAVE_S
        return
    for name in books.not_frozen():
        worker = books.workers[name]
        if worker.state is not WorkerState.FINISHED:
            admission.expel(books, worker, "it did not leave the ring of a job that is to end", now)
