"""Control connections come and go while a generation runs on; so does the coordinator itself.

A generation needs its ring, not its coordinator.  A member whose control connection is lost is
*away*: it has a while to come back, and longer as long as its generation's step advances, for that
needs every member.  A coordinator that starts adopts the generation that its store names: all its
members are away at first.  Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from dataclasses import replace

from dtd.core import ending, forming, introduction
from dtd.core.books import Books
from dtd.core.membership_events import Job, Worker
from dtd.core.transitions import (
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


def adopt(books: Books, job: Job, now: float) -> None:
    """Take up the generation that an earlier coordinator has announced."""
    books.generation = max(books.generation, job.generation)
    books.roster, books.roster_id = list(job.roster), job.roster_id
    books.start_step = job.start_step
    books.begin_generation()
    formed = job.state is not JobState.FORMING
    books.move_generation(
        GenerationEvent.ADOPTED_RUNNING if formed else GenerationEvent.ADOPTED_FORMING
    )
    books.must_settle = False
    patience_s = ADOPTION_PATIENCE * books.heartbeat_timeout_s
    instances = dict(zip(job.roster, job.instances, strict=False))
    for name in job.roster:
        worker = books.workers[name] = _absent(name, instances.get(name, ""))
        books.move_worker(worker, WorkerEvent.EXPECTED)
        books.detector.watch(name, now, timeout_s=patience_s)
    books.incident(
        "generation_adopted",
        f"generation {books.generation} is taken up: {', '.join(books.roster)} are expected",
        step=job.step,
    )


def take_up(books: Books, job: Job) -> None:
    """Go on with a generation that is known from its members alone, if all of them still train."""
    members = [books.workers.get(name) for name in job.roster]
    if job.generation < books.generation or not all(_trains_in(one, job) for one in members):
        return
    books.generation = job.generation
    books.roster, books.roster_id = list(job.roster), job.roster_id
    books.start_step = job.start_step
    books.begin_generation()
    books.move_generation(GenerationEvent.TAKEN_UP)
    books.must_settle, books.waiting_since = False, None
    books.move_job(job, JobEvent.TAKEN_UP)
    for name in job.roster:
        worker = books.workers[name]
        worker.returning = False
        books.move_worker(worker, WorkerEvent.TAKEN_UP)
    books.incident(
        "generation_adopted",
        f"generation {books.generation} is taken up: {', '.join(books.roster)} train in it",
        step=job.start_step,
    )


def _trains_in(worker: Worker | None, job: Job) -> bool:
    """It has come with the job's newest generation, running, and not left it since."""
    if worker is None or not worker.returning:
        return False
    return (worker.trains_in, worker.trains_as) == (job.generation, "running")


def _absent(name: str, instance: str) -> Worker:
    return Worker(
        name=name,
        incarnation=NEVER_HEARD,
        pid=0,
        host="",
        device="",
        data_host="",
        data_port=0,
        version="",
        instance=instance,
        reason="has not come back since the coordinator started",
    )


def goes_away(books: Books, worker: Worker, reason: str) -> bool:
    """Whether the generation may go on without this member's control connection."""
    trains = worker.state in (WorkerState.RUNNING, WorkerState.FINISHED)
    if not trains or books.generation_state is not GenerationState.RUNNING:
        return False
    books.move_worker(worker, WorkerEvent.DISCONNECTED)
    worker.reason = f"control connection lost: {reason}"
    books.incident("worker_away", f"{worker.name}: {worker.reason}", worker=worker.name)
    return True


def comes_back(books: Books, message: m.Register, now: float) -> bool:
    """Whether this is a member of the current generation that reconnects."""
    known, job = books.workers.get(message.name), books.job
    if known is None or job is None or known.state not in MEMBERS:
        return False
    if message.identity != job.identity:
        return False
    same_process = known.incarnation in (message.incarnation, NEVER_HEARD)
    same_generation = (message.generation, message.roster_id) == (books.generation, books.roster_id)
    if not (same_process and same_generation):
        return False
    worker = replace(introduction.newcomer(message, known), state=known.state)
    worker.leaving, worker.held, worker.warmed = known.leaving, known.held, known.warmed
    worker.heartbeat, worker.signalled = known.heartbeat, known.signalled
    books.workers[worker.name] = worker
    forms = message.phase == MemberState.FORMING.value
    books.move_worker(worker, WorkerEvent.RECONNECTED_FORMING if forms else WorkerEvent.RECONNECTED)
    introduction.greet(books, worker)
    if books.generation_state is GenerationState.ENDING:
        _catch_up(books, worker)
    elif job.state is JobState.STOPPING:
        ending.freeze_one(books, worker, at_boundary=True, stop=True, reason=job.reason)
    forming.check_running(books, job, now)
    return True


def _catch_up(books: Books, worker: Worker) -> None:
    """It may have missed that the generation ends."""
    recovery = books.recovery
    at_boundary = books.freeze_by is None
    reason = recovery.cause if recovery is not None else "the generation ends"
    ending.freeze_one(books, worker, at_boundary=at_boundary, stop=False, reason=reason)
