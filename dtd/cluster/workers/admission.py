"""Admission and departure of workers: from REGISTER to READY, until release or loss.

Part of the membership machine; changes the cluster's state, adds effects.  What a generation does
with the workers that are ready is decided in `dtd.cluster.generation`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dtd.cluster import figures
from dtd.cluster.events import Disconnect
from dtd.cluster.generation import checkpoints, digests, ending, states
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import (
    AVAILABLE,
    GONE,
    MEMBERS,
    GenerationState,
    JobState,
    MemberState,
    WorkerEvent,
    WorkerState,
)
from dtd.cluster.workers import compatibility, instructions, registration
from dtd.text.names import natural_key
from dtd.wire import messages as m

MAX_KNOWN_WORKERS = 256
COMPUTES_SHARE = 0.02
"""A warm-up that uses this share of a processor goes on; a loop that polls uses less."""
COMPARED = AVAILABLE | {WorkerState.INCOMPATIBLE}
MOVES = "leaves for another job"
ENDING_JOBS = frozenset({JobState.STOPPING, JobState.SAVING})
"""States of a job for which workers warm up: not those of a job that is ending."""


def register(cluster: ClusterState, message: m.Register) -> None:
    """Handle REGISTER: a new, restarted or reconnected worker."""
    known = cluster.workers.get(message.name)
    leaving = known is not None and known.leaving and known.incarnation == message.incarnation
    if known is not None and known.state not in GONE:
        lose(cluster, known, "the worker registered again")
    if known is None or known.incarnation != message.incarnation:
        cluster.links.forget(message.name)
    _fence(cluster, message)
    _make_room(cluster, message.name)
    worker = registration.newcomer(message)
    worker.leaving, worker.reason = leaving, "was about to leave" if leaving else ""
    worker.moving_since = known.moving_since if known is not None and leaving else None
    cluster.workers[worker.name] = worker
    cluster.detector.watch(worker.name, cluster.now)
    if not message.generation and registration.is_foreign(cluster, worker):
        return
    registration.send_welcome(cluster, worker)
    registration.tell_last_end(cluster, message, known)
    job = cluster.job
    if message.generation:
        _take_back(cluster, worker, message)
    elif message.joined and (job is None or job.id != message.joined):
        release(cluster, worker, "unknown", f"job {message.joined} is no longer running")
    elif job is not None and job.state not in ENDING_JOBS:
        _prepare_unless_set_aside(cluster, worker, job)


def _prepare_unless_set_aside(cluster: ClusterState, worker: Worker, job: Job) -> None:
    """Prepare a worker, unless it is set aside and has not been restarted by an operator."""
    aside = cluster.set_aside.get(worker.name)
    if aside is not None and cluster.now < aside.until and aside.pid == worker.registration.pid:
        cluster.move_worker(worker, WorkerEvent.LEFT_ALONE)
        worker.reason = aside.reason
    else:
        prepare(cluster, worker, job)


def _fence(cluster: ClusterState, message: m.Register) -> None:
    """Fence the generation: a member that does not know it takes no part in it.

    It is a new process, or its ASSIGN was lost together with the connection.
    """
    job = cluster.job
    if job is not None and message.name in job.roster and message.generation != job.generation:
        cluster.fence(job)


def _take_back(cluster: ClusterState, worker: Worker, message: m.Register) -> None:
    """Take back a worker that is in one of the job's generations: it freezes, and is then ready."""
    job = cluster.job
    if job is None or not registration.is_ours(job, message):
        worker.stray = True
        release(cluster, worker, "unknown", _why_unknown(cluster, message))
        return
    registration.learn(cluster, job, message)
    worker.reconnection.returning = True
    worker.reconnection.generation, worker.reconnection.phase = message.generation, message.phase
    if not job.in_doubt or job.state in ENDING_JOBS:
        _call_back(cluster, worker)
        return
    cluster.move_worker(worker, WorkerEvent.CAME_BACK)
    if registration.is_over(cluster, job):
        registration.take_up(cluster, job, MemberState.RUNNING)
        end_doubt(cluster, job)


def end_doubt(cluster: ClusterState, job: Job) -> None:
    """End the doubt: no generation is newer than the known ones, for certain or by the operator.

    Workers that still train are called back, unless their generation has been taken up.
    """
    job.announced = cluster.run.phase is GenerationState.RUNNING
    registration.end(cluster, job)
    for worker in cluster.workers.values():
        if worker.reconnection.returning and worker.name not in cluster.warming_since:
            _call_back(cluster, worker)


def _call_back(cluster: ClusterState, worker: Worker) -> None:
    """Tell a worker to leave a generation that is over and to report its state."""
    cluster.move_worker(worker, WorkerEvent.CALLED_BACK)
    freeze = m.Freeze(
        generation=worker.reconnection.generation,
        at_boundary=False,
        stop=False,
        reason="a new generation will be formed",
    )
    cluster.send(worker.name, freeze)


def _why_unknown(cluster: ClusterState, message: m.Register) -> str:
    job = cluster.job
    if job is not None and job.id == message.job:
        return f"its job {message.job} was submitted to another coordinator's store"
    return f"job {message.job} is no longer running"


def prepare(cluster: ClusterState, worker: Worker, job: Job) -> None:
    """Tell an idle worker to warm up for the job; a parameter server only if the job has any."""
    if worker.serves and not job.terms.has_servers:
        worker.reason = 'a parameter server: it waits for a job with [strategy] owners = "servers"'
        return
    why = instructions.why_not(job, worker)
    if why or not worker.leaving:
        worker.reason = why
    if why:
        return
    for other in instructions.settle(cluster, job):
        release(cluster, other, "restarted", "all workers begin with the same instructions")
    cluster.move_worker(worker, WorkerEvent.PREPARED)
    cluster.send(worker.name, what_to_prepare(job, instructions.needed_by(job, worker)))


def what_to_prepare(job: Job, level: str = "") -> m.Prepare:
    """The PREPARE message of the job, for a worker that computes with this level."""
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
        instructions=level,
    )


def warmed(cluster: ClusterState, worker: Worker, message: m.Warmed) -> None:
    """A worker has its model and data: check that it can train with the others."""
    assert cluster.job is not None, "a worker warms up only for a job"
    if worker.state in MEMBERS or worker.reconnection.returning:
        worker.holdings.warmed = message
    if worker.state in MEMBERS:
        compare(cluster, cluster.job)  # a restored store may not know the number of steps
    if worker.state is not WorkerState.WARMING or worker.reconnection.returning:
        return
    worker.holdings.warmed = message
    checkpoints.warmed_up(cluster.job, worker, message)
    if worker.name in cluster.set_aside:
        # If it fails again, its pause is longer.
        cluster.set_aside[worker.name].until = 0.0
    cluster.move_worker(worker, WorkerEvent.WARMED)
    compare(cluster, cluster.job)


def taken_back(
    cluster: ClusterState, job: Job, worker: Worker, message: m.Frozen | m.Finished
) -> None:
    """A returned worker has left its old generation and reports its state."""
    checkpoints.left(job, worker, message)
    if message.generation == job.generation:
        job.fenced = True
    why = digests.why_distrusted(cluster, job, worker)
    if why:
        expel(cluster, worker, why)
        return
    finished = isinstance(message, m.Finished)
    worker.reconnection.phase = (MemberState.FINISHED if finished else MemberState.FROZEN).value
    worker.reconnection.returning = False
    worker.liveness.makes_progress()
    cluster.move_worker(worker, WorkerEvent.LEFT_OLD)
    if job.in_doubt and job.state not in ENDING_JOBS:
        registration.take_up(cluster, job, MemberState.FINISHED)
        compare(cluster, job)  # a restored store may not know the number of steps


def compare(cluster: ClusterState, job: Job) -> None:
    """Refuse new workers that differ from the workers that have trained, or else the majority."""
    by_name = sorted(cluster.workers.values(), key=lambda worker: natural_key(worker.name))
    trained = [w for w in by_name if w.state in MEMBERS or states.in_memory(w)]
    others = [w for w in by_name if w.state in COMPARED and w not in trained]
    newcomers = [w for w in others if w.holdings.warmed is not None]
    reports = [w.holdings.warmed for w in trained or newcomers if w.holdings.warmed is not None]
    if not reports:
        return
    reference = compatibility.reference(reports, steps_total=job.total_steps)
    named = next(w.name for w in trained + newcomers if w.holdings.warmed is reference)
    job.total_steps, job.task_digest = reference.steps_total, reference.task_digest
    job.dataset_rows = reference.dataset_rows
    job.dataset_fingerprint = reference.dataset_fingerprint
    job.environment = figures.heard(reference.environment)
    for worker in newcomers:
        assert worker.holdings.warmed is not None
        why = compatibility.disagreement(reference, worker.holdings.warmed, by=(named, worker.name))
        if why and worker.state is not WorkerState.INCOMPATIBLE:
            cluster.incident(
                "worker_refused", f"{worker.name} is refused: {why}", worker=worker.name
            )
        if why:
            cluster.move_worker(worker, WorkerEvent.DISAGREES)
            worker.reason = why
            if worker.registration.joined:
                release(cluster, worker, "refused", why)
        elif worker.state is WorkerState.INCOMPATIBLE:
            cluster.move_worker(worker, WorkerEvent.AGREES)


def note_warm_up(cluster: ClusterState, job: Job, worker: Worker, beat: m.Heartbeat) -> None:
    """Record that a warm-up advances: its process computes, if only now and then on a busy host.

    One that still idles has not been told yet: PREPARE waits for the coordinator's store.
    """
    if beat.state == MemberState.IDLE.value:
        cluster.warming_since[worker.name] = cluster.now
    least_s = COMPUTES_SHARE * job.terms.warmup_timeout_s
    if beat.cpu_s - worker.liveness.computed_s >= least_s:
        worker.liveness.computed_s, worker.liveness.computed_at = beat.cpu_s, cluster.now


def give_up_warming(cluster: ClusterState, job: Job) -> None:
    """Evict workers that warm up for too long.

    Reading a large checkpoint counts as progress, and so does computing while the host is shared
    by many.
    """
    limit_s, most_s = job.terms.warmup_timeout_s, job.terms.longest_limit_s
    for name, began in list(cluster.warming_since.items()):
        worker = cluster.workers[name]
        beat = worker.liveness.heartbeat
        since = max(began, min(worker.liveness.computed_at, began + most_s - limit_s))
        makes_progress = beat is not None and 0 < beat.stalled_s <= limit_s
        if cluster.now - since > limit_s and not (worker.reconnection.returning or makes_progress):
            why = f"did not warm up within {limit_s:g} s (elastic.warmup_timeout_s)"
            expel(cluster, worker, why)


def evict(cluster: ClusterState, worker: Worker, reason: str) -> None:
    """Close a silent worker's connection and count it as lost."""
    cluster.emit(Disconnect(name=worker.name, reason=reason))
    lose(cluster, worker, reason)


def expel(cluster: ClusterState, worker: Worker, reason: str) -> None:
    """Evict a worker whose process responds but whose training hangs: it restarts."""
    job = cluster.job.id if cluster.job is not None else ""
    cluster.send(worker.name, m.Release(job=job, state="evicted", reason=reason))
    evict(cluster, worker, reason)


def bar_revoked(cluster: ClusterState, name: str, reason: str) -> None:
    """Evict a worker whose credential was revoked; it cannot return, so nothing waits for it."""
    worker = cluster.workers.get(name)
    if worker is not None and worker.state not in GONE:
        evict(cluster, worker, reason)


def lose(cluster: ClusterState, worker: Worker, reason: str) -> None:
    """A worker is gone without having been released."""
    was_member = worker.state in MEMBERS
    silent_s = cluster.detector.silence_s(worker.name, cluster.now)
    cluster.move_worker(worker, WorkerEvent.LOST)
    worker.reason = reason
    cluster.incident(
        "worker_lost",
        f"{worker.name} was lost: {reason}",
        worker=worker.name,
        silent_s=round(silent_s, 3),
    )
    if was_member:
        if cluster.run.has_run and not worker.leaving and not worker.liveness.signalled:
            cluster.crashed(worker.name, cluster.job.step if cluster.job is not None else 0)
        ending.member_lost(cluster, worker, reason, silent_s=silent_s)


def let_leave(cluster: ClusterState, worker: Worker, reason: str) -> None:
    """Let a worker leave: a member at a step boundary, others when no state is lost."""
    worker.leaving, worker.moving_since, worker.reason = True, None, reason
    job = cluster.job
    if job is not None and not states.can_spare(job, worker.name):
        worker.reason = f"{reason}; it stays, as nobody else has its shards (strategy.mirrors = 0)"
    elif worker.state in MEMBERS and cluster.run.phase is GenerationState.RUNNING:
        ending.end_at_boundary(cluster, f"{worker.name} leaves: {reason}")


def move_away(cluster: ClusterState, workers: Mapping[str, str]) -> None:
    """Let workers leave for other jobs: members at a step boundary, others at once.

    Args:
        cluster: the state, whose generation runs.
        workers: for each of them, by name, why another job gets it.
    """
    for name, why in workers.items():
        worker = cluster.workers[name]
        worker.leaving, worker.moving_since, worker.reason = True, cluster.now, f"{MOVES}: {why}"
        cluster.incident("worker_moves", f"{name} is given to another job: {why}", worker=name)
    if any(cluster.workers[name].state in MEMBERS for name in workers):
        reasons = "; ".join(dict.fromkeys(workers.values()))
        ending.end_at_boundary(cluster, f"{', '.join(workers)} leaves: {reasons}")
    release_leavers(cluster)


def release_leavers(cluster: ClusterState) -> None:
    """Release leaving workers that are not needed, because others hold their state.

    One that was to move to another job stays if its job has come to need it meanwhile.
    """
    for worker in cluster.workers.values():
        if not worker.leaving or worker.state in MEMBERS | GONE:
            continue
        needed = _is_needed(cluster, worker)
        if worker.moving_since is None:
            if not needed:
                release(cluster, worker, "left", worker.reason)
        elif cluster.run.phase is GenerationState.NONE and (needed or _has_too_few(cluster)):
            worker.leaving, worker.moving_since, worker.reason = False, None, ""
        elif not needed:
            release(cluster, worker, "evicted", worker.reason)


def _has_too_few(cluster: ClusterState) -> bool:
    """Whether those that stay are fewer than the job's least."""
    staying = [w for w in cluster.workers.values() if w.counts and not w.serves]
    return cluster.job is not None and len(staying) < cluster.job.terms.least


def _is_needed(cluster: ClusterState, worker: Worker) -> bool:
    """Whether without it committed steps would be lost, or only be on an absent worker's disk."""
    job, held = cluster.job, worker.holdings.held
    if job is None or held is None or held.where != "memory":
        return worker.reconnection.returning
    if cluster.run.phase is GenerationState.RUNNING and worker.name not in cluster.run.roster:
        return False
    others = [w for w in cluster.workers.values() if w is not worker and w.state not in GONE]
    staying = [w for w in others if not w.leaving]
    # Those that leave with it have shards that it lacks: they leave one after another.
    remember = [w for w in (others if job.terms.sharded else staying) if states.in_memory(w)]
    key = states.held_key(worker)
    if any(states.covers(remember, at) for at in map(states.held_key, remember) if at >= key):
        return False
    heirs = [w for w in staying if w.state in (WorkerState.WARMING, WorkerState.READY)]
    saved = (job.checkpoint_generation, job.checkpoint_step)
    return bool(heirs) or max(key, worker.holdings.prepared) > saved


def release(cluster: ClusterState, worker: Worker, state: str, reason: str) -> None:
    """Release a worker: it restarts, or exits if it was leaving.

    One that is set aside has not begun the job, and waits for the next one, unless it was started
    by hand for this one.
    """
    stays = not worker.registration.joined and is_set_aside(cluster, worker)
    if stays and state not in ("left", "evicted"):
        cluster.move_worker(worker, WorkerEvent.SPARED)
        return
    job = cluster.job.id if cluster.job is not None else ""
    cluster.send(worker.name, m.Release(job=job, state=state, reason=reason))
    cluster.move_worker(worker, WorkerEvent.LET_GO)
    worker.reason = reason or state


def is_set_aside(cluster: ClusterState, worker: Worker) -> bool:
    """Whether a worker is connected and set aside, because the job's code has failed on it."""
    refused = worker.state is WorkerState.INCOMPATIBLE and worker.holdings.warmed is None
    return refused and not worker.foreign and worker.name in cluster.set_aside


def _make_room(cluster: ClusterState, comes: str) -> None:
    kept = {comes, *cluster.run.roster}
    gone = [n for n, w in cluster.workers.items() if w.state in GONE and n not in kept]
    for name in gone[: max(0, len(cluster.workers.keys() | {comes}) - MAX_KNOWN_WORKERS)]:
        del cluster.workers[name]
        cluster.set_aside.pop(name, None)
