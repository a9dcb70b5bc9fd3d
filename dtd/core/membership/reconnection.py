"""Control connections come and go while a generation runs on; so does the coordinator itself.

A generation needs its ring, not its coordinator.  A member whose control connection is lost is
*away*: it has a while to come back, and longer as long as its generation's step advances, for that
needs every member.  A coordinator that starts adopts the generation that its store names: all its
members are away at first.  Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from dataclasses import replace

from dtd.core.membership import ending, forming, registration
from dtd.core.membership.records import Holdings, Job, Liveness, Registration, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import (
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
"""Heartbeat time-outs that members have to come back to a coordinator that has just started."""

NEVER_HEARD = 0
"""Incarnation of a member that this coordinator knows from its store alone."""


def adopt(books: ClusterState, job: Job, now: float) -> None:
    """Take up the generation that an earlier coordinator has announced."""
    books.run.generation = max(books.run.generation, job.generation)
    books.run.roster, books.run.roster_id = list(job.roster), job.roster_id
    books.run.start_step = job.start_step
    books.run.begin()
    formed = job.state is not JobState.FORMING
    books.move_generation(
        GenerationEvent.ADOPTED_RUNNING if formed else GenerationEvent.ADOPTED_FORMING
    )
    books.waiting.must_settle = False
    patience_s = ADOPTION_PATIENCE * books.heartbeat_timeout_s
    instances = dict(zip(job.roster, job.instances, strict=False))
    for name in job.roster:
        worker = books.workers[name] = _absent(name, instances.get(name, ""))
        books.move_worker(worker, WorkerEvent.EXPECTED)
        books.detector.watch(name, now, timeout_s=patience_s)
    run = books.run
    books.incident(
        "generation_adopted",
        f"generation {run.generation} is taken up: {', '.join(run.roster)} are expected",
        step=job.step,
    )


def take_up(books: ClusterState, job: Job) -> None:
    """Go on with a generation that is known from its members alone, if all of them still train."""
    members = [books.workers.get(name) for name in job.roster]
    if job.generation < books.run.generation or not all(_trains_in(one, job) for one in members):
        return
    books.run.generation = job.generation
    books.run.roster, books.run.roster_id = list(job.roster), job.roster_id
    books.run.start_step = job.start_step
    books.run.begin()
    books.move_generation(GenerationEvent.TAKEN_UP)
    books.waiting.must_settle, books.waiting.newer_since = False, None
    books.move_job(job, JobEvent.TAKEN_UP)
    for name in job.roster:
        worker = books.workers[name]
        worker.reconnection.returning = False
        books.move_worker(worker, WorkerEvent.TAKEN_UP)
    books.incident(
        "generation_adopted",
        f"generation {books.run.generation} is taken up: {', '.join(books.run.roster)} train in it",
        step=job.start_step,
    )


def _trains_in(worker: Worker | None, job: Job) -> bool:
    """It has come with the job's newest generation, running, and not left it since."""
    if worker is None or not worker.reconnection.returning:
        return False
    came = worker.reconnection
    return (came.generation, came.phase) == (job.generation, "running")


def _absent(name: str, instance: str) -> Worker:
    return Worker(
        registration=Registration(name=name, incarnation=NEVER_HEARD, instance=instance),
        reason="has not come back since the coordinator started",
    )


def goes_away(books: ClusterState, worker: Worker, reason: str) -> bool:
    """Whether the generation may go on without this member's control connection."""
    trains = worker.state in (WorkerState.RUNNING, WorkerState.FINISHED)
    if not trains or books.run.phase is not GenerationState.RUNNING:
        return False
    books.move_worker(worker, WorkerEvent.DISCONNECTED)
    worker.reason = f"control connection lost: {reason}"
    books.incident("worker_away", f"{worker.name}: {worker.reason}", worker=worker.name)
    return True


def comes_back(books: ClusterState, message: m.Register, now: float) -> bool:
    """Whether this is a member of the current generation that reconnects."""
    known, job = books.workers.get(message.name), books.job
    if known is None or job is None or known.state not in MEMBERS:
        return False
    if message.identity != job.identity:
        return False
    same_process = known.incarnation in (message.incarnation, NEVER_HEARD)
    run = books.run
    same_generation = (message.generation, message.roster_id) == (run.generation, run.roster_id)
    if not (same_process and same_generation):
        return False
    worker = replace(registration.newcomer(message, known), state=known.state)
    worker.leaving = known.leaving
    worker.holdings = Holdings(held=known.holdings.held, warmed=known.holdings.warmed)
    worker.liveness = Liveness(
        heartbeat=known.liveness.heartbeat, signalled=known.liveness.signalled
    )
    books.workers[worker.name] = worker
    forms = message.phase == MemberState.FORMING.value
    books.move_worker(worker, WorkerEvent.RECONNECTED_FORMING if forms else WorkerEvent.RECONNECTED)
    registration.greet(books, worker)
    if books.run.phase is GenerationState.ENDING:
        _catch_up(books, worker)
    elif job.state is JobState.STOPPING:
        ending.freeze_one(books, worker, at_boundary=True, stop=True, reason=job.reason)
    forming.check_running(books, job, now)
    return True


def _catch_up(books: ClusterState, worker: Worker) -> None:
    """It may have missed that the generation ends."""
    recovery = books.ending.recovery
    at_boundary = books.ending.freeze_by is None
    reason = recovery.cause if recovery is not None else "the generation ends"
    ending.freeze_one(books, worker, at_boundary=at_boundary, stop=False, reason=reason)
