"""The next generation: its roster and the state it starts from, until every member runs.

Part of the membership machine; changes the books, adds effects.  It is announced when every living
member of the last one has reported FROZEN (or FINISHED) and at least one has stopped for certain: a
single member that has stopped stops the ring, so two generations never commit side by side
(ADR 0006).  What follows is `membership.running`, then `membership.ending`.
"""

from __future__ import annotations

from dataclasses import replace

from dtd.core.membership import branches, ending
from dtd.core.membership import roster as choice
from dtd.core.membership.events import JobSaved, SaveJob
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState, most_workers
from dtd.core.membership.state_records import Decision
from dtd.core.membership.transitions import (
    AVAILABLE,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    WorkerEvent,
    WorkerState,
)
from dtd.core.observe.links import pair_of
from dtd.core.trust import doubt
from dtd.wire import messages as m

SAVE_AGAIN_S = 1.0
"""A generation that could not be written down is tried again."""


_OF_A_GENERATION = (
    *("generation", "world_size", "step", "start_generation", "start_step"),
    *("roster", "roster_id", "instances", "announced", "fenced", "store_epoch"),
    "branches",
)


def decide(books: ClusterState, job: Job) -> None:
    """Choose the next generation and have it written down: nobody hears of it before."""
    start = choice.start_key(job, books.available())
    chosen = choose(books, job)
    bar(books, chosen.barred)
    members = chosen.members
    books.run.decision = Decision(
        members=members,
        holds=choice.holders(members, start),
        lost=job.step - start[1],
        redone=_is_redone(books, job, start),
        before={name: getattr(job, name) for name in _OF_A_GENERATION},
    )
    books.run.generation = doubt.next_number(books, start[0])
    _leave_behind(books, job, start)
    books.move_job(job, JobEvent.DECIDED)
    job.generation, job.world_size, job.step = books.run.generation, len(members), start[1]
    job.start_generation, job.start_step = start
    job.roster = tuple(worker.name for worker in members)
    job.roster_id = choice.roster_id(job.id, books.run.generation, members, start=start)
    job.instances = tuple(worker.registration.instance for worker in members)
    job.announced, job.fenced = True, False
    job.store_epoch = books.epoch
    books.emit(SaveJob(job=job, announces=books.run.generation))


def saved(books: ClusterState, job: Job, event: JobSaved, now: float) -> None:
    """What was decided is written down, so its members may hear of it; or it could not be."""
    decision = books.run.decision
    if decision is None or (event.job, event.generation) != (job.id, job.generation):
        return
    if event.failure:
        decision.failure, decision.again_at = event.failure, now + SAVE_AGAIN_S
    elif _stands(books, job, decision):
        books.run.decision = None
        _announce(books, job, decision)
    else:
        books.withdraw(job)


def save_again(books: ClusterState, job: Job, now: float) -> None:
    """Try again to write down what could not be written, unless it does not stand any more."""
    decision = books.run.decision
    assert decision is not None, "nothing is decided"
    if decision.again_at is None or now < decision.again_at:
        return
    if not _stands(books, job, decision):
        books.withdraw(job)
        return
    decision.again_at = None
    books.emit(SaveJob(job=job, announces=job.generation))


def _stands(books: ClusterState, job: Job, decision: Decision) -> bool:
    """All whom it names are there, the same processes, and nobody has come with a newer state."""
    if any(books.workers[name].reconnection.returning for name in books.warming_since):
        return False
    start = choice.start_key(replace(job, **decision.before), books.available())
    return start == (job.start_generation, job.start_step) and all(
        books.workers.get(member.name) is member and member.state in AVAILABLE
        for member in decision.members
    )


def _announce(books: ClusterState, job: Job, decision: Decision) -> None:
    """Tell the members of a generation."""
    members, holds = decision.members, decision.holds
    _tell_what_is_left(books, job, decision)
    books.setbacks.no_progress_generations += 1
    books.waiting.must_settle = False
    books.waiting.settle_by = books.waiting.newer_since = books.waiting.form_at = None
    books.waiting.resumed = False
    books.run.roster, books.run.roster_id = list(job.roster), job.roster_id
    books.move_generation(GenerationEvent.ANNOUNCED)
    books.run.start_step = job.start_step
    books.run.begin(worker.name for worker, has in zip(members, holds, strict=True) if has)
    _count_lost(books, job, decision.lost)
    if decision.redone and books.ending.recovery is not None:
        books.ending.recovery.steps_redone += 1
    _assign(books, job, members, holds)
    donors = [worker.name for worker, has in zip(members, holds, strict=True) if has]
    books.incident(
        "generation_forming",
        f"generation {books.run.generation}: {', '.join(books.run.roster)};"
        f" state of step {books.run.start_step} from {', '.join(donors)}",
        step=books.run.start_step,
    )


def count_prepared(books: ClusterState, job: Job) -> None:
    """A step that is committed because all hold it prepared is progress like any other."""
    step = choice.start_key(job, books.available())[1]
    if step > job.step:
        books.advance(step)


def choose(books: ClusterState, job: Job) -> choice.Choice:
    """Who would be in a generation formed now."""
    return choice.choose(
        books.available(),
        start=choice.start_key(job, books.available()),
        max_workers=most_workers(job),
        bad_links=books.isolation.links.bad,
    )


def bar(books: ClusterState, barred: list[Worker]) -> None:
    """Keep these out of rosters until their links are good again."""
    for worker in barred:
        worker.reason = _why_barred(books, worker)
        if worker.state is not WorkerState.BARRED:
            books.incident(
                "worker_barred", f"{worker.name} stays out: {worker.reason}", worker=worker.name
            )
        books.move_worker(worker, WorkerEvent.NO_LINK)


def _why_barred(books: ClusterState, worker: Worker) -> str:
    others = books.isolation.links.unreachable_from(worker.name)
    every_s = min(
        books.isolation.links.probed_every_s(pair_of(worker.name, other)) for other in others
    )
    return f"no working link to {', '.join(others)}; probed every {every_s:g} s"


def _assign(books: ClusterState, job: Job, members: list[Worker], holds: list[bool]) -> None:
    roster = tuple(
        m.Member(
            name=w.name,
            incarnation=w.incarnation,
            host=w.registration.data_host,
            port=w.registration.data_port,
            holds=has,
        )
        for w, has in zip(members, holds, strict=True)
    )
    for rank, worker in enumerate(members):
        books.move_worker(worker, WorkerEvent.ASSIGNED)
        worker.participation.assigned(books.run.generation, rank)
        worker.reason = worker.reason if worker.leaving else ""
        assign = m.Assign(
            job=job.id,
            generation=books.run.generation,
            roster_id=books.run.roster_id,
            rank=rank,
            roster=roster,
            held_generation=job.start_generation,
            held_step=job.start_step,
            branches=tuple(m.Branch(**one._asdict()) for one in branches.remembered(job.branches)),
        )
        books.send(worker.name, assign)


def _leave_behind(books: ClusterState, job: Job, start: choice.Key) -> None:
    """What was saved after the state that the job goes back to stays where it is."""
    saved = (job.checkpoint_generation, job.checkpoint_step)
    if saved <= start and job.step <= start[1]:
        return
    job.branches = branches.left(branches.remembered(job.branches), start, books.run.generation)


def _tell_what_is_left(books: ClusterState, job: Job, decision: Decision) -> None:
    saved = (job.checkpoint_generation, job.checkpoint_step)
    begun = job.branches != decision.before["branches"]
    if begun and branches.is_left(saved, branches.remembered(job.branches[-1:])):
        books.incident(
            "branch_left",
            f"the checkpoint of step {job.checkpoint_step} stays with"
            f" {', '.join(job.checkpoint_holders)}; the job goes on from step {job.start_step}",
            step=job.start_step,
        )


def _count_lost(books: ClusterState, job: Job, lost: int) -> None:
    if lost > 0:
        job.steps_lost += lost
        if books.ending.recovery is not None:
            books.ending.recovery.steps_lost += lost
        books.incident(
            "steps_lost",
            f"nobody holds the last {lost} committed steps",
            step=books.run.start_step,
            steps_lost=lost,
        )


def _is_redone(books: ClusterState, job: Job, start: choice.Key) -> bool:
    """A generation that broke had a step under way, unless that one is committed after all."""
    recovery = books.ending.recovery
    if recovery is None or recovery.at_boundary or not recovery.running:
        return False
    return start not in {w.holdings.prepared for w in _prepared(books, job)}


def _prepared(books: ClusterState, job: Job) -> list[Worker]:
    """Members that hold a step prepared which they have not committed."""
    ended = (w for w in books.available() if w.holdings.frozen_in == job.generation)
    return [worker for worker in ended if worker.holdings.prepared != choice.held_key(worker)]


def member_running(books: ClusterState, job: Job, worker: Worker, now: float) -> None:
    """A member's ring is up and its state agreed; when all are, the generation runs."""
    books.move_worker(worker, WorkerEvent.RUNS)
    worker.holdings.held = choice.start_held(job)
    worker.holdings.prepared = choice.held_key(worker)
    check_running(books, job, now)


def check_running(books: ClusterState, job: Job, now: float) -> None:
    """Once nobody is still forming, the generation runs."""
    waited_for = (WorkerState.FORMING, WorkerState.AWAY)
    if books.run.phase is not GenerationState.FORMING:
        return
    if any(member.state in waited_for for member in books.members()):
        return
    books.move_generation(GenerationEvent.ALL_RUN)
    stopping = job.state is JobState.STOPPING
    if not stopping:
        books.move_job(job, JobEvent.RUNS)
    books.emit(SaveJob(job=job))
    books.incident(
        "generation_running",
        f"generation {books.run.generation} runs with {len(books.run.roster)} workers"
        f" from step {books.run.start_step}",
        step=books.run.start_step,
    )
    leaving = [member.name for member in books.members() if member.leaving]
    if stopping:
        ending.freeze(books, at_boundary=True, stop=True, reason=job.reason)
    elif leaving:
        ending.end_at_boundary(books, f"{', '.join(leaving)} leaves", now)
