"""A job that is to end: what its workers hold is on disks before anybody lets go of it.

    all finished, cancelled, failed -> begin -SAVE-> those who hold the newest state -> finish

Part of the membership machine; changes the books, adds effects.  A job is done only when its final
state is durable on `checkpoint.copies` workers, or on all who hold it; until then it is *saving*,
and those who cannot write are asked again and again.  A job that was cancelled or has failed waits
a bounded time, since the operator wants it to end.  What came before is in `running`
and `ending`.
"""

from __future__ import annotations

from collections import Counter

from dtd.core.membership import branches, ending, jobs
from dtd.core.membership import roster as choice
from dtd.core.membership.events import SaveJob
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.save_orders import SaveOrders
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import GenerationState, JobEvent, JobState, WorkerState
from dtd.wire import messages as m

GIVE_UP_S = 30.0
"""After so long without success a job that was cancelled, or has failed, ends without its state."""
MOST_S = 600.0
"""... and after so long even if somebody is still writing."""


def begin(
    books: ClusterState, job: Job, verdict: JobState, now: float, *, hopes_s: float = 0.0
) -> None:
    """The job is to end in this way, and nothing of it trains any more.

    Args:
        books: the books.
        job: the active one.
        verdict: DONE, FAILED or CANCELLED.
        now: the clock.
        hopes_s: how long those who are away may take to come back with what they hold.
    """
    books.withdraw(job)
    jobs.note_digests(books, job)
    finished = [w for w in books.members() if w.state is WorkerState.FINISHED]
    key = _told_by_most(finished) if finished else newest_key(books, job)
    job.verdict = verdict.value
    if hopes_s == 0.0 and len(_written_by(job, key)) >= copies(job):
        _finish(books, job)
        return
    if books.run.phase is not GenerationState.NONE:
        ending.close(books, job, now)
    books.saving = SaveOrders(key=key, began_at=now, hopes_until=now + hopes_s)
    advance(books, job, now)
    if books.saving is not None:
        books.move_job(job, JobEvent.SAVES)
        books.emit(SaveJob(job=job))
        books.incident(
            "job_saving",
            f"job {job.id} will be {job.verdict} when its state is saved: {explain(books, job)}",
            step=key[1],
        )


def advance(books: ClusterState, job: Job, now: float) -> None:
    """Have the state written by whoever can, and end the job when that is done or hopeless."""
    orders = books.saving
    assert orders is not None, "a job is saved that is not to end"
    key = newest_key(books, job)
    orders.about(key)
    holders = _holders(books, key)
    orders.keep([worker.name for worker in holders])
    written = _written_by(job, key)
    left = [worker for worker in holders if worker.name not in written]
    missing = copies(job) - len(written)
    if missing <= 0:
        _finish(books, job)
    elif orders.hurried:
        _let_go(books, job)
    elif _has_waited(books, job, orders, now):
        _finish(books, job)
    elif not left:
        _nobody_left(books, job, written, now)
    else:
        free = [worker for worker in left if orders.may_be_asked(worker.name, now)]
        for worker in _best(books, free, written)[: max(0, missing - orders.writing(now))]:
            orders.asked[worker.name] = now
            books.send(worker.name, m.Save(job=job.id, generation=key[0], step=key[1]))


def failed(books: ClusterState, name: str, reason: str, now: float) -> None:
    """A worker says that it could not write."""
    if books.saving is not None:
        books.saving.failed(name, reason, now)


def awaits(books: ClusterState, name: str, message: m.Message) -> bool:
    """Whether a worker answers SAVE: nobody else is asked before it has."""
    if books.saving is None or name not in books.saving.asked:
        return False
    failed_to = isinstance(message, m.Notice) and message.event == "checkpoint_failed"
    return failed_to or isinstance(message, m.CheckpointSaved)


def next_deadline(books: ClusterState, now: float) -> float | None:
    """When `advance` must be called if nothing else happens before."""
    orders = books.saving
    if orders is None:
        return None
    times = [orders.next_deadline(now), orders.began_at + GIVE_UP_S, orders.began_at + MOST_S]
    return min((at for at in times if at is not None and at > now), default=None)


def explain(books: ClusterState, job: Job) -> str:
    """Why the job has not ended, in words for a person."""
    orders = books.saving
    assert orders is not None, "a job is saved that is not to end"
    step = orders.key[1]
    if not _holders(books, orders.key):
        away = ", ".join(books.missing(job)) or "those who leave their generation"
        return f"waiting for {away}, who may hold a state that is not saved"
    writing = ", ".join(sorted(orders.asked, key=choice.natural_key))
    why = orders.why()
    if not why:
        return f"saving step {step}: {writing} writes it"
    doing = f"{writing} writes it" if writing else "tried again every few seconds"
    return f"step {step} is not saved: {why}; {doing}"


def copies(job: Job) -> int:
    """The job's `checkpoint.copies`."""
    return int(job.spec.get("checkpoint", {}).get("copies", 1))


def newest_key(books: ClusterState, job: Job) -> choice.Key:
    """The newest state that anybody who is here holds, or could commit."""
    return choice.start_key(job, books.available())


def _told_by_most(finished: list[Worker]) -> choice.Key:
    """The state that most of those who have finished say they hold; all do unless somebody lies."""
    counted = Counter(map(choice.held_key, finished))
    return min(counted, key=lambda key: (-counted[key], key))


# --- inside ------------------------------------------------------------------------------------


def _holders(books: ClusterState, key: choice.Key) -> list[Worker]:
    """Who has the state in memory; nobody has trained a state without steps."""
    if key[1] == 0:
        return []
    return [w for w in books.available() if choice.in_memory(w) and choice.holds(w, key)]


def _written_by(job: Job, key: choice.Key) -> tuple[str, ...]:
    """Who has published the state, or a newer one."""
    saved = (job.checkpoint_generation, job.checkpoint_step)
    return job.checkpoint_holders if saved >= key and branches.saved_step(job) else ()


def _best(books: ClusterState, free: list[Worker], written: tuple[str, ...]) -> list[Worker]:
    """Those who could write before come first, then other hosts than those that have the state."""
    orders = books.saving
    assert orders is not None, "a job is saved that is not to end"
    hosts = {books.workers[name].registration.host for name in written if name in books.workers}
    return sorted(
        free,
        key=lambda w: (
            w.name in orders.failures,
            w.registration.host in hosts,
            choice.natural_key(w.name),
        ),
    )


def _let_go(books: ClusterState, job: Job) -> None:
    """The operator does not want to wait until the state is saved."""
    if job.verdict == JobState.DONE.value:
        job.verdict = JobState.CANCELLED.value
        job.reason = "cancelled by the operator before its final state was saved"
    _finish(books, job)


def _has_waited(books: ClusterState, job: Job, orders: SaveOrders, now: float) -> bool:
    """Nobody could write, and the operator wants an end."""
    if job.verdict == JobState.DONE.value:
        return False
    waited_s = now - orders.began_at
    busy = orders.writing(now) > 0 or _may_be_told_more(books, job, orders, now)
    return waited_s >= MOST_S or (waited_s >= GIVE_UP_S and not busy)


def _may_be_told_more(books: ClusterState, job: Job, orders: SaveOrders, now: float) -> bool:
    """Somebody has come back, or may do so soon, and has not said yet what it holds."""
    returning = any(books.workers[name].reconnection.returning for name in books.warming_since)
    return returning or (now < orders.hopes_until and bool(books.missing(job)))


def _nobody_left(books: ClusterState, job: Job, written: tuple[str, ...], now: float) -> None:
    """All who are here and hold the state have written it, or nobody holds it any more."""
    orders = books.saving
    assert orders is not None, "a job is saved that is not to end"
    if _may_be_told_more(books, job, orders, now):
        return
    if written or job.verdict != JobState.DONE.value:
        _finish(books, job)
    else:
        _train_again(books, job)


def _train_again(books: ClusterState, job: Job) -> None:
    """All who remembered the last step are gone before one of them could write it."""
    books.saving = None
    books.move_job(job, JobEvent.TRAINS_AGAIN)
    jobs.warm_up_idle(books, job)


def _finish(books: ClusterState, job: Job) -> None:
    verdict = JobState(job.verdict)
    orders, key = books.saving, newest_key(books, job)
    if orders is not None:
        _tell_what_is_missing(books, job, orders, key)
    books.saving = None
    jobs.finish(books, verdict, "" if verdict is JobState.DONE else job.reason)


def _tell_what_is_missing(
    books: ClusterState, job: Job, orders: SaveOrders, key: choice.Key
) -> None:
    written, wanted = _written_by(job, key), copies(job)
    step = max(key[1], job.step)
    saved = branches.saved_step(job)
    if not written and step > saved:
        why = orders.why() or "nobody has written it in time"
        if not _holders(books, key):
            why = "nobody who is here holds it"
        elsewhere = ", on a branch that was left" if saved < job.checkpoint_step else ""
        books.incident(
            "state_discarded",
            f"step {step} of job {job.id} is given up, not saved: {why};"
            f" the newest checkpoint is of step {job.checkpoint_step}{elsewhere}",
            step=step,
            steps_lost=step - saved,
        )
    elif written and len(written) < wanted:
        books.incident(
            "copies_missing",
            f"the last state of job {job.id} is on {', '.join(written)} alone; checkpoint.copies"
            f" asks for {wanted}" + (f": {orders.why()}" if orders.why() else ""),
            step=key[1],
        )
