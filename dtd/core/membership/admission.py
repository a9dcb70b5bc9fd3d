"""Workers come, warm up, and go: from REGISTER to READY, and out again.

Part of the membership machine; changes the books, adds effects.  What a generation does with the
workers that are ready is the business of `membership.forming`, `running` and `ending`.
"""

from __future__ import annotations

from dtd.core.membership import branches, ending, reconnection, registration
from dtd.core.membership import roster as choice
from dtd.core.membership.events import Disconnect
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import (
    AVAILABLE,
    GONE,
    MEMBERS,
    GenerationState,
    JobState,
    WorkerEvent,
    WorkerState,
)
from dtd.core.trust import dissent, doubt, vouching
from dtd.wire import messages as m

MAX_KNOWN_WORKERS = 256
COMPARED = AVAILABLE | {WorkerState.REFUSED}
ENDING_JOBS = frozenset({JobState.STOPPING, JobState.SAVING})
"""Nobody warms up for a job that is to end."""


def register(books: ClusterState, message: m.Register, now: float) -> None:
    """A worker introduces itself, as new, restarted or merely reconnected."""
    known = books.workers.get(message.name)
    leaving = known is not None and known.leaving and known.incarnation == message.incarnation
    if known is not None and known.state not in GONE:
        lose(books, known, "the worker registered again", now)
    if known is None or known.incarnation != message.incarnation:
        books.isolation.links.forget(message.name)
    _fence(books, message)
    _make_room(books, message.name)
    worker = registration.newcomer(message, known)
    worker.leaving, worker.reason = leaving, "was about to leave" if leaving else ""
    books.workers[worker.name] = worker
    books.detector.watch(worker.name, now)
    if not message.generation and registration.is_foreign(books, worker):
        return
    registration.greet(books, worker)
    registration.tell_last_end(books, message, known)
    job = books.job
    if message.generation:
        _take_back(books, worker, message)
    elif job is not None and job.state not in ENDING_JOBS:
        _prepare_unless_aside(books, worker, job, now)
    elif job is not None:
        # An earlier life of this coordinator may have told it to prepare.
        worker.participation.given(job.id)


def _prepare_unless_aside(books: ClusterState, worker: Worker, job: Job, now: float) -> None:
    """Who was set aside is left alone for its time, unless somebody has started it again."""
    aside = books.isolation.set_aside.get(worker.name)
    if aside is not None and now < aside.until and aside.pid == worker.registration.pid:
        books.move_worker(worker, WorkerEvent.LEFT_ALONE)
        worker.reason = aside.reason
    else:
        prepare(books, worker, job)


def _fence(books: ClusterState, message: m.Register) -> None:
    """A member that does not know of its generation takes no part in it, now or later.

    It is a new process, or its ASSIGN was lost together with the connection.
    """
    job = books.job
    if job is not None and message.name in job.roster and message.generation != job.generation:
        books.fence(job)


def _take_back(books: ClusterState, worker: Worker, message: m.Register) -> None:
    """It still holds a generation of ours: have it freeze, then it is ready with what it holds."""
    job = books.job
    if job is None or not doubt.is_ours(job, message):
        worker.stray = True
        release(books, worker, "unknown", _why_unknown(books, message))
        return
    if (worker.name, worker.incarnation) in books.trust.contradicted:
        worker.stray = True
        release(books, worker, "evicted", "the others contradict what it says it holds")
        return
    doubt.learn(books, job, message)
    worker.reconnection.returning = True
    worker.reconnection.generation, worker.reconnection.phase = message.generation, message.phase
    if not doubt.lasts(books, job) or job.state in ENDING_JOBS:
        _call_back(books, worker)
        return
    books.move_worker(worker, WorkerEvent.CAME_BACK)
    if doubt.is_over(books, job):
        reconnection.take_up(books, job)
        end_doubt(books, job)


def end_doubt(books: ClusterState, job: Job) -> None:
    """It is certain, or the operator says, that no generation is newer than those that are known.

    Those who still train are called back.
    """
    doubt.end(books, job)
    for worker in books.workers.values():
        if worker.reconnection.returning and worker.name not in books.warming_since:
            _call_back(books, worker)


def _call_back(books: ClusterState, worker: Worker) -> None:
    """Have a worker leave a generation that is over and say what it holds."""
    books.move_worker(worker, WorkerEvent.CALLED_BACK)
    freeze = m.Freeze(
        generation=worker.reconnection.generation,
        at_boundary=False,
        stop=False,
        reason="a new generation will be formed",
    )
    books.send(worker.name, freeze)


def _why_unknown(books: ClusterState, message: m.Register) -> str:
    job = books.job
    if job is not None and job.id == message.job:
        return f"its job {message.job} was submitted to another coordinator's store"
    return f"job {message.job} is not running any more"


def prepare(books: ClusterState, worker: Worker, job: Job) -> None:
    """Have an idle worker warm up for the job."""
    books.move_worker(worker, WorkerEvent.PREPARED)
    worker.participation.given(job.id)
    books.send(worker.name, what_to_prepare(job))


def what_to_prepare(job: Job) -> m.Prepare:
    """What every worker of the job is told of it."""
    return m.Prepare(
        job=job.id,
        spec=job.spec,
        from_job=job.from_job,
        from_step=job.from_step,
        from_mode=job.from_mode,
        package=job.package,
        weights=job.weights,
        strict=job.strict,
        identity=job.identity,
        from_identity=job.from_identity,
    )


def warmed(books: ClusterState, worker: Worker, message: m.Warmed) -> None:
    """The worker has its model and data: is it fit to train with the others?"""
    assert books.job is not None, "nobody warms up for no job"
    if worker.state in MEMBERS or worker.reconnection.returning:
        worker.holdings.warmed = message
    if worker.state in MEMBERS:
        compare(books, books.job)  # a restored store may not know how many steps there are
    if worker.state is not WorkerState.WARMING or worker.reconnection.returning:
        return
    worker.holdings.warmed = message
    worker.holdings.held = message.held[0] if message.held else choice.NOTHING_HELD
    why = _incredible(books, books.job, worker.holdings.held)
    if why:
        disbelieve(books, worker, why)
    if worker.name in books.isolation.set_aside:
        # If it fails again, it is left alone for longer.
        books.isolation.set_aside[worker.name].until = 0.0
    books.move_worker(worker, WorkerEvent.WARMED)
    compare(books, books.job)


def _incredible(books: ClusterState, job: Job, held: m.Held) -> str:
    """Why a worker cannot have this checkpoint of the job; empty when it can."""
    if held.job != job.id:
        return ""
    key = (held.generation, held.step)
    confirmed = vouching.remembered(job.agreed)
    if vouching.verdict(confirmed, key, held.digest) == vouching.CONTRADICTED:
        return "all ranks agreed on another digest for that state"
    known = max(job.generation, doubt.lowest_number(books))  # a restored store has forgotten some
    if held.generation > known and not doubt.lasts(books, job):
        return f"the job's newest generation is {job.generation}"
    return "" if doubt.lasts(books, job) else branches.why_impossible(key, job)


def disbelieve(books: ClusterState, worker: Worker, why: str) -> None:
    """What a worker says it has on its disk does not count: it gets the state from others."""
    held = worker.holdings.held or choice.NOTHING_HELD
    books.incident(
        "report_contradicted",
        f"{worker.name} says that it has a checkpoint of step {held.step} of generation"
        f" {held.generation}, which does not count: {why}",
        worker=worker.name,
        step=held.step,
    )
    worker.holdings.held, worker.holdings.prepared = choice.NOTHING_HELD, (0, 0)


def taken_back(
    books: ClusterState, worker: Worker, message: m.Frozen | m.Finished, now: float
) -> None:
    """A returned worker has left its old generation and says what it holds."""
    worker.holdings.held, worker.holdings.frozen_in = choice.held_by(message), message.generation
    worker.holdings.prepared = choice.held_key(worker)
    if isinstance(message, m.Frozen):
        worker.holdings.prepared = (message.prepared_generation, message.prepared_step)
    if books.job is not None and message.generation == books.job.generation:
        books.job.fenced = True
    why = dissent.why_distrusted(books, worker, message)
    if why:
        expel(books, worker, why, now)
        return
    worker.reconnection.returning = False
    worker.liveness.gets_on()
    books.move_worker(worker, WorkerEvent.LEFT_OLD)


def compare(books: ClusterState, job: Job) -> None:
    """Refuse newcomers that must not train with those who have trained, else with the majority."""
    by_name = sorted(books.workers.values(), key=lambda worker: choice.natural_key(worker.name))
    trained = [w for w in by_name if w.state in MEMBERS or choice.in_memory(w)]
    others = [w for w in by_name if w.state in COMPARED and w not in trained]
    newcomers = [w for w in others if w.holdings.warmed is not None]
    reports = [w.holdings.warmed for w in trained or newcomers if w.holdings.warmed is not None]
    if not reports:
        return
    reference = choice.reference(reports)
    named = next(w.name for w in trained + newcomers if w.holdings.warmed is reference)
    job.total_steps, job.task_digest = reference.steps_total, reference.task_digest
    job.dataset_rows = reference.dataset_rows
    job.dataset_fingerprint = reference.dataset_fingerprint
    for worker in newcomers:
        assert worker.holdings.warmed is not None
        why = choice.disagreement(reference, worker.holdings.warmed, by=(named, worker.name))
        if why and worker.state is not WorkerState.REFUSED:
            books.incident("worker_refused", f"{worker.name} is refused: {why}", worker=worker.name)
        if why:
            books.move_worker(worker, WorkerEvent.DISAGREES)
            worker.reason = why
        elif worker.state is WorkerState.REFUSED:
            books.move_worker(worker, WorkerEvent.AGREES)


def give_up_warming(books: ClusterState, job: Job, now: float) -> None:
    """Drop workers that have warmed up for too long; reading a large checkpoint is progress."""
    limit_s = float(job.spec["elastic"]["warmup_timeout_s"])
    for name, since in list(books.warming_since.items()):
        worker = books.workers[name]
        beat = worker.liveness.heartbeat
        gets_on = beat is not None and 0 < beat.stalled_s <= limit_s
        if now - since > limit_s and not (worker.reconnection.returning or gets_on):
            why = f"did not warm up within {limit_s:g} s (elastic.warmup_timeout_s)"
            expel(books, worker, why, now)


def evict(books: ClusterState, worker: Worker, reason: str, now: float) -> None:
    """Close a silent worker's connection and count it as lost."""
    books.emit(Disconnect(name=worker.name, reason=reason))
    lose(books, worker, reason, now)


def expel(books: ClusterState, worker: Worker, reason: str, now: float) -> None:
    """Evict a worker whose process answers but whose training hangs: it starts afresh."""
    job = books.job.id if books.job is not None else ""
    books.send(worker.name, m.Release(job=job, state="evicted", reason=reason))
    evict(books, worker, reason, now)


def bar_revoked(books: ClusterState, name: str, reason: str, now: float) -> None:
    """A worker's credential counts no more; it cannot come back, so nobody waits for it."""
    worker = books.workers.get(name)
    if worker is not None and worker.state not in GONE:
        evict(books, worker, reason, now)


def lose(books: ClusterState, worker: Worker, reason: str, now: float) -> None:
    """A worker is gone without having been let go."""
    was_member = worker.state in MEMBERS
    silent_s = books.detector.silence_s(worker.name, now)
    books.move_worker(worker, WorkerEvent.LOST)
    worker.reason = reason
    books.incident(
        "worker_lost",
        f"{worker.name} is lost: {reason}",
        worker=worker.name,
        silent_s=round(silent_s, 3),
    )
    if was_member:
        if books.run.has_run and not worker.leaving and not worker.liveness.signalled:
            books.crashed(worker.name, books.job.step if books.job is not None else 0)
        ending.member_lost(books, worker, reason, now, silent_s=silent_s)


def let_leave(books: ClusterState, worker: Worker, reason: str, now: float) -> None:
    """A worker wants to go, or shall: a member at a step boundary, others when nothing is lost."""
    worker.leaving, worker.reason = True, reason
    if worker.state in MEMBERS and books.run.phase is GenerationState.RUNNING:
        ending.end_at_boundary(books, f"{worker.name} leaves: {reason}", now)


def release_leavers(books: ClusterState) -> None:
    """Let those go who want to and are not needed: others hold the state that they hold."""
    for worker in books.workers.values():
        if worker.leaving and worker.state not in MEMBERS | GONE and not _is_needed(books, worker):
            release(books, worker, "left", worker.reason)


def _is_needed(books: ClusterState, worker: Worker) -> bool:
    """Without it committed steps would be lost, or be on the disk of somebody who is away."""
    job, held = books.job, worker.holdings.held
    if job is None or held is None or held.where != "memory":
        return worker.reconnection.returning
    if books.run.phase is GenerationState.RUNNING and worker.name not in books.run.roster:
        return False
    staying = [w for w in books.workers.values() if not w.leaving and w.state not in GONE]
    key = choice.held_key(worker)
    if any(
        w.holdings.held and w.holdings.held.where == "memory" and choice.held_key(w) >= key
        for w in staying
    ):
        return False
    heirs = [w for w in staying if w.state in (WorkerState.WARMING, WorkerState.READY)]
    saved = (job.checkpoint_generation, job.checkpoint_step)
    return bool(heirs) or max(key, worker.holdings.prepared) > saved


def release(books: ClusterState, worker: Worker, state: str, reason: str) -> None:
    """Let a worker go: it starts afresh, or exits when it was leaving.

    One that is set aside has not begun with the job, and waits for the next one.
    """
    if state not in ("left", "evicted") and is_aside(books, worker):
        books.move_worker(worker, WorkerEvent.SPARED)
        return
    job = books.job.id if books.job is not None else ""
    books.send(worker.name, m.Release(job=job, state=state, reason=reason))
    books.move_worker(worker, WorkerEvent.LET_GO)
    worker.reason = reason or state


def is_aside(books: ClusterState, worker: Worker) -> bool:
    """Whether a worker is here and left alone, because the job's code has failed on it."""
    refused = worker.state is WorkerState.REFUSED and worker.holdings.warmed is None
    return refused and worker.name in books.isolation.set_aside


def _make_room(books: ClusterState, comes: str) -> None:
    kept = {comes, *books.run.roster}
    gone = [n for n, w in books.workers.items() if w.state in GONE and n not in kept]
    for name in gone[: max(0, len(books.workers.keys() | {comes}) - MAX_KNOWN_WORKERS)]:
        del books.workers[name]
        books.isolation.set_aside.pop(name, None)
