"""A generation ends: at a step boundary or at once, and members say what they hold.

Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from dtd.core.membership import roster as choice
from dtd.core.membership.records import Job, Recovery, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import (
    GONE,
    MEMBERS,
    GenerationEvent,
    GenerationState,
    WorkerEvent,
    WorkerState,
)
from dtd.core.observe import figures
from dtd.core.observe.links import DEAD
from dtd.wire import messages as m

FREEZE_PATIENCE_S = 5.0
FREEZE_PATIENCE_STEPS = 10


def freeze(books: ClusterState, *, at_boundary: bool, stop: bool, reason: str) -> None:
    """Ask every member that still takes part to end the generation."""
    for name in books.not_frozen():
        freeze_one(books, books.workers[name], at_boundary=at_boundary, stop=stop, reason=reason)


def freeze_one(
    books: ClusterState, worker: Worker, *, at_boundary: bool, stop: bool, reason: str
) -> None:
    """Ask one member to end the generation."""
    message = m.Freeze(
        generation=books.run.generation,
        at_boundary=at_boundary,
        stop=stop,
        reason=reason,
        leave=worker.leaving,
    )
    books.send(worker.name, message)


def end_at_boundary(books: ClusterState, reason: str, now: float) -> None:
    """End a running generation after its current step; no step is redone."""
    freeze(books, at_boundary=True, stop=False, reason=reason)
    _begin_ending(books, reason, now, at_boundary=True)


def end_now(
    books: ClusterState, reason: str, now: float, *, worker: str = "", silent_s: float = 0
) -> None:
    """End the generation at once; members that do not answer in time are given up."""
    if books.run.phase is not GenerationState.ENDING:
        _begin_ending(books, reason, now, worker=worker, silent_s=silent_s)
    else:
        assert books.ending.recovery is not None, "a generation ends, and nothing is recovered from"
        books.ending.recovery.breaks(reason, now, worker=worker, silent_s=silent_s)
    freeze(books, at_boundary=False, stop=False, reason=reason)
    waited_for = [books.workers[name] for name in books.not_frozen()]
    books.ending.freeze_by = now + max(
        map(freeze_patience_s, waited_for), default=FREEZE_PATIENCE_S
    )


def freeze_patience_s(worker: Worker) -> float:
    """How long a worker may take to freeze: it does so when it next waits for its ring.

    Never less than the time without progress that it is allowed anyway (its first step may have to
    be compiled); one that is stuck for longer is expelled for that.
    """
    beat = worker.liveness.heartbeat
    if beat is None:
        return FREEZE_PATIENCE_S
    return max(FREEZE_PATIENCE_S, FREEZE_PATIENCE_STEPS * beat.step_s, beat.patience_s)


def _begin_ending(
    books: ClusterState,
    reason: str,
    now: float,
    *,
    at_boundary: bool = False,
    worker: str = "",
    silent_s: float = 0.0,
) -> None:
    books.move_generation(GenerationEvent.ENDS)
    if books.ending.recovery is None:
        books.ending.recovery = Recovery(
            cause=reason,
            worker=worker,
            began_at=now,
            detected_after_s=silent_s,
            at_boundary=at_boundary,
            running=books.run.has_run,
        )
    else:
        books.ending.recovery.again(at_boundary=at_boundary, running=books.run.has_run)
    books.incident("generation_ending", f"generation {books.run.generation} ends: {reason}")


def member_lost(
    books: ClusterState, worker: Worker, reason: str, now: float, *, silent_s: float
) -> None:
    """A member is gone: its ring cannot go on."""
    why = f"{worker.name} is lost: {reason}"
    if books.ending.recovery is not None and books.ending.recovery.worker == worker.name:
        books.ending.recovery.cause = why  # more than its neighbour knew
    end_now(books, why, now, worker=worker.name, silent_s=silent_s)


def member_frozen(
    books: ClusterState, job: Job, worker: Worker, message: m.Frozen, now: float
) -> None:
    """A member takes no further part and says what it holds."""
    books.move_worker(worker, WorkerEvent.FROZE)
    worker.holdings.frozen_in = message.generation
    worker.holdings.held = choice.held_by(message)
    worker.holdings.prepared = (message.prepared_generation, message.prepared_step)
    job.fenced = True
    if message.evidence:
        _tell_evidence(books, worker, message)
    # At a step boundary the first to leave may reset its links to the others.
    known = message.evidence in ("", "reset") or books.ending.freeze_by is not None
    if books.run.phase is GenerationState.ENDING and known:
        return
    about, reason, silent_s = worker.name, f"{worker.name} has frozen: {message.reason}", 0.0
    if message.suspect:
        about = message.suspect
        reason = f"{worker.name} has lost {about} ({message.evidence}: {message.reason})"
    if message.evidence in DEAD:
        silent_s = books.heartbeat_timeout_s
    end_now(books, reason, now, worker=about, silent_s=silent_s)


def _tell_evidence(books: ClusterState, worker: Worker, message: m.Frozen) -> None:
    if message.evidence == "diverged":
        books.incident("replicas_diverged", f"{worker.name}: {message.reason}", worker=worker.name)
        return
    suspect = books.workers.get(message.suspect)
    if suspect is not None and suspect.state in MEMBERS | {WorkerState.FROZEN}:
        books.isolation.links.accuse(worker.name, message.suspect, message.evidence)
    books.incident(
        "ring_broken",
        f"{worker.name} lost its ring: {message.reason}",
        worker=worker.name,
        suspect=message.suspect,
        evidence=message.evidence,
    )


def member_finished(books: ClusterState, job: Job, worker: Worker, message: m.Finished) -> None:
    """A member has committed the last step and its digest agrees with everyone's."""
    books.move_worker(worker, WorkerEvent.FINISHED)
    worker.holdings.digest = message.digest
    worker.holdings.held, worker.holdings.frozen_in = choice.held_by(message), message.generation
    worker.holdings.prepared = choice.held_key(worker)
    job.fenced = True
    if message.result and worker.participation.rank == 0:
        job.result = figures.result(message.result)


def is_complete(books: ClusterState) -> bool:
    """Every member that is still here has finished; `membership.saving` sees that it is saved.

    A rank 0 that died between the last step and its checkpoint leaves finished replicas and nothing
    on any disk: then one of those writes it.
    """
    return {member.state for member in books.members()} - GONE == {WorkerState.FINISHED}


def close(books: ClusterState, job: Job, now: float) -> None:
    """The last living member has frozen: there is no generation now."""
    for member in books.members():
        if member.state is WorkerState.FINISHED:
            books.move_worker(member, WorkerEvent.CLOSED)
    for pair, evidence in books.isolation.links.judge(books.living(), now):
        one, other = pair
        every_s = books.isolation.links.probed_every_s(pair)
        books.incident(
            "link_bad",
            f"{one} and {other} live and cannot reach each other ({evidence}); probed every"
            f" {every_s:g} s",
            evidence=evidence,
            probed_every_s=every_s,
        )
    books.setbacks.crash_generations += books.run.lost_member
    books.note_brevity(job)
    job.announced = False
    books.move_generation(GenerationEvent.CLOSED)
