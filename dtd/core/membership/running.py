"""A generation that runs: it advances, and somebody may become ready to join it.

Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from dtd.core.membership import forming
from dtd.core.membership import roster as choice
from dtd.core.membership.ending import end_at_boundary
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState, most_workers
from dtd.core.membership.transitions import GONE, GenerationState, JobState, WorkerState
from dtd.wire import messages as m

MISSED_BEATS = 2.5
"""Who has not been heard for so many heartbeat intervals is silent, dead or not."""

_UNHEARD = GONE | {WorkerState.AWAY}

ADMIT_PATIENCE_S = 0.5
"""A worker that is ready waits so long for others that warm up, to join together with them."""


def progressed(
    books: ClusterState, job: Job, name: str, generation: int, step: int, now: float
) -> None:
    """A member says that it has committed a step; it counts once another one bears it out."""
    if generation != books.run.generation or step <= books.run.reported_step(name):
        return
    books.run.reported_steps[name] = step
    bear_out(books, job, now)


def bear_out(books: ClusterState, job: Job, now: float) -> None:
    """Count what members have committed as far as others bear it out."""
    if books.run.phase is GenerationState.NONE:
        return
    step = _borne_out(books, now)
    if step <= max(books.run.start_step, job.step):
        return
    books.advance(step)
    books.run.advanced_at = now
    job.step = step
    if books.ending.recovery is not None and books.run.phase is not GenerationState.ENDING:
        recovery, books.ending.recovery = books.ending.recovery, None
        books.incident(
            "recovered",
            f"job {job.id} trains again: {recovery.cause}",
            worker=recovery.worker,
            step=step,
            **recovery.details(now),
        )


def _borne_out(books: ClusterState, now: float) -> int:
    """The newest step that two members tell of, so that nobody's word alone moves the job on.

    Who is away or has not been heard of lately cannot bear anything out; a single one that is heard
    is believed.
    """
    late_s = MISSED_BEATS * books.heartbeat_interval_s
    heard = [
        one.name
        for one in books.members()
        if one.state not in _UNHEARD and books.detector.silence_s(one.name, now) <= late_s
    ]
    told = sorted(map(books.run.reported_step, heard), reverse=True)
    return told[min(1, len(told) - 1)] if told else books.run.start_step


def left(
    books: ClusterState, job: Job, name: str, message: m.Frozen | m.Finished, now: float
) -> None:
    """A member that leaves may have committed steps that no heartbeat told of."""
    held = choice.held_by(message)
    if held.generation == message.generation:
        progressed(books, job, name, message.generation, held.step, now)


def admit_ready(books: ClusterState, job: Job, now: float) -> None:
    """End the running generation at a step boundary when somebody is ready to join."""
    finishing = any(member.state is WorkerState.FINISHED for member in books.members())
    if finishing or job.state is JobState.STOPPING or len(books.run.roster) >= most_workers(job):
        return
    ready = [w for w in _ready(books) if now >= ready_by(books, w)]
    if not ready or not _fit_in(books, job, ready):
        return
    for worker in ready:
        worker.reason = "joins at the next step boundary"
    end_at_boundary(books, f"{', '.join(w.name for w in ready)} joins", now)


def _ready(books: ClusterState) -> list[Worker]:
    return [w for w in books.workers.values() if w.state is WorkerState.READY and not w.leaving]


def _fit_in(books: ClusterState, job: Job, ready: list[Worker]) -> bool:
    """With them the ring would grow; bad links may leave no place for them."""
    candidates = [*books.members(), *ready]
    choice_now = choice.choose(
        candidates,
        start=(job.start_generation, job.start_step),
        max_workers=most_workers(job),
        bad_links=books.isolation.links.bad,
    )
    forming.bar(books, [worker for worker in choice_now.barred if worker in ready])
    return len(choice_now.members) > len(books.run.roster)


def ready_by(books: ClusterState, worker: Worker) -> float:
    """When a ready worker joins even though others still warm up."""
    return worker.ready_since + (ADMIT_PATIENCE_S if books.warming_since else 0.0)


def admission_deadline(books: ClusterState) -> float | None:
    """When somebody will have waited long enough to join."""
    if books.run.phase is not GenerationState.RUNNING:
        return None
    return min((ready_by(books, worker) for worker in _ready(books)), default=None)
