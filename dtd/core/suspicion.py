"""Who is to blame when a generation does not advance: evidence, fastest first.

A reset connection is known at once and needs no judge.  Here is the rest: silence towards the
coordinator, a neighbour's word that a link died, and the probes that clear a link of suspicion; of
threads that are stuck see `dtd.core.standstill`.  Part of the membership machine; changes the
books, adds effects.
"""

from __future__ import annotations

from dtd.core import admission, divergence, jobs
from dtd.core import roster as choice
from dtd.core.adoption import NEVER_HEARD
from dtd.core.books import Books
from dtd.core.divergence import Divergence
from dtd.core.links import DEAD, ENDED
from dtd.core.membership_events import Job, SaveJob, Worker
from dtd.core.transitions import MEMBERS, GenerationState, JobState, WorkerEvent, WorkerState
from dtd.wire import messages as m

MISSED_BEATS = 2.5
"""Heartbeat intervals of silence that confirm a neighbour's word that a worker is dead."""

ADVANCING_STEPS = 1.5
"""A generation advances if its last commit is no longer ago than so many steps."""


def evict_silent(books: Books, now: float) -> None:
    """Evict who has been silent for too long, but nobody whose generation advances.

    Every step needs every member, so a member of a ring that commits steps lives, whatever the
    coordinator hears of it.
    """
    for name, reason in books.detector.suspects(now):
        worker = books.workers[name]
        if worker.state in MEMBERS and _advances(books, now):
            worker.reason = f"{reason}, but its generation advances"
            continue
        admission.evict(books, worker, reason, now)


def _advances(books: Books, now: float) -> bool:
    if books.generation_state is not GenerationState.RUNNING or books.advanced_at is None:
        return False
    beats = [member.heartbeat for member in books.members()]
    step_s = max((beat.step_s for beat in beats if beat is not None), default=0.0)
    grace_s = max(2 * books.heartbeat_interval_s, ADVANCING_STEPS * step_s)
    return now - books.advanced_at <= grace_s


def diverged(books: Books, job: Job, name: str, message: m.Frozen, now: float) -> None:
    """Who differs from the majority starts afresh; without one, all who have not forgotten do.

    A member that was stopped before it saw the digests does not know that its state is not to be
    trusted, and would bring it into the next generation.  If that happens again and again at one
    point, it is not chance, and the job fails.
    """
    if message.evidence == "diverged" and not message.suspect:
        why = _note_divergence(books, job, message)
        if why:
            jobs.finish(books, JobState.FAILED, f"{why}; {name}: {message.reason}")
            return
    for one in list(books.workers.values()):
        ended = one.state is WorkerState.FROZEN and one.frozen_in == message.generation
        differs = message.evidence == "diverged" and one.name == message.suspect
        if differs and (ended or one.state in MEMBERS):
            admission.expel(books, one, "its state differs from the majority's", now)
        elif ended and books.distrusted == message.generation and choice.in_memory(one):
            admission.expel(books, one, "states differ, and none has a majority", now)


def _note_divergence(books: Books, job: Job, message: m.Frozen) -> str:
    """States differ and none has a majority; why that is no chance, empty if it may be."""
    books.distrusted = message.generation
    new = Divergence(message.generation, message.diverged_step, message.differs)
    known = divergence.noted(divergence.remembered(job.divergences), new)
    job.divergences = tuple(known)
    books.emit(SaveJob(job=job))
    return divergence.why_hopeless(known)


def accused(books: Books, message: m.Frozen, now: float) -> None:
    """A member has lost its neighbour: if that one does not answer us either, it is gone.

    A lifeline is cut by the end of a process only.  We may yet hold its control connection, since
    the kernel closes that later; should the process live after all, it will connect again.
    """
    suspect = books.workers.get(message.suspect)
    if suspect is None or suspect.state not in MEMBERS or not message.evidence:
        return
    if message.evidence == ENDED:
        admission.evict(books, suspect, "its process has ended", now)
        return
    if suspect.state is WorkerState.AWAY and suspect.incarnation != NEVER_HEARD:
        admission.lose(books, suspect, "its control connection and its ring are both gone", now)
    silent_s = books.detector.silence_s(suspect.name, now)
    if message.evidence in DEAD and silent_s > MISSED_BEATS * books.heartbeat_interval_s:
        why = f"silent towards its neighbour, and no heartbeat for {silent_s:.1f} s"
        admission.evict(books, suspect, why, now)


def probe(books: Books, now: float) -> None:
    """Have the ends of bad links try again."""
    for by, other in books.links.due(books.living(), now):
        target = books.workers[other]
        message = m.Probe(name=other, host=target.data_host, port=target.data_port)
        books.send(by, message)


def probed(books: Books, worker: Worker, message: m.Probed, now: float) -> None:
    """A probe has come back; a link that works both ways may be used again."""
    good = books.links.answered(
        worker.name, message.name, now, reachable=message.reachable, greeted=message.greeted
    )
    if not good:
        return
    books.incident("link_good", f"{worker.name} and {message.name} reach each other again")
    for one in books.workers.values():
        if one.state is WorkerState.BARRED and not books.links.unreachable_from(one.name):
            books.move_worker(one, WorkerEvent.LINK_WORKS)
