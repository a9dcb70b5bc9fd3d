"""How workers come: new, back in their generation, or with one that the store does not know.

**Releases and names.**  Releases of dtd may work together that are equal up to the patch level.  A
name belongs to one living worker; a process from the same state directory (an equal instance) holds
its lock, so its predecessor is dead, even if its connection lingers.  A process from elsewhere may
take the name once the earlier worker no longer responds.

**Reconnection.**  A generation needs its ring, not its coordinator.  A member whose control
connection is lost has a time limit to come back, extended while its generation's step advances.  A
coordinator that starts adopts the generation that its store names: all members are away at first.

**Doubt.**  After a backup was taken, generations may have begun and ended, and one may still be
running unknown to this coordinator.  `dtd-coordinator restore` marks each unfinished job as *in
doubt*; so does the report of a generation that the store does not know.  No generation is formed
until the newest one is known:

* the highest generation that any worker reports counts, with its roster and its starting state;
* once all of its members have registered and none of them had left it, there was no later
  generation, since that would have required a member that had left (ADR 0006, rule 5);
* if all of its members have finished it, the job ends with what they report; a later generation may
  exist, but none is formed here (`take_up`);
* otherwise the operator decides (`dtdctl resume`).

Part of the membership machine; changes the cluster's state, adds effects.  `admission` handles a
worker that may work here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dtd import diagnostics
from dtd.cluster.events import SaveJob
from dtd.cluster.generation import branches, ending, forming
from dtd.cluster.records import Holdings, Job, Liveness, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import (
    GONE,
    MEMBERS,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    MemberState,
    WorkerEvent,
    WorkerState,
)
from dtd.wire import messages as m

_RELEASE_PARTS = 2


def newcomer(message: m.Register) -> Worker:
    """The record of a worker that registers."""
    worker = Worker(registration=message)
    names = [member.name for member in message.roster]
    worker.generation = message.generation
    worker.rank = names.index(worker.name) if worker.name in names else 0
    return worker


def send_welcome(cluster: ClusterState, worker: Worker) -> None:
    """Confirm a worker's registration."""
    cluster.send(worker.name, _registered(cluster))
    theirs, ours = worker.registration.version, cluster.identity.version
    note = f" with dtd {theirs}, the coordinator has {ours}" if ours and theirs != ours else ""
    cluster.incident("worker_registered", f"{worker.name} registered{note}", worker=worker.name)


def tell_last_end(cluster: ClusterState, message: m.Register, known: Worker | None) -> None:
    """Report that the worker's previous process ended abnormally, if its successor knows how.

    The operator's own signal is not reported.
    """
    same = known is not None and (
        known.liveness.signalled or known.incarnation == message.incarnation
    )
    if not message.last_end or same:
        return
    if message.name in cluster.setbacks.crashed_workers:
        cluster.setbacks.last_ends[message.name] = message.last_end
    cluster.incident(
        "worker_crashed", f"{message.name}'s last process {message.last_end}", worker=message.name
    )


def _registered(cluster: ClusterState, *, refused: str = "") -> m.Registered:
    return m.Registered(
        heartbeat_interval_s=cluster.heartbeat_interval_s,
        heartbeat_timeout_s=cluster.heartbeat_timeout_s,
        refused=refused,
    )


def is_foreign(cluster: ClusterState, worker: Worker) -> bool:
    """Whether its dtd release is incompatible: it stays connected, and gets no work.

    One that takes part in a generation may finish its job; its next process is asked again.
    """
    theirs, ours = worker.registration.version, cluster.identity.version
    if not ours or _release_of(theirs) == _release_of(ours):
        return False
    differ = diagnostics.versions_differ(
        worker.name,
        worker.registration.host,
        theirs,
        coordinator_host=cluster.identity.host,
        ours=ours,
    )
    why = str(differ)
    cluster.move_worker(worker, WorkerEvent.INCOMPATIBLE)
    worker.foreign, worker.reason = True, why
    cluster.send(worker.name, _registered(cluster, refused=why))
    cluster.incident("worker_refused", f"{worker.name} is refused: {why}", worker=worker.name)
    return True


def _release_of(version: str) -> list[str]:
    """Major and minor number: "0.1.7" is of release 0.1."""
    return version.split(".")[:_RELEASE_PARTS]


def name_holder(cluster: ClusterState, message: m.Register, now: float) -> Worker | None:
    """The living worker that already has this name; None when the name is free."""
    known = cluster.workers.get(message.name)
    if known is None or known.state in GONE or known.incarnation == message.incarnation:
        return None
    if known.registration.instance in ("", message.instance):
        return None
    silent = cluster.detector.silence_s(known.name, now) > cluster.heartbeat_timeout_s
    # A member is evicted when the detector says so, and not while its generation commits.
    return None if silent and known.state not in MEMBERS else known


ADOPTION_PATIENCE = 2
"""Heartbeat time-outs within which members must return to a newly started coordinator."""

NEVER_HEARD = 0
"""Incarnation of a member that this coordinator knows from its store alone."""


def has_left(cluster: ClusterState, job: Job) -> bool:
    """Whether a member of the generation that the job's record names is here, and not in it.

    It has registered while another job was active, and this generation cannot go on without it.
    """
    here = (cluster.workers.get(name) for name in job.roster)
    return any(one is not None and one.state not in GONE for one in here)


def adopt(cluster: ClusterState, job: Job) -> None:
    """Adopt the generation that an earlier coordinator has announced."""
    cluster.run.generation = job.generation
    cluster.run.roster = list(job.roster)
    cluster.run.begin()
    formed = job.state is not JobState.FORMING
    if job.state is JobState.STOPPING:  # even if its generation was still forming
        formed = job.step > job.start_step
    cluster.move_generation(
        GenerationEvent.ADOPTED_RUNNING if formed else GenerationEvent.ADOPTED_FORMING
    )
    cluster.waiting.must_settle = False
    patience_s = ADOPTION_PATIENCE * cluster.heartbeat_timeout_s
    instances = dict(zip(job.roster, job.instances, strict=False))
    servers = job.roster[len(job.roster) - job.servers :]
    for name in job.roster:
        worker = _absent(name, instances.get(name, ""), serves=name in servers)
        cluster.workers[name] = worker
        cluster.move_worker(worker, WorkerEvent.EXPECTED)
        cluster.detector.watch(name, cluster.now, timeout_s=patience_s)
    run = cluster.run
    cluster.incident(
        "generation_adopted",
        f"generation {run.generation} is taken up: {', '.join(run.roster)} are expected",
        step=job.step,
    )


def take_up(cluster: ClusterState, job: Job, phase: MemberState) -> None:
    """Adopt a generation that is known only from its members, if all of them are in this phase.

    RUNNING: all of them still train.  FINISHED: all of them have finished it, and say so again, for
    the job can end.
    """
    members = [cluster.workers.get(name) for name in job.roster]
    if job.generation < cluster.run.generation:
        return
    if not all(_is_there(one, job, phase) for one in members):
        return
    cluster.run.generation = job.generation
    cluster.run.roster = list(job.roster)
    cluster.run.begin()
    cluster.move_generation(GenerationEvent.TAKEN_UP)
    cluster.waiting.must_settle, cluster.waiting.newer_since = False, None
    cluster.move_job(job, JobEvent.TAKEN_UP)
    for name in job.roster:
        worker = cluster.workers[name]
        worker.reconnection.returning = False
        cluster.move_worker(worker, WorkerEvent.TAKEN_UP)
    finished = phase is MemberState.FINISHED
    cluster.incident(
        "generation_adopted",
        f"generation {cluster.run.generation} is taken up: {', '.join(cluster.run.roster)}"
        f" {'have finished' if finished else 'train in'} it",
        step=job.start_step,
    )
    if finished:
        ending.freeze(cluster, at_boundary=True, stop=False, reason="it is taken up")


def _is_there(worker: Worker | None, job: Job, phase: MemberState) -> bool:
    """Whether it came back in this phase of the job's newest generation, or has reached it since.

    One that trains has not left; one that has finished has reported that.
    """
    finished = phase is MemberState.FINISHED
    state = WorkerState.READY if finished else WorkerState.WARMING
    if worker is None or worker.state is not state:
        return False
    came = worker.reconnection
    there = (came.generation, came.phase) == (job.generation, phase.value)
    return there and came.returning is not finished


def _absent(name: str, instance: str, *, serves: bool) -> Worker:
    unknown = m.Register(
        name=name,
        incarnation=NEVER_HEARD,
        pid=0,
        host="",
        device="",
        data_host="",
        data_port=0,
        version="",
        instance=instance,
        serves=serves,
    )
    return Worker(registration=unknown, reason="has not come back since the coordinator started")


def goes_away(cluster: ClusterState, worker: Worker, reason: str) -> bool:
    """Whether the generation may continue without this member's control connection."""
    trains = worker.state in (WorkerState.RUNNING, WorkerState.FINISHED)
    if not trains or cluster.run.phase is not GenerationState.RUNNING:
        return False
    cluster.move_worker(worker, WorkerEvent.DISCONNECTED)
    worker.reason = f"control connection lost: {reason}"
    cluster.incident("worker_away", f"{worker.name}: {worker.reason}", worker=worker.name)
    return True


def comes_back(cluster: ClusterState, message: m.Register) -> bool:
    """Whether this is a member of the current generation that reconnects."""
    known, job = cluster.workers.get(message.name), cluster.job
    if known is None or job is None or known.state not in MEMBERS:
        return False
    if message.identity != job.identity:
        return False
    same_process = known.incarnation in (message.incarnation, NEVER_HEARD)
    running = (cluster.run.generation, job.roster_id)
    same_generation = (message.generation, message.roster_id) == running
    if not (same_process and same_generation):
        return False
    worker = replace(newcomer(message), state=known.state)
    worker.leaving, worker.moving_since = known.leaving, known.moving_since
    worker.holdings = Holdings(held=known.holdings.held, warmed=known.holdings.warmed)
    worker.liveness = Liveness(
        heartbeat=known.liveness.heartbeat, signalled=known.liveness.signalled
    )
    cluster.workers[worker.name] = worker
    forms = message.phase == MemberState.FORMING.value
    cluster.move_worker(
        worker, WorkerEvent.RECONNECTED_FORMING if forms else WorkerEvent.RECONNECTED
    )
    send_welcome(cluster, worker)
    if cluster.run.phase is GenerationState.ENDING:
        _catch_up(cluster, worker)
    elif job.state is JobState.STOPPING:
        ending.freeze_one(cluster, worker, at_boundary=True, stop=True, reason=job.reason)
    forming.check_running(cluster, job)
    return True


def _catch_up(cluster: ClusterState, worker: Worker) -> None:
    """Repeat the end of the generation, which it may have missed."""
    recovery = cluster.ending.recovery
    at_boundary = cluster.ending.freeze_by is None
    reason = recovery.cause if recovery is not None else "the generation ends"
    ending.freeze_one(cluster, worker, at_boundary=at_boundary, stop=False, reason=reason)


PARTAKING: Final = frozenset({"forming", "running"})


def is_ours(job: Job | None, message: m.Register) -> bool:
    """Whether a worker registers with the active job itself, not another job of the same id."""
    return job is not None and (job.id, job.identity) == (message.job, message.identity)


def learn(cluster: ClusterState, job: Job, message: m.Register) -> None:
    """Handle a worker's report of the generation that it last took part in; the highest counts."""
    cluster.run.highest = max(cluster.run.highest, message.generation)
    members = tuple(member.name for member in message.roster)
    if cluster.run.phase is not GenerationState.NONE:
        return
    if not job.in_doubt and message.generation > max(job.generation, cluster.run.generation):
        _went_back(cluster, job, message.name, message.generation)
    if job.in_doubt and message.generation > job.generation:
        cluster.withdraw(job)
        job.generation, job.roster_id = message.generation, message.roster_id
        job.roster = tuple(dict.fromkeys((*members, message.name)))
        job.instances = ()
        job.servers = sum(member.serves for member in message.roster)
        start = message.held_generation, message.held_step
        job.start_generation, job.start_step = start
        # This store does not know whether that generation has left newer states behind.
        job.branches = branches.left(branches.remembered(job.branches), start, job.generation)
        job.step = max(job.step, message.held_step)  # the store may know of fewer
        job.fenced = False
        cluster.vouched.clear()
    same = (message.generation, message.roster_id) == (job.generation, job.roster_id)
    if same and message.phase in PARTAKING:
        cluster.vouched.add(message.name)


def _went_back(cluster: ClusterState, job: Job, name: str, number: int) -> None:
    job.in_doubt = job.forgetful = True
    cluster.incident(
        "store_went_back",
        f"{name} knows generation {number}, and the coordinator's store"
        f" {cluster.run.generation} at most: the store is older than what it decided",
        worker=name,
    )


def is_over(cluster: ClusterState, job: Job) -> bool:
    """Whether all members of the newest known generation have registered without having left it."""
    return bool(job.roster) and cluster.vouched.issuperset(job.roster)


def end(cluster: ClusterState, job: Job) -> None:
    """End the doubt: the store now knows the newest generation."""
    job.in_doubt = False
    cluster.vouched.clear()
    cluster.emit(SaveJob(job=job))


def explain(cluster: ClusterState, job: Job) -> str:
    """Return what the job waits for, as a message for the operator."""
    why = "the coordinator's store has gone back and may not know what was decided last"
    way_out = f"`dtdctl resume {job.id}` if nobody else trains it"
    if not job.generation:
        return f"waiting: {why}; {way_out}"
    missing = [name for name in job.roster if name not in cluster.vouched]
    return (
        f"waiting for {', '.join(missing)} to say that generation {job.generation}, the newest"
        f" known, still runs or has finished: {why}; {way_out}"
    )
