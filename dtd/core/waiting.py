"""May the next generation form, or is somebody worth waiting for?

Part of the membership machine.  In order: workers that come back with a state, enough workers,
those who warm up (unless somebody remembers where the job stood: then it goes on at once), late
ones at the very beginning, and whoever may hold a newer state than those who are here.
"""

from __future__ import annotations

from dtd.core import roster as choice
from dtd.core.books import Books, least_workers
from dtd.core.membership_events import Job, WorkerState

RESUME_WAIT_S = 60.0


def may_form(books: Books, job: Job, now: float) -> bool:
    """Nothing is worth waiting for any more."""
    if len(books.available()) < least_workers(job) or _waits_for_warm_up(books, job):
        books.settle_by = None
        return False
    return _has_settled(books, job, now) and _has_newest(books, job, now)


def _waits_for_warm_up(books: Books, job: Job) -> bool:
    """Survivors go on at once, and whoever warms up joins later; a fresh start waits.

    Those who come back with a state are waited for in any case: it may be the newest.
    """
    if any(books.workers[name].returning for name in books.warming_since):
        return True
    survivors = [worker for worker in books.survivors(job) if not worker.leaving]
    return bool(books.warming_since) and not survivors


def _has_settled(books: Books, job: Job, now: float) -> bool:
    """A job's first generation gives late workers a moment to join."""
    if not books.must_settle or (job.roster and not books.missing(job)):
        return True
    if books.settle_by is None:
        books.settle_by = now + float(job.spec["elastic"]["settle_s"])
    return now >= books.settle_by


def _has_newest(books: Books, job: Job, now: float) -> bool:
    """Wait a while for whoever holds the newest state rather than go further back."""
    if books.survivors(job) or not _absent_holders(books, job):
        return True
    if books.resume_by is None:
        books.resume_by = now + RESUME_WAIT_S
    return now >= books.resume_by


def _absent_holders(books: Books, job: Job) -> list[str]:
    """Who may hold a newer state than those who are here, and may come back with it."""
    absent = set(books.missing(job))
    newest = max((choice.held_key(worker) for worker in books.available()), default=(0, 0))
    if newest < (job.checkpoint_generation, job.checkpoint_step):
        absent |= set(job.checkpoint_holders) - {worker.name for worker in books.available()}
    return sorted(absent, key=choice.natural_key)


def explain(books: Books, job: Job) -> str:
    """Why no generation forms, in words for a person."""
    warming = sorted(books.warming_since, key=choice.natural_key)
    returning = [name for name in warming if books.workers[name].returning]
    if returning:
        return f"waiting for {', '.join(returning)} to leave the last generation"
    if warming:
        return f"warming up: {', '.join(warming)}"
    ready, least = len(books.available()), least_workers(job)
    if ready < least:
        refused = [w for w in books.workers.values() if w.state is WorkerState.REFUSED]
        why = "".join(f"; {w.name} is refused: {w.reason}" for w in refused)
        return f"{ready} of at least {least} workers are ready{why}"
    if books.resume_by is not None:
        step = max(job.step, job.checkpoint_step)
        holders = ", ".join(_absent_holders(books, job))
        return f"waiting for {holders}: nobody here holds the state of step {step}"
    return "settling: giving late workers a moment to join"
