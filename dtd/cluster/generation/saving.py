"""A job's state is written to disks before its last holders are released.

    all finished, cancelled, failed -> begin -SAVE-> holders of the newest state -> finish

Part of the membership machine; changes the cluster's state, adds effects.  A job is done only when
its final state is durable on `checkpoint.copies` workers, or on all its holders; until then it is
*saving*, and holders that cannot write are asked again.  A job that was cancelled or has
failed waits a bounded time, since the operator wants it to end.  Of a sharded state each holder
writes its part, and a copy is durable when the parts cover [0, 1).  What came before is in
`running` and `ending`.

The same orders serve a job that goes on: where all holders leave and no other worker is ready to
take the state over, they write it first (`before_leaving`).
"""

from __future__ import annotations

from dtd.cluster import jobs
from dtd.cluster.events import SaveJob
from dtd.cluster.generation import branches, checkpoints, ending, forming, roster, states
from dtd.cluster.records import Job, Worker
from dtd.cluster.run import SaveOrders
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import AVAILABLE, GenerationState, JobEvent, JobState, WorkerState
from dtd.cluster.workers import admission
from dtd.engine.shards import ShardSet
from dtd.text.names import natural_key
from dtd.wire import messages as m

GIVE_UP_S = 30.0
"""After this time without success a cancelled or failed job ends without its state."""
MOST_S = 600.0
"""... and after this time even if a worker is still writing."""


def begin(cluster: ClusterState, job: Job, verdict: JobState, *, hopes_s: float = 0.0) -> None:
    """Begin to save the state of a job that ends with this verdict; no worker trains it any more.

    Absent workers may take `hopes_s` to reconnect with their states.
    """
    cluster.withdraw(job)
    jobs.note_digests(cluster, job)
    finished = [w for w in cluster.members() if w.state is WorkerState.FINISHED]
    key = max(map(states.held_key, finished)) if finished else newest_key(cluster, job)
    job.verdict = verdict.value
    if hopes_s == 0.0 and _copies_of(job, key) >= job.terms.copies:
        _finish(cluster, job)
        return
    if cluster.run.phase is not GenerationState.NONE:
        ending.close(cluster, job)
    cluster.saving = SaveOrders(key=key, began_at=cluster.now, hopes_until=cluster.now + hopes_s)
    advance(cluster, job)
    if cluster.saving is not None:
        cluster.move_job(job, JobEvent.SAVES)
        cluster.emit(SaveJob(job=job))
        cluster.incident(
            "job_saving",
            f"job {job.id} will be {job.verdict} when its state is saved: {explain(cluster, job)}",
            step=key[1],
        )


def advance(cluster: ClusterState, job: Job) -> None:
    """Ask holders to write the state, and end the job once that is done or impossible."""
    orders = cluster.saving
    assert orders is not None, "a job is saved that is not to end"
    _put_out_faulty(cluster, orders)
    key = newest_key(cluster, job)
    orders.about(key)
    holders = _holders(cluster, key) if not _is_short(job, key[1]) else []
    orders.keep([worker.name for worker in holders])
    written = _written(job, key)
    left = [worker for worker in holders if worker.name not in written]
    if states.copies(written.values()) >= job.terms.copies:
        _finish(cluster, job)
    elif orders.hurried:
        _let_go(cluster, job)
    elif _has_waited(cluster, job, orders):
        _finish(cluster, job)
    elif not left:
        _nobody_left(cluster, job)
    else:
        _ask(cluster, job, left, job.terms.copies)


def before_leaving(cluster: ClusterState, job: Job) -> str:
    """Have the last workers that hold the state write it before they leave.

    Returns:
        why the next generation waits for that; empty if it may form.  Where nothing can be written,
        they train on, and are asked again.
    """
    key = newest_key(cluster, job)
    holders = _holders(cluster, key)
    written = states.copies(_written(job, key).values())
    if not holders or written or not all(worker.leaving for worker in cluster.available()):
        cluster.saving = None
        return ""
    if cluster.saving is None:
        cluster.saving = SaveOrders(key=key, began_at=cluster.now, hopes_until=cluster.now)
    orders = cluster.saving
    orders.about(key)
    orders.keep([worker.name for worker in holders])
    left = [worker for worker in holders if worker.name not in _written(job, key)]
    _ask(cluster, job, left, 1)
    writers = ", ".join(sorted(orders.writers(cluster.now), key=natural_key))
    return f"saving step {key[1]}: {writers} writes it before it leaves" if writers else ""


def _put_out_faulty(cluster: ClusterState, orders: SaveOrders) -> None:
    """Restart holders whose memory is not the state that they are to write.

    If nobody else has that state, the job repeats the steps since its newest checkpoint.
    """
    for name in orders.faulty():
        worker = cluster.workers.get(name)
        if worker is not None and worker.state in AVAILABLE:
            why = "the state in its memory is not the one on which the ranks agreed"
            admission.expel(cluster, worker, why)
        del orders.contradicted[name]


def _ask(cluster: ClusterState, job: Job, left: list[Worker], copies: int) -> None:
    """Ask holders to write, as many as the copies need that neither exist nor are being written."""
    orders = cluster.saving
    assert orders is not None, "a job is saved that is not to end"
    key = orders.key
    parts = _written(job, key)
    there = tuple(parts)
    writers = orders.writers(cluster.now)
    parts |= {one.name: states.part_at(one, key) for one in left if one.name in writers}
    free = [worker for worker in left if orders.may_be_asked(worker.name, cluster.now)]
    free = _best(cluster, free, there)
    while free:
        lacking = states.scarce(parts, copies)
        worker = max(free, key=lambda one: states.size(states.part_at(one, key) & lacking))
        if not states.part_at(worker, key) & lacking:
            break
        free.remove(worker)
        parts[worker.name] = states.part_at(worker, key)
        orders.asked[worker.name] = cluster.now
        cluster.send(worker.name, m.Save(job=job.id, generation=key[0], step=key[1]))


def failed(cluster: ClusterState, name: str, reason: str) -> None:
    """A worker reports that it could not write."""
    if cluster.saving is not None:
        cluster.saving.failed(name, reason, cluster.now)


def next_deadline(cluster: ClusterState, now: float) -> float | None:
    """Return when `advance` must be called if nothing else happens before."""
    orders = cluster.saving
    if orders is None:
        return None
    times = [orders.next_deadline(now), orders.began_at + GIVE_UP_S, orders.began_at + MOST_S]
    return min((at for at in times if at is not None and at > now), default=None)


def explain(cluster: ClusterState, job: Job) -> str:
    """Why the job has not ended, in words."""
    orders = cluster.saving
    assert orders is not None, "a job is saved that is not to end"
    step = orders.key[1]
    if not _holders(cluster, orders.key):
        away = ", ".join(cluster.missing(job)) or "the workers that are leaving their generation"
        return f"waiting for {away}, which may hold a state that is not saved"
    writing = ", ".join(sorted(orders.asked, key=natural_key))
    why = orders.why()
    if not why:
        return f"saving step {step}: {writing} writes it{_silent(orders, cluster.now)}"
    doing = f"{writing} writes it" if writing else "tried again every few seconds"
    return f"step {step} is not saved: {why}; {doing}"


def _silent(orders: SaveOrders, now: float) -> str:
    """Return the members that have not answered yet, and the remedy; empty if none."""
    late = sorted(orders.asked.keys() - set(orders.writers(now)), key=natural_key)
    if not late:
        return ""
    waited_s = now - min(orders.asked[name] for name in late)
    gives_up = f"`dtdctl kill-worker {late[0]}` gives it up"
    return f", and {', '.join(late)} has not answered for {waited_s:.0f} s: {gives_up}"


def newest_key(cluster: ClusterState, job: Job) -> states.Key:
    """Key of the newest state that any worker present holds, or can commit."""
    return roster.start_key(job, cluster.available())


# --- inside ------------------------------------------------------------------------------------


def _holders(cluster: ClusterState, key: states.Key) -> list[Worker]:
    """Workers with a part of the state in memory; none if it has no steps: nothing is to save."""
    remember = [worker for worker in cluster.available() if states.in_memory(worker)]
    there = [w for w in remember if key[1] and key in (states.held_key(w), w.holdings.prepared)]
    return [worker for worker in there if states.part_at(worker, key)]


def _written(job: Job, key: states.Key) -> dict[str, ShardSet]:
    """Return the parts of the state, or of a newer one, that workers have published, by worker.

    A job that is done is not saved with an older state, even if its last one is lost.
    """
    saved = (job.checkpoint_generation, job.checkpoint_step)
    step = branches.saved_step(job) if saved >= key else key[1]
    return {} if _is_short(job, step) else checkpoints.written(job, key)


def _is_short(job: Job, step: int) -> bool:
    """Whether a state with so many steps is not the result of a job that is done."""
    return job.verdict == JobState.DONE.value and step < job.step


def _copies_of(job: Job, key: states.Key) -> int:
    """Return how many copies of the state, or of a newer one, workers have published."""
    return states.copies(_written(job, key).values())


def _best(cluster: ClusterState, free: list[Worker], written: tuple[str, ...]) -> list[Worker]:
    """Sort: workers without failed writes first, then those on hosts that lack the state."""
    orders = cluster.saving
    assert orders is not None, "a job is saved that is not to end"
    hosts = {cluster.workers[name].registration.host for name in written if name in cluster.workers}
    return sorted(
        free,
        key=lambda w: (
            w.name in orders.failures,
            w.registration.host in hosts,
            natural_key(w.name),
        ),
    )


def _let_go(cluster: ClusterState, job: Job) -> None:
    """End the job without waiting for its state to be saved, as the operator wishes."""
    if job.verdict == JobState.DONE.value:
        job.verdict = JobState.CANCELLED.value
        job.reason = "cancelled by the operator before its final state was saved"
    _finish(cluster, job)


def _has_waited(cluster: ClusterState, job: Job, orders: SaveOrders) -> bool:
    """Whether no worker could write in time, and the operator wants the job to end."""
    if job.verdict == JobState.DONE.value:
        return False
    waited_s = cluster.now - orders.began_at
    busy = orders.writing(cluster.now) > 0 or _may_be_told_more(cluster, job, orders)
    return waited_s >= MOST_S or (waited_s >= GIVE_UP_S and not busy)


def _may_be_told_more(cluster: ClusterState, job: Job, orders: SaveOrders) -> bool:
    """Whether a worker has reconnected, or may do so soon, and has not reported its state yet."""
    returning = any(cluster.workers[name].reconnection.returning for name in cluster.warming_since)
    return returning or (cluster.now < orders.hopes_until and bool(cluster.missing(job)))


def _nobody_left(cluster: ClusterState, job: Job) -> None:
    """Handle that all present holders have written the state, or that none is left."""
    orders = cluster.saving
    assert orders is not None, "a job is saved that is not to end"
    if _may_be_told_more(cluster, job, orders):
        return
    if _copies_of(job, orders.key) or job.verdict != JobState.DONE.value:
        _finish(cluster, job)
    else:
        _train_again(cluster, job)


def _train_again(cluster: ClusterState, job: Job) -> None:
    """Resume training: all holders of the last step are gone before one could write it."""
    if job.state is not JobState.SAVING:  # a member was lost before the last ones had finished
        cluster.move_job(job, JobEvent.SAVES)
    cluster.saving = None
    cluster.move_job(job, JobEvent.TRAINS_AGAIN)
    jobs.warm_up_idle(cluster, job)


def _finish(cluster: ClusterState, job: Job) -> None:
    verdict = JobState(job.verdict)
    _tell_what_is_missing(cluster, job, newest_key(cluster, job))
    cluster.saving = None
    jobs.finish(cluster, verdict, "" if verdict is JobState.DONE else job.reason)


def _tell_what_is_missing(cluster: ClusterState, job: Job, key: states.Key) -> None:
    written, there, wanted = _written(job, key), _copies_of(job, key), job.terms.copies
    failures = cluster.saving.why() if cluster.saving is not None else ""
    step = max(key[1], job.step)
    saved = branches.saved_step(job)
    absent = step > key[1]  # its holders have not come back
    if step > saved and (absent or not there):
        why = failures or "no worker has written it in time"
        if written and not absent:
            lost = states.scarce(written, 1)
            why = f"the parts that {', '.join(sorted(written))} wrote lack the shards {lost}: {why}"
        if absent or not _holders(cluster, key):
            why = forming.why_incomplete(cluster, job) or "no present worker holds it"
        elsewhere = ", on a branch that was left" if saved < job.checkpoint_step else ""
        cluster.incident(
            "state_discarded",
            f"step {step} of job {job.id} is given up, not saved: {why};"
            f" the newest checkpoint is of step {job.checkpoint_step}{elsewhere}",
            step=step,
            steps_lost=step - saved,
        )
    elif 0 < there < wanted:
        cluster.incident(
            "copies_missing",
            f"the last state of job {job.id} is on {', '.join(written)} alone; checkpoint.copies"
            f" asks for {wanted}" + (f": {failures}" if failures else ""),
            step=key[1],
        )
