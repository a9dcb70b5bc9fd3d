"""The coordinator's decisions: job, members, generation and starting state.

    REGISTER -> idle -PREPARE-> warming -WARMED-> ready -ASSIGN-> forming -RUNNING-> running
                                                    ^                                  |
                                                    +--- frozen <-FROZEN---------------+-> finished

A generation is *forming* until every member runs, *running* until a member is lost, freezes or has
to be added, and *ending* until every living member has frozen.  Pure: `handle` takes an event
and a clock value, and adds effects to the state's.  The coordinator never sees a gradient or a
parameter.

This file dispatches; changes of the cluster's state are in `registration`, `admission`, `forming`,
`ending`, `suspicion`, `stuck`, `isolation`, `saving` and `jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from dtd.cluster import figures, jobs
from dtd.cluster.events import (
    CancelRequested,
    DeleteRequested,
    DrainRequested,
    Event,
    FromWorker,
    JobSaved,
    KillRequested,
    ResumeRequested,
    Revoked,
    Submitted,
    Ticked,
    Undeliverable,
    WorkerLost,
)
from dtd.cluster.generation import (
    checkpoints,
    datasets,
    digests,
    ending,
    forming,
    saving,
    waiting,
)
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import (
    ENDED,
    GONE,
    MEMBERS,
    GenerationState,
    JobEvent,
    JobState,
    WorkerState,
)
from dtd.cluster.workers import admission, isolation, registration, stuck, suspicion
from dtd.errors import RequestRefused
from dtd.text.names import natural_key
from dtd.wire import messages as m

MAX_FRUITLESS_GENERATIONS = 64
MAX_DEADLY_GENERATIONS = 4
"""The job ends after this many consecutive generations with a worker lost in the same step."""
UNREACHED = GONE | {WorkerState.DISCONNECTED}
TRAINING = frozenset({WorkerState.FORMING, WorkerState.RUNNING, WorkerState.DISCONNECTED})


STOPPING = "stopping at the next step boundary; a second `dtdctl cancel` does not wait for that"


def handle(cluster: ClusterState, event: Event, now: float) -> None:
    """Advance by one event; what is decided is added to the cluster's effects.

    Raises:
        RequestRefused: an operator's request cannot be met; nothing has changed.
    """
    cluster.now = now
    cluster.slept(cluster.detector.awake(now))
    on_event = _EVENTS.get(type(event))
    if on_event is not None:
        on_event(cluster, event)
    if isinstance(event, Ticked):  # by then everything that has arrived is read
        suspicion.evict_silent(cluster)
    suspicion.probe(cluster)
    _advance(cluster)


def next_deadline(cluster: ClusterState, now: float) -> float | None:
    """Return when `handle` must be called with `Ticked` if nothing else happens before."""
    waits = (
        cluster.waiting.settle_by,
        waiting.resume_by(cluster),
        cluster.ending.freeze_by,
        cluster.waiting.form_at,
        cluster.ending.stop_by,
        cluster.run.decision.again_at if cluster.run.decision is not None else None,
        cluster.links.next_deadline(),
        forming.admission_deadline(cluster),
        saving.next_deadline(cluster, now),
        isolation.next_deadline(cluster),
    )
    later = [moment for moment in waits if moment is not None and moment > now]
    silence = cluster.detector.next_deadline(now)
    return min(later if silence is None else [*later, silence], default=None)


def begin_again(cluster: ClusterState, *, given_up: bool) -> list[Job]:
    """Forget everything that a new process would not know, after an error in these rules.

    Args:
        cluster: the state.
        given_up: whether to give up the active job, with which the error recurs.

    Returns:
        The jobs that have not ended, in their order, to be submitted again.
    """
    known = [*([cluster.job] if cluster.job is not None else []), *cluster.queue]
    jobs_left = [job for job in known if job.state not in ENDED]
    cluster.forget_all()
    cluster.incident("core_begun_again", "the coordinator restarts after an internal error")
    if given_up and jobs_left:
        jobs.end_for_error(cluster, jobs_left.pop(0))
    return jobs_left


# --- what has become possible ------------------------------------------------------------


def _advance(cluster: ClusterState) -> None:
    if jobs.may_start(cluster):
        jobs.activate(cluster, cluster.queue.popleft())
    admission.release_leavers(cluster)
    if cluster.job is not None:
        isolation.try_again(cluster, cluster.job)
    if cluster.job is not None:
        stuck.give_up_returning(cluster, cluster.job)
        admission.give_up_warming(cluster, cluster.job)
        jobs.break_off_late(cluster, cluster.job)
    if cluster.job is not None and cluster.run.phase is GenerationState.RUNNING:
        _advance_running(cluster, cluster.job)
    if cluster.job is not None and cluster.run.phase is GenerationState.ENDING:
        _advance_ending(cluster, cluster.job)
    if cluster.job is not None and cluster.run.phase is GenerationState.NONE:
        _advance_waiting(cluster, cluster.job)
    if jobs.may_start(cluster):
        _advance(cluster)


def _advance_running(cluster: ClusterState, job: Job) -> None:
    if all(member.state is WorkerState.FINISHED for member in cluster.members()):
        _finish(cluster, job)
    else:
        forming.admit_ready(cluster, job)


def _finish(cluster: ClusterState, job: Job) -> None:
    if ending.was_stopped(cluster, job):
        job.reason = job.reason or ending.STOP_FORGOTTEN
        saving.begin(cluster, job, _verdict(job))
    else:
        saving.begin(cluster, job, JobState.DONE)


def _verdict(job: Job) -> JobState:
    return JobState(job.verdict) if job.verdict else JobState.CANCELLED


def _advance_ending(cluster: ClusterState, job: Job) -> None:
    if cluster.ending.freeze_by is not None and cluster.now >= cluster.ending.freeze_by:
        stuck.give_up_late(cluster, job)
    if any(cluster.workers[n].state is not WorkerState.FINISHED for n in cluster.not_frozen()):
        return
    if ending.is_complete(cluster):
        _finish(cluster, job)
        return
    _close(cluster, job)


def _close(cluster: ClusterState, job: Job) -> None:
    ending.close(cluster, job)
    hopeless = digests.settle(cluster, job)
    for worker in cluster.available():
        why = digests.why_distrusted(cluster, job, worker)
        if why:
            admission.expel(cluster, worker, why)
    if hopeless and not job.verdict:
        jobs.give_up(cluster, job, hopeless)
    admission.release_leavers(cluster)


def _advance_waiting(cluster: ClusterState, job: Job) -> None:
    """Form a generation once there is nothing left to wait for."""
    if job.state is JobState.SAVING:
        saving.advance(cluster, job)
        return
    if job.state is JobState.STOPPING:
        _end_waiting(cluster, job)
        return
    if cluster.run.decision is not None:
        forming.save_again(cluster, job)
        return
    admission.compare(cluster, job)
    cluster.waiting.reason = saving.before_leaving(cluster, job) or waiting.awaited(cluster, job)
    if cluster.waiting.reason:
        _let_wait(cluster, job)
        return
    if waiting.restart_partial(cluster, job):
        return
    forming.count_prepared(cluster, job)
    why = _hopeless(cluster, job)
    if why:
        jobs.give_up(cluster, job, why)
        saving.begin(cluster, job, JobState.FAILED)
        return
    forming.decide(cluster, job)


def _let_wait(cluster: ClusterState, job: Job) -> None:
    """Wait without forming a generation; report it once."""
    before = job.state
    warms_up = bool(cluster.warming_since)
    cluster.move_job(job, JobEvent.WARMS_UP if warms_up else JobEvent.WAITS)
    if job.state is not before:
        kind = f"job_{job.state.value}"
        cluster.incident(kind, f"job {job.id} waits: {explain(cluster)}")


def _end_waiting(cluster: ClusterState, job: Job) -> None:
    """End the wait for members that may come back to a new coordinator with their state."""
    if job.in_doubt:
        admission.end_doubt(cluster, job)
    never_heard = [name for name in job.roster if name not in cluster.workers]
    patience_s = registration.ADOPTION_PATIENCE * cluster.heartbeat_timeout_s
    hopes_s = patience_s if never_heard else 0.0
    saving.begin(cluster, job, _verdict(job), hopes_s=hopes_s)


def _hopeless(cluster: ClusterState, job: Job) -> str:
    """Why continuing is pointless; empty when it is not."""
    past = cluster.setbacks
    if past.crash_generations >= MAX_DEADLY_GENERATIONS:
        ends = {name: past.last_ends.get(name, "") for name in past.crashed_workers}
        dead = ", ".join(f"{name} ({end})" if end else name for name, end in ends.items())
        work = "the script" if job.terms.launched else f"step {past.crash_step + 1}"
        return f"{work} kills worker after worker: {dead} died or hung in it"
    if past.no_progress_generations >= MAX_FRUITLESS_GENERATIONS:
        idle = f"{MAX_FRUITLESS_GENERATIONS} generations in a row committed no step"
        return f"{idle}; the last one ended because {past.last_cause}"
    return ""


# --- explaining ------------------------------------------------------------------------


def explain(cluster: ClusterState) -> str:
    """Why the job does not advance right now; empty when it does."""
    job = cluster.job
    if job is None:
        return "no job: submit one with `dtdctl submit JOB.toml`"
    if job.state is JobState.SAVING:
        return saving.explain(cluster, job)
    if cluster.run.phase is GenerationState.RUNNING:
        stops = job.state is JobState.STOPPING
        return stuck.explain(cluster) or _why_unfinished(cluster) or STOPPING * stops
    kept = stuck.explain(cluster)
    if kept:
        return kept
    if cluster.run.phase is GenerationState.FORMING:
        late = [w.name for w in cluster.members() if w.state in TRAINING]
        return f"forming generation {cluster.run.generation}: waiting for {', '.join(late)}"
    if cluster.run.phase is GenerationState.ENDING:
        late = [w.name for w in cluster.members() if w.state in TRAINING]
        return f"ending generation {cluster.run.generation}: waiting for {', '.join(late)}"
    return waiting.explain(cluster, job)


def _why_unfinished(cluster: ClusterState) -> str:
    """Return the members that a finishing job waits for, in words; empty for any other."""
    members, job = cluster.members(), cluster.job
    done = ", ".join(w.name for w in members if w.state is WorkerState.FINISHED)
    if not done and not (job is not None and 0 < job.total_steps <= job.step):
        return ""
    late = ", ".join(w.name for w in members if w.state in TRAINING)
    if not done:
        remedy = f"`dtdctl kill-worker {late.partition(',')[0]}` gives it up"
        return f"all steps are committed; waiting for {late} to finish: {remedy}"
    says = f"{done} say{'s' if ',' not in done else ''}"
    return f"waiting for {late} to finish as {says}; `dtdctl kill-worker` gives one up"


# --- events ------------------------------------------------------------------------------------


def _on_message(cluster: ClusterState, event: FromWorker) -> None:
    name, message = event.name, event.message
    if isinstance(message, m.Register):
        if not registration.comes_back(cluster, message):
            admission.register(cluster, message)
        return
    worker = cluster.workers.get(name)
    if worker is None:  # it was rejected, and has not read the rejection yet
        return
    cluster.detector.heard(name, cluster.now)
    if not counts(cluster, name, message):
        return
    kind, job = type(message), cluster.job
    if kind in _OF_ANY_WORKER:
        _OF_ANY_WORKER[kind](cluster, worker, message)
    elif kind in _OF_A_JOB and job is not None and getattr(message, "job", "") == job.id:
        _OF_A_JOB[kind](cluster, job, worker, message)


def _on_heartbeat(cluster: ClusterState, worker: Worker, beat: m.Heartbeat) -> None:
    worker.liveness.heartbeat = beat
    cluster.send(worker.name, m.HeartbeatAck())
    job = cluster.job
    if job is not None and worker.state is WorkerState.WARMING:
        admission.note_warm_up(cluster, job, worker, beat)
    if job is not None and beat.job == job.id and worker.state in MEMBERS:
        forming.progressed(cluster, job, worker.name, beat.generation, beat.step)
        stuck.judge(cluster, job, worker)
        if cluster.straggler.is_due(cluster.now):
            cluster.straggler.look(cluster.running_beats(), cluster.now)


def _on_evaluated(_cluster: ClusterState, job: Job, _worker: Worker, message: m.Evaluated) -> None:
    job.metrics = {**job.metrics, **figures.finite(message.metrics)}


def _on_checkpoint_saved(
    cluster: ClusterState, job: Job, worker: Worker, message: m.CheckpointSaved
) -> None:
    """A worker that has saved a state has committed it."""
    forming.progressed(cluster, job, worker.name, message.generation, message.step)
    checkpoints.saved(cluster, job, worker.name, message)


def _on_notice(cluster: ClusterState, _job: Job, worker: Worker, message: m.Notice) -> None:
    if message.event == "checkpoint_failed":
        saving.failed(cluster, worker.name, message.message)
    cluster.incident(message.event, f"{worker.name}: {message.message}", worker=worker.name)


def _on_frozen(cluster: ClusterState, job: Job, worker: Worker, message: m.Frozen) -> None:
    if worker.state is WorkerState.WARMING:
        admission.taken_back(cluster, job, worker, message)
        return
    stuck.forgive(cluster, worker)
    forming.left(cluster, job, worker.name, message)
    ending.member_frozen(cluster, job, worker, message)
    suspicion.accused(cluster, worker.name, message)
    dissenter = digests.reported(cluster, message)
    if dissenter is not None and dissenter.name in isolation.dispensable(cluster, job):
        isolation.keep_away(cluster, job, dissenter, message.reason)
    if dissenter is not None and dissenter.state not in GONE:
        admission.expel(cluster, dissenter, digests.MINORITY)


def _on_finished(cluster: ClusterState, job: Job, worker: Worker, message: m.Finished) -> None:
    if worker.state is WorkerState.WARMING:
        admission.taken_back(cluster, job, worker, message)
        return
    if worker.state is WorkerState.FORMING:  # it has run, even if it has not said so
        forming.member_running(cluster, job, worker)
    forming.left(cluster, job, worker.name, message)
    ending.member_finished(cluster, job, worker, message)


def _on_job_saved(cluster: ClusterState, event: JobSaved) -> None:
    if cluster.job is not None:
        forming.saved(cluster, cluster.job, event)


def _on_worker_lost(cluster: ClusterState, event: WorkerLost) -> None:
    worker = cluster.workers.get(event.name)
    if worker is None or worker.incarnation != event.incarnation or worker.state in GONE:
        return
    if event.farewell or not registration.goes_away(cluster, worker, event.reason):
        admission.lose(cluster, worker, event.reason)


def _on_drain_requested(cluster: ClusterState, event: DrainRequested) -> None:
    worker = connected(cluster.workers.values(), event.name)
    admission.let_leave(cluster, worker, "drained by the operator")


def _on_kill_requested(cluster: ClusterState, event: KillRequested) -> None:
    worker = connected(cluster.workers.values(), event.name)
    worker.liveness.signalled, pid = True, worker.registration.pid
    cluster.send(worker.name, m.Signal(signal=event.signal))
    cluster.incident(
        "worker_signalled",
        f"SIG{event.signal} sent to {worker.name} (pid {pid}) by the operator",
        worker=worker.name,
    )


_EVENTS: Final[dict[type, Callable[[ClusterState, Any], None]]] = {
    FromWorker: _on_message,
    WorkerLost: _on_worker_lost,
    Submitted: lambda cluster, event: jobs.submit(cluster, event.job),
    CancelRequested: lambda cluster, event: jobs.cancel(cluster, event.job, event.reason),
    ResumeRequested: lambda cluster, event: jobs.resume(cluster, event.job),
    DeleteRequested: lambda cluster, event: jobs.delete(cluster, event.job, event.step),
    DrainRequested: _on_drain_requested,
    KillRequested: _on_kill_requested,
    JobSaved: _on_job_saved,
    Undeliverable: jobs.undeliverable,
    Revoked: lambda cluster, event: admission.bar_revoked(cluster, event.name, event.reason),
}
"""The function for each event; `Ticked` has none."""

_OF_ANY_WORKER: Final[dict[type, Callable[[ClusterState, Worker, Any], None]]] = {
    m.Heartbeat: _on_heartbeat,
    m.Leave: lambda cluster, worker, message: admission.let_leave(cluster, worker, message.reason),
    m.Probed: suspicion.probed,
    m.Warmed: admission.warmed,
}
"""The function for each message that a worker may send at any time."""

_OF_A_JOB: Final[dict[type, Callable[[ClusterState, Job, Worker, Any], None]]] = {
    m.Progress: lambda cluster, job, worker, message: jobs.progress(
        cluster, job, worker.name, message
    ),
    m.Evaluated: _on_evaluated,
    m.CheckpointSaved: _on_checkpoint_saved,
    m.Agreed: lambda cluster, job, _, message: checkpoints.agreed(cluster, job, message),
    m.Failed: isolation.failed,
    m.GetData: datasets.reported,
    m.Notice: _on_notice,
    m.Running: lambda cluster, job, worker, _: forming.member_running(cluster, job, worker),
    m.Frozen: _on_frozen,
    m.Finished: _on_finished,
}
"""The function for each message about the active job; others are for collectors of figures."""


_OF_THE_JOB: Final = (m.Warmed, m.Failed, m.Notice, m.Agreed)
_OF_A_MEMBER: Final = (m.Running, m.Frozen, m.Finished)
_FIGURES: Final = (m.Progress, m.Evaluated)
_ALWAYS: Final = (m.Heartbeat, m.JobOutput, m.CheckpointSaved)
"""They may come generations later, or after the job's end."""


def counts(cluster: ClusterState, name: str, message: Any) -> bool:
    """Whether a worker's report concerns its present work; an honest one needs no other check.

    A report of another job than the active one, of an older generation, or of a worker that takes
    no part any more is ignored.
    """
    known = (*_OF_THE_JOB, *_OF_A_MEMBER, *_FIGURES, *_ALWAYS)
    if not isinstance(message, known):
        return True  # the answer to a request, or about the sender alone
    worker = cluster.workers.get(name)
    if worker is None:  # it was rejected, and has not read the rejection yet
        return False
    if worker.stray:
        return isinstance(message, m.Heartbeat)
    if isinstance(message, _ALWAYS):
        return True
    if cluster.job is None or cluster.job.id != message.job:
        return False
    if isinstance(message, _OF_A_MEMBER):
        return _of_a_member(cluster, worker, message)
    if isinstance(message, m.Progress) and message.generation != worker.generation:
        return False
    return not isinstance(message, _FIGURES) or _takes_part(cluster, worker)


def _of_a_member(
    cluster: ClusterState, worker: Worker, message: m.Running | m.Frozen | m.Finished
) -> bool:
    """Whether a member, or one that was called back, reports of its newest generation."""
    called_back = worker.state is WorkerState.WARMING and worker.reconnection.returning
    if message.generation != worker.generation or not (worker.state in MEMBERS or called_back):
        return False
    if not isinstance(message, m.Running):
        return True
    return worker.state is WorkerState.FORMING and message.generation == cluster.run.generation


def _takes_part(cluster: ClusterState, worker: Worker) -> bool:
    """Whether the worker trains in the newest generation, or in one that may be the newest."""
    in_doubt = cluster.job is not None and cluster.job.in_doubt
    return worker.state in MEMBERS or (worker.reconnection.returning and in_doubt)


def connected(workers: Iterable[Worker], name: str) -> Worker:
    """The connected worker with this name.

    Raises:
        RequestRefused: none of these workers is; the error names those that are connected.
    """
    here = {worker.name: worker for worker in workers if worker.state not in UNREACHED}
    if name in here:
        return here[name]
    known = ", ".join(sorted(here, key=natural_key)) or "none"
    raise RequestRefused(f"no worker {name!r} is connected", remedy=f"connected: {known}")
