"""The life of a generation: formed, running, ending, and only then the next one.

Part of the membership machine; changes the books, adds effects.  The next generation is announced
when every living member of the last one has reported FROZEN (or FINISHED): a single member that has
stopped stops the ring, so two generations never commit side by side.
"""

from __future__ import annotations

from dtd.core import roster as choice
from dtd.core.books import GONE, Books, GenerationState, most_workers
from dtd.core.membership_events import Job, JobState, SaveJob, Worker, WorkerState
from dtd.wire import messages as m

FREEZE_PATIENCE_S = 10.0
FREEZE_PATIENCE_STEPS = 4


# --- forming ---------------------------------------------------------------------------------


def form(books: Books, job: Job, available: list[Worker]) -> None:
    """Announce the next generation."""
    members = choice.choose(available, max_workers=most_workers(job))
    books.must_settle = False
    books.settle_by = books.resume_by = None
    held_generations = (choice.held_key(worker)[0] for worker in members)
    books.generation = max(books.generation, books.highest_seen, *held_generations) + 1
    books.roster = [worker.name for worker in members]
    books.roster_id = choice.roster_id(job.id, books.generation, members)
    books.generation_state = GenerationState.FORMING
    source = choice.source_rank(members)
    books.start_step = choice.held_key(members[source])[1]
    _count_lost(books, job)
    job.state = JobState.FORMING
    job.generation, job.world_size, job.step = books.generation, len(members), books.start_step
    job.roster = tuple(books.roster)
    books.emit(SaveJob(job=job))
    _assign(books, job, members, source)
    books.incident(
        "generation_forming",
        f"generation {books.generation}: {', '.join(books.roster)};"
        f" state of step {books.start_step} from {members[source].name}",
        step=books.start_step,
    )


def _assign(books: Books, job: Job, members: list[Worker], source: int) -> None:
    held_generation, held_step = choice.held_key(members[source])
    roster = tuple(
        m.Member(name=w.name, incarnation=w.incarnation, host=w.data_host, port=w.data_port)
        for w in members
    )
    for rank, worker in enumerate(members):
        worker.state = WorkerState.FORMING
        worker.reason = worker.reason if worker.leaving else ""
        assign = m.Assign(
            job=job.id,
            generation=books.generation,
            roster_id=books.roster_id,
            rank=rank,
            roster=roster,
            source_rank=source,
            held_generation=held_generation,
            held_step=held_step,
        )
        books.send(worker.name, assign)


def _count_lost(books: Books, job: Job) -> None:
    lost = job.step - books.start_step
    if lost > 0:
        job.steps_lost += lost
        books.incident(
            "steps_lost",
            f"nobody holds the last {lost} committed steps",
            step=books.start_step,
        )


def member_running(books: Books, job: Job, worker: Worker, message: m.Running) -> None:
    """A member's ring is up and its state agreed; when all are, the generation runs."""
    if worker.state is not WorkerState.FORMING or message.generation != books.generation:
        return
    worker.state = WorkerState.RUNNING
    if books.generation_state is not GenerationState.FORMING:
        return
    if any(member.state is WorkerState.FORMING for member in books.members()):
        return
    books.generation_state = GenerationState.RUNNING
    stopping = job.state is JobState.STOPPING
    if not stopping:
        job.state = JobState.RUNNING
    books.emit(SaveJob(job=job))
    books.incident(
        "generation_running",
        f"generation {books.generation} runs with {len(books.roster)} workers"
        f" from step {message.step}",
        step=message.step,
    )
    leaving = [member.name for member in books.members() if member.leaving]
    if stopping:
        freeze(books, at_boundary=True, stop=True, reason=job.reason)
    elif leaving:
        end_at_boundary(books, f"{', '.join(leaving)} leaves")


# --- running ---------------------------------------------------------------------------------


def progressed(books: Books, job: Job, generation: int, step: int) -> None:
    """A member has committed a step."""
    if generation == books.generation and step > books.start_step:
        books.fruitless = 0
        job.step = max(job.step, step)


def admit_ready(books: Books, job: Job) -> None:
    """End the running generation at a step boundary when somebody is ready to join."""
    ready = [w for w in books.workers.values() if w.state is WorkerState.READY and not w.leaving]
    room = most_workers(job) - len(books.roster)
    finishing = any(member.state is WorkerState.FINISHED for member in books.members())
    stopping = job.state is JobState.STOPPING
    if ready and room > 0 and not (books.warming_since or finishing or stopping):
        for worker in ready:
            worker.reason = "joins at the next step boundary"
        end_at_boundary(books, f"{', '.join(w.name for w in ready)} joins")


# --- ending ----------------------------------------------------------------------------------


def freeze(books: Books, *, at_boundary: bool, stop: bool, reason: str) -> None:
    """Ask every member that still takes part to end the generation."""
    for name in books.not_frozen():
        message = m.Freeze(
            generation=books.generation,
            at_boundary=at_boundary,
            stop=stop,
            reason=reason,
            leave=books.workers[name].leaving,
        )
        books.send(name, message)


def end_at_boundary(books: Books, reason: str) -> None:
    """End a running generation after its current step; no step is redone."""
    freeze(books, at_boundary=True, stop=False, reason=reason)
    _begin_ending(books, reason)


def end_now(books: Books, reason: str, now: float) -> None:
    """End the generation at once; members that do not answer in time are given up."""
    if books.generation_state is not GenerationState.ENDING:
        _begin_ending(books, reason)
    freeze(books, at_boundary=False, stop=False, reason=reason)
    beats = [member.heartbeat for member in books.members()]
    slowest_s = max((beat.step_s for beat in beats if beat is not None), default=0.0)
    books.freeze_by = now + max(FREEZE_PATIENCE_S, FREEZE_PATIENCE_STEPS * slowest_s)


def _begin_ending(books: Books, reason: str) -> None:
    books.generation_state = GenerationState.ENDING
    books.incident("generation_ending", f"generation {books.generation} ends: {reason}")


def member_lost(books: Books, worker: Worker, reason: str, now: float) -> None:
    """A member is gone: its ring cannot go on."""
    end_now(books, f"{worker.name} is lost: {reason}", now)


def member_frozen(books: Books, worker: Worker, message: m.Frozen, now: float) -> None:
    """A member takes no further part and says what it holds."""
    if message.generation != books.generation:
        return
    worker.state = WorkerState.FROZEN
    worker.held = choice.held_by(message)
    if message.suspect:
        books.incident(
            "ring_broken", f"{worker.name} lost its ring: {message.reason}", worker=worker.name
        )
    if books.generation_state is not GenerationState.ENDING:
        end_now(books, f"{worker.name} has frozen: {message.reason}", now)


def member_finished(books: Books, job: Job, worker: Worker, message: m.Finished) -> None:
    """A member has committed the last step and its digest agrees with everyone's."""
    if message.generation != books.generation:
        return
    worker.state, worker.digest = WorkerState.FINISHED, message.digest
    worker.held = choice.held_by(message)
    job.step = message.step
    if message.result:
        job.result = dict(message.result)


def is_complete(books: Books, job: Job) -> bool:
    """Every member that is still here has finished, and the final checkpoint is saved.

    A rank 0 that died between the last step and its checkpoint leaves finished replicas and nothing
    on any disk: then one more generation, of those who remember, saves it.
    """
    states = {member.state for member in books.members()} - GONE
    return states == {WorkerState.FINISHED} and job.checkpoint_step >= job.step


def close(books: Books) -> None:
    """The last living member has frozen: there is no generation now."""
    for member in books.members():
        if member.state is WorkerState.FINISHED:
            member.state = WorkerState.READY
    reset(books)


def reset(books: Books) -> None:
    """Forget the generation."""
    books.generation_state = GenerationState.NONE
    books.roster = []
    books.freeze_by = None
