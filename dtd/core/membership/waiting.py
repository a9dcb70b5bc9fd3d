"""May the next generation form, or is somebody worth waiting for?

Part of the membership machine.  In order: workers that come back with a state, enough workers,
those who warm up (unless somebody remembers where the job stood: then it goes on at once), late
ones at the very beginning, and whoever may hold a newer state than those who are here.
"""

from __future__ import annotations

from dtd.core.membership import branches, forming
from dtd.core.membership import roster as choice
from dtd.core.membership.records import Job
from dtd.core.membership.state import ClusterState, least_workers
from dtd.core.membership.state_records import Decision
from dtd.core.membership.transitions import WorkerState
from dtd.core.trust import doubt

RESUME_WAIT_S = 60.0
MOST_RESUME_WAIT_S = 3600.0
"""Who holds newer steps is waited for as long as they would take again, within these limits."""
QUICK_GENERATIONS = 3
FIRST_PAUSE_S = 0.1
MAX_DOUBLINGS = 6


def may_form(books: ClusterState, job: Job, now: float) -> bool:
    """Nothing is worth waiting for any more."""
    if doubt.lasts(books, job) or doubt.is_exhausted(books):
        return False
    if _may_run_elsewhere(job):
        return False
    enough = len(books.available()) >= least_workers(job)
    if not enough or _waits_for_warm_up(books, job) or _lacks_links(books, job):
        books.waiting.settle_by = books.waiting.form_at = None
        return False
    if not (_has_settled(books, job, now) and _has_newest(books, job, now)):
        books.waiting.form_at = None
        return False
    return _has_paused(books, now)


def _may_run_elsewhere(job: Job) -> bool:
    """Nobody has stopped for certain: the last generation may train on, out of our hearing."""
    return job.generation > 0 and not job.fenced


def _lacks_links(books: ClusterState, job: Job) -> bool:
    """Without those who have no working link to the others there are too few."""
    return bool(books.isolation.links.bad) and len(
        forming.choose(books, job).members
    ) < least_workers(job)


def _has_paused(books: ClusterState, now: float) -> bool:
    """Generations that come to nothing follow each other ever more slowly."""
    in_row = max(books.setbacks.no_progress_generations, books.setbacks.brief_generations)
    if in_row <= QUICK_GENERATIONS:
        return True
    if books.waiting.form_at is None:
        doublings = min(in_row - QUICK_GENERATIONS, MAX_DOUBLINGS)
        books.waiting.form_at = now + FIRST_PAUSE_S * 2**doublings
    return now >= books.waiting.form_at


def _waits_for_warm_up(books: ClusterState, job: Job) -> bool:
    """Survivors go on at once, and whoever warms up joins later; a fresh start waits.

    Those who come back with a state are waited for in any case: it may be the newest.
    """
    if any(books.workers[name].reconnection.returning for name in books.warming_since):
        return True
    survivors = [worker for worker in books.survivors(job) if not worker.leaving]
    return bool(books.warming_since) and not survivors


def _has_settled(books: ClusterState, job: Job, now: float) -> bool:
    """A job's first generation gives late workers a moment to join."""
    if not books.waiting.must_settle or (job.roster and not books.missing(job)):
        return True
    if books.waiting.settle_by is None:
        books.waiting.settle_by = now + float(job.spec["elastic"]["settle_s"])
    return now >= books.waiting.settle_by


def _has_newest(books: ClusterState, job: Job, now: float) -> bool:
    """Wait a while for whoever holds the newest state rather than go further back."""
    if _is_newest_here(books, job):
        books.waiting.newer_since = None
    elif books.waiting.newer_since is None:
        books.waiting.newer_since = now
    resume_at = resume_by(books)
    return books.waiting.resumed or resume_at is None or now >= resume_at


def resume_by(books: ClusterState) -> float | None:
    """When the job goes on without whoever may hold a newer state than those who are here now.

    Who is here may change while it waits, and with it what going on would cost.
    """
    if books.job is None or books.waiting.newer_since is None:
        return None
    return books.waiting.newer_since + resume_wait_s(books, books.job)


def resume_wait_s(books: ClusterState, job: Job) -> float:
    """How long steps are waited for rather than done again: as long as that would take."""
    here = choice.start_key(job, books.available())[1]
    cost_s = (max(job.step, branches.saved_step(job)) - here) * job.step_s
    return min(max(cost_s, RESUME_WAIT_S), MOST_RESUME_WAIT_S)


def _is_newest_here(books: ClusterState, job: Job) -> bool:
    """Nobody who may come back can hold a newer state than those who are here."""
    return bool(books.survivors(job)) or not _absent_holders(books, job)


def _absent_holders(books: ClusterState, job: Job) -> list[str]:
    """Who may hold a newer state than those who are here, and may come back with it."""
    absent = set(books.missing(job))
    newest = max((choice.held_key(worker) for worker in books.available()), default=(0, 0))
    saved = (job.checkpoint_generation, job.checkpoint_step)
    if newest < saved and not branches.is_left(saved, branches.remembered(job.branches)):
        absent |= set(job.checkpoint_holders) - {worker.name for worker in books.available()}
    return sorted(absent, key=choice.natural_key)


def _explain_decision(decision: Decision, job: Job) -> str:
    if not decision.failure:
        return f"writing down generation {job.generation}"
    return (
        f"generation {job.generation} cannot be written down, and nobody hears of it before:"
        f" {decision.failure}; make room on the coordinator's disk, or repair it"
    )


def explain(books: ClusterState, job: Job) -> str:
    """Why no generation forms, in words for a person."""
    if books.run.decision is not None:
        return _explain_decision(books.run.decision, job)
    if doubt.lasts(books, job):
        return doubt.explain(books, job)
    if doubt.is_exhausted(books):
        return doubt.why_exhausted(books)
    if _may_run_elsewhere(job):
        away = ", ".join(job.roster)
        return (
            f"waiting for {away}: generation {job.generation} may still run there;"
            f" `dtdctl resume {job.id}` if they are gone for good"
        )
    warming = sorted(books.warming_since, key=choice.natural_key)
    returning = [name for name in warming if books.workers[name].reconnection.returning]
    if returning:
        return f"waiting for {', '.join(returning)} to leave the last generation"
    if warming:
        return f"warming up: {', '.join(warming)}"
    ready, least = len(books.available()), least_workers(job)
    if ready < least:
        refused = [w for w in books.workers.values() if w.state is WorkerState.REFUSED]
        why = "".join(f"; {w.name} is refused: {w.reason}" for w in refused)
        return f"{ready} of at least {least} workers are ready{why}"
    if _lacks_links(books, job):
        dead = "; ".join(f"{one} and {other}" for one, other in sorted(books.isolation.links.bad))
        return f"waiting for a working link between {dead}"
    if books.waiting.form_at is not None:
        brief, idle = books.setbacks.brief_generations, books.setbacks.no_progress_generations
        if brief > idle:
            return f"pausing after {brief} generations that broke after hardly a step"
        return f"pausing after {idle} generations that committed no step"
    resume_at = resume_by(books)
    if resume_at is not None and not (books.waiting.resumed or _is_newest_here(books, job)):
        step = max(job.step, branches.saved_step(job))
        holders = ", ".join(_absent_holders(books, job))
        return (
            f"waiting for {holders}: nobody here holds the state of step {step};"
            f" `dtdctl resume {job.id}` goes on without it,"
            f" as the job does in {_in_words(max(0.0, resume_at - books.now))}"
        )
    return "settling: giving late workers a moment to join"


def _in_words(left_s: float) -> str:
    """A wait that is left, as precise as it matters."""
    return f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
