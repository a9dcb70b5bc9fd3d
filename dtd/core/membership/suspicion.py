"""Who is to blame when a generation does not advance: evidence, fastest first.

A reset connection is known at once and needs no judge.  Here is the rest: silence towards the
coordinator, a neighbour's word that a link died, and the probes that clear a link of suspicion; of
threads that are stuck see `membership.standstill`.  Part of the membership machine; changes the
books, adds effects.
"""

from __future__ import annotations

from dtd.core.membership import admission, divergence, jobs
from dtd.core.membership.divergence import Divergence
from dtd.core.membership.events import SaveJob
from dtd.core.membership.reconnection import NEVER_HEARD
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.state_records import Finding
from dtd.core.membership.transitions import (
    MEMBERS,
    GenerationState,
    JobState,
    WorkerEvent,
    WorkerState,
)
from dtd.core.observe.links import DEAD, ENDED
from dtd.core.trust import dissent
from dtd.wire import messages as m

MISSED_BEATS = 2.5
"""Heartbeat intervals of silence that confirm a neighbour's word that a worker is dead."""

ADVANCING_STEPS = 1.5
"""A generation advances if its last commit is no longer ago than so many steps."""


def evict_silent(books: ClusterState, now: float) -> None:
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
    _evict_ended(books, now)


def _advances(books: ClusterState, now: float) -> bool:
    if books.run.phase is not GenerationState.RUNNING or books.run.advanced_at is None:
        return False
    beats = [member.liveness.heartbeat for member in books.members()]
    step_s = max((beat.step_s for beat in beats if beat is not None), default=0.0)
    grace_s = max(2 * books.heartbeat_interval_s, ADVANCING_STEPS * step_s)
    return now - books.run.advanced_at <= grace_s


def left(books: ClusterState, name: str, message: m.Frozen | m.Finished, now: float) -> None:
    """Keep a member's last words.  Whom more than half call different is not waited for."""
    books.run.last_words[name] = message
    suspect = books.workers.get(message.suspect) if isinstance(message, m.Frozen) else None
    if suspect is None or suspect.state not in MEMBERS | {WorkerState.FROZEN}:
        return
    naming = [by for by, one in dissent.claims(books) if one.suspect == suspect.name != by]
    if 2 * len(naming) > len(books.run.roster):
        admission.expel(books, suspect, dissent.MINORITY, now)


def settle(books: ClusterState, job: Job, now: float) -> None:
    """All members have left: whose state differs starts afresh, by their own words.

    Without a majority all who have not forgotten do.  If that happens again and again at one
    point, it is not chance, and the job fails.
    """
    finding = books.trust.finding = dissent.find(books, job)
    for name, why in dissent.contradicted(books, job):
        books.incident("report_contradicted", why, worker=name)
    if finding is not None and not finding.digest:
        hopeless = _note_divergence(books, job, finding)
        if hopeless:
            jobs.finish(books, JobState.FAILED, hopeless)
            return
    for worker in books.available():
        why = dissent.why_distrusted(books, worker, books.run.last_words.get(worker.name))
        if why:
            admission.expel(books, worker, why, now)


def _note_divergence(books: ClusterState, job: Job, finding: Finding) -> str:
    """States differ and none has a majority; why that is no chance, empty if it may be."""
    books.trust.distrusted = finding.generation
    seen = [(name, one) for name, one in dissent.claims(books) if not one.suspect]
    known = divergence.remembered(job.divergences)
    for entry in [one.differs for _, one in seen] or [""]:
        known = divergence.noted(known, Divergence(finding.generation, finding.step, entry))
    job.divergences = tuple(known)
    books.emit(SaveJob(job=job))
    why = divergence.why_hopeless(known)
    said = "".join(f"; {name}: {one.reason}" for name, one in seen[:1])
    return f"{why}{said}" if why else ""


def accused(books: ClusterState, name: str, message: m.Frozen, now: float) -> None:
    """A member has lost its neighbour: if that one does not answer us either, it is gone.

    A lifeline is cut by the end of a process only.  We may yet hold its control connection, since
    the kernel closes that later.  So the word of two is enough; one alone may lie, and what it says
    counts when the suspect misses beats, or its connection ends.
    """
    suspect = books.workers.get(message.suspect)
    if suspect is None or suspect.state not in MEMBERS or not message.evidence:
        return
    if suspect.state is WorkerState.AWAY and suspect.incarnation != NEVER_HEARD:
        admission.lose(books, suspect, "its control connection and its ring are both gone", now)
    elif message.evidence == ENDED:
        books.run.said_ended.setdefault(suspect.name, set()).add(name)
        _evict_ended(books, now)
    elif message.evidence in DEAD and _misses_beats(books, suspect.name, now):
        silent_s = books.detector.silence_s(suspect.name, now)
        why = f"silent towards its neighbour, and no heartbeat for {silent_s:.1f} s"
        admission.evict(books, suspect, why, now)


def _evict_ended(books: ClusterState, now: float) -> None:
    """Evict those whose process has ended: two neighbours say so, or one, and beats are missing."""
    for name, by in books.run.said_ended.items():
        suspect = books.workers[name]
        believed = len(by - {name}) > 1 or _misses_beats(books, name, now)
        if suspect.state in MEMBERS and believed:
            admission.evict(books, suspect, "its process has ended", now)


def _misses_beats(books: ClusterState, name: str, now: float) -> bool:
    return books.detector.silence_s(name, now) > MISSED_BEATS * books.heartbeat_interval_s


def probe(books: ClusterState, now: float) -> None:
    """Have the ends of bad links try again."""
    for by, other in books.isolation.links.due(books.living(), now):
        target = books.workers[other]
        message = m.Probe(
            name=other, host=target.registration.data_host, port=target.registration.data_port
        )
        books.send(by, message)


def probed(books: ClusterState, worker: Worker, message: m.Probed, now: float) -> None:
    """A probe has come back; a link that works both ways may be used again."""
    good = books.isolation.links.answered(
        worker.name, message.name, now, reachable=message.reachable, greeted=message.greeted
    )
    if not good:
        return
    books.incident("link_good", f"{worker.name} and {message.name} reach each other again")
    for one in books.workers.values():
        if one.state is WorkerState.BARRED and not books.isolation.links.unreachable_from(one.name):
            books.move_worker(one, WorkerEvent.LINK_WORKS)
