"""Whose training stands still, and whether it is put out for that.

A worker says with every heartbeat whether its training thread is stuck (`dtd.core.progress`).  One
that is, while others wait for it, starts afresh at once.  But what befalls all alike, such as
storage that hangs, is nobody's fault; and whoever is among the last that remember the newest state
is never put out, for its memory would go with it: then the operator is told, who alone can give it
up.  Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from dtd.core.membership import admission, branches, ending
from dtd.core.membership import roster as choice
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import MEMBERS, JobState, WorkerState
from dtd.core.progress import TELL_AFTER_S
from dtd.wire import messages as m

ALIKE: Final = 0.5
"""Two stand still alike if one does so for at least this part of the other's time."""

ALIKE_PATIENCE_S: Final = 60.0
"""So much longer may several stand still alike where nothing is lost without them."""

_HERE: Final = MEMBERS - {WorkerState.AWAY} | {WorkerState.FROZEN}

MOST_LIMITS: Final = 10.0
"""A worker's thread is given at most so many times the longest limit of its job."""

_LIMITS: Final = ("stall_timeout_s", "busy_timeout_s", "warmup_timeout_s")

LOOK_AGAIN_S: Final = 1.0
"""When those are looked at again who have not frozen in time and are seen to get on."""


def believable(job: Job | None, beat: m.Heartbeat) -> m.Heartbeat:
    """The heartbeat, with times that the job's limits can have led to.

    Whoever is to freeze is waited for as long as it says; what it says has a bound of our own.
    """
    elastic = job.spec["elastic"] if job is not None else {}
    longest_s = max(float(elastic.get(limit, 0.0)) for limit in _LIMITS)
    most_s = MOST_LIMITS * longest_s
    if not most_s or max(beat.patience_s, beat.step_s) <= most_s:
        return beat
    patience_s, step_s = min(beat.patience_s, most_s), min(beat.step_s, most_s)
    return replace(beat, patience_s=patience_s, step_s=step_s)


def is_stuck(beat: m.Heartbeat | None) -> bool:
    """The worker says so itself."""
    return beat is not None and 0 < beat.patience_s < beat.stalled_s


def gets_on(beat: m.Heartbeat | None) -> bool:
    """Its thread is under way: it neither waits for its ring nor is stuck."""
    return beat is not None and 0 < beat.stalled_s <= beat.patience_s


def judge(books: ClusterState, job: Job, worker: Worker, now: float) -> None:
    """A member has sent a heartbeat: is it stuck, and is it to start afresh?"""
    beat = worker.liveness.heartbeat
    if beat is not None and beat.generation == books.run.generation and is_stuck(beat):
        _give_up(books, job, worker, why_stuck(beat), now)
    elif books.ending.freeze_by is None or gets_on(beat):  # else it has not frozen yet
        forgive(books, worker)


def forgive(books: ClusterState, worker: Worker) -> None:
    """It is not stuck any more, or has frozen."""
    if worker.liveness.kept:
        text = f"{worker.name} gets on again"
        books.incident("training_goes_on", text, worker=worker.name)
    worker.liveness.gets_on()


def give_up_late(books: ClusterState, job: Job, now: float) -> None:
    """Put out who has not frozen in time; whoever is seen to get on may have a long step."""
    late = [books.workers[name] for name in books.not_frozen()]
    for worker in [one for one in late if _is_late(books, one, now)]:
        why = "it did not freeze in time: its training thread does not answer"
        _give_up(books, job, worker, why, now)
    assert books.ending.freeze_by is not None, "nobody was asked to freeze by now"
    books.ending.freeze_by = max(books.ending.freeze_by, now + LOOK_AGAIN_S)


def _is_late(books: ClusterState, worker: Worker, now: float) -> bool:
    """It ought to have frozen, and neither gets on nor is stuck, which is judged by itself.

    One that does not know of the generation yet is not late: its assignment waits for our disk.
    """
    beat = worker.liveness.heartbeat
    knows = beat is None or beat.generation == books.run.generation
    return (
        books.ending.freeze_by is not None
        and now >= books.ending.freeze_by
        and worker.state in MEMBERS - {WorkerState.FINISHED}
        and knows
        and not (gets_on(beat) or is_stuck(beat))
    )


def give_up_returning(books: ClusterState, job: Job, now: float) -> None:
    """Put out who has come back, holds on to an old generation, and does not get on."""
    for name, since in list(books.warming_since.items()):
        worker = books.workers[name]
        late = now - since > ending.freeze_patience_s(worker)
        if worker.reconnection.returning and late and not gets_on(worker.liveness.heartbeat):
            _give_up(books, job, worker, "came back and did not freeze: its training hangs", now)


def _give_up(books: ClusterState, job: Job, worker: Worker, why: str, now: float) -> None:
    if worker.liveness.stuck_since is None:
        worker.liveness.stuck_since = now
    kept = _why_kept(books, job, worker, now)
    if not kept:
        worker.liveness.kept = ""
        admission.expel(books, worker, why, now)
        return
    if not worker.liveness.kept:
        text = f"{worker.name}: {why}; it is kept, since {kept}"
        books.incident("training_stalled", text, worker=worker.name, step=job.step)
    worker.liveness.kept = kept


def why_stuck(beat: m.Heartbeat) -> str:
    """What is known of a thread that is stuck."""
    where = f" in {beat.where}" if beat.where else ""
    limit = beat.evidence or f"limit {beat.patience_s:.1f} s"
    return f"its training thread has been stuck{where} for {beat.stalled_s:.1f} s ({limit})"


def why_late(worker: Worker) -> str:
    """Why a worker is waited for, in words."""
    beat = worker.liveness.heartbeat
    if beat is None or not is_stuck(beat):
        return "its training thread does not answer"
    return why_stuck(beat)


# --- who is needed ---------------------------------------------------------------------------


def _why_kept(books: ClusterState, job: Job, worker: Worker, now: float) -> str:
    """Why a worker that does not get on is not put out; empty when it is."""
    unfinished = job.verdict != JobState.DONE.value
    if job.state is JobState.STOPPING or (job.state is JobState.SAVING and unfinished):
        return ""  # the operator wants an end
    others = [one for one in books.members() if one is not worker and one.state in _HERE]
    alike = [one.name for one in others if _stands_alike(books, worker, one)]
    if not _is_spare(books, job, worker, alike):
        return f"nobody else that gets on remembers step {job.step}"
    if worker.reconnection.returning or (others and not alike):
        return ""
    if worker.liveness.stuck_since is None or now - worker.liveness.stuck_since < ALIKE_PATIENCE_S:
        return f"{', '.join(alike)} stood still alike" if alike else "nobody waits for it"
    return ""


def _is_spare(books: ClusterState, job: Job, worker: Worker, alike: Collection[str]) -> bool:
    """No committed step is lost with it: others remember them all, or a disk does."""
    beat = worker.liveness.heartbeat
    step = max(job.step, beat.step if beat is not None else 0)
    if step <= branches.saved_step(job) or not remembers(books, job, worker):
        return True
    heirs = (one for one in books.workers.values() if one is not worker and one.name not in alike)
    return any(remembers(books, job, one) and not one.reconnection.returning for one in heirs)


def _stands_alike(books: ClusterState, worker: Worker, other: Worker) -> bool:
    """Another member stands still as well, for about as long."""
    one, two = worker.liveness.heartbeat, other.liveness.heartbeat
    if one is None or two is None or two.generation != books.run.generation:
        return False
    if one.still_s >= TELL_AFTER_S:
        return two.still_s >= ALIKE * one.still_s
    return 0 < ALIKE * one.stalled_s <= two.stalled_s


def remembers(books: ClusterState, job: Job, worker: Worker) -> bool:
    """It has the newest state in its memory."""
    if worker.reconnection.returning:  # it has not said yet what it holds
        return True
    if worker.state is WorkerState.FORMING:
        return choice.holds(worker, (job.start_generation, job.start_step))
    if worker.state in (WorkerState.RUNNING, WorkerState.FINISHED):
        return True
    return worker in books.survivors(job)


def explain(books: ClusterState) -> str:
    """Whom the job waits for although it stands still, in words; empty when for nobody."""
    kept = [worker for worker in books.workers.values() if worker.liveness.kept]
    if not kept:
        return ""
    names = ", ".join(sorted((worker.name for worker in kept), key=choice.natural_key))
    first = min(kept, key=lambda worker: choice.natural_key(worker.name))
    job = books.job.id if books.job is not None else ""
    return (
        f"waiting for {names}, kept since {first.liveness.kept}; {first.name}: {why_late(first)};"
        f" `dtdctl kill-worker {first.name}` gives it up, `dtdctl cancel {job}` ends the job"
    )
