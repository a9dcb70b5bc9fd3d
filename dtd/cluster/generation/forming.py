"""A generation formed and running: its roster, the state it starts from, progress, and joiners.

Part of the membership machine; changes the cluster's state, adds effects.  It is announced when
every living member of the last one has reported FROZEN (or FINISHED) and at least one has stopped
for certain: a single member that has stopped stops the ring, so two generations never commit side
by side (ADR 0006).  What follows is `dtd.cluster.generation.ending`.
"""

from __future__ import annotations

from dataclasses import replace

from dtd.cluster.events import JobSaved, SaveJob
from dtd.cluster.generation import branches, ending, roster, states
from dtd.cluster.generation.ending import end_at_boundary
from dtd.cluster.records import Job, Worker
from dtd.cluster.run import Decision
from dtd.cluster.state import ClusterState, most_workers
from dtd.cluster.transitions import (
    AVAILABLE,
    GenerationEvent,
    GenerationState,
    JobEvent,
    JobState,
    WorkerEvent,
    WorkerState,
)
from dtd.cluster.workers.links import pair_of
from dtd.text.shown import counted
from dtd.wire import messages as m

SAVE_AGAIN_S = 1.0
"""Pause before a generation that could not be stored is tried again."""


_OF_A_GENERATION = (
    *("generation", "world_size", "step", "start_generation", "start_step", "branches"),
    *("roster", "roster_id", "servers", "instances", "announced", "fenced", "forgetful"),
)


def decide(cluster: ClusterState, job: Job) -> None:
    """Choose the next generation and have it stored; it is announced only afterwards."""
    start = roster.start_key(job, cluster.available())
    chosen = choose(cluster, job)
    bar(cluster, chosen.barred)
    members = chosen.members
    cluster.run.decision = Decision(
        members=members,
        holds=roster.holders(members, start),
        lost=_committed_step(cluster, job) - start[1],
        incomplete=why_incomplete(cluster, job),
        redone=_is_redone(cluster, job, start),
        before={name: getattr(job, name) for name in _OF_A_GENERATION},
    )
    cluster.run.generation = _next_number(cluster, start[0])
    _leave_behind(cluster, job, start)
    cluster.move_job(job, JobEvent.DECIDED)
    job.generation, job.world_size, job.step = cluster.run.generation, len(members), start[1]
    job.start_generation, job.start_step = start
    job.roster = tuple(worker.name for worker in members)
    job.servers = sum(worker.serves for worker in members)
    job.roster_id = roster.roster_id(job.id, cluster.run.generation, members, start=start)
    job.instances = tuple(worker.registration.instance for worker in members)
    job.announced, job.fenced = True, False
    job.forgetful = False
    cluster.emit(SaveJob(job=job, announces=cluster.run.generation))


def _next_number(cluster: ClusterState, start: int) -> int:
    """The number of a generation that starts from a state of generation `start`."""
    return max(cluster.run.generation, cluster.run.highest, start) + 1


def saved(cluster: ClusterState, job: Job, event: JobSaved) -> None:
    """The decided generation is stored and may be announced, or could not be stored."""
    decision = cluster.run.decision
    if decision is None or (event.job, event.generation) != (job.id, job.generation):
        return
    if event.failure:
        decision.failure, decision.again_at = event.failure, cluster.now + SAVE_AGAIN_S
    elif _stands(cluster, job, decision):
        cluster.run.decision = None
        _announce(cluster, job, decision)
    else:
        cluster.withdraw(job)


def save_again(cluster: ClusterState, job: Job) -> None:
    """Retry storing the decided generation, unless it is no longer valid."""
    decision = cluster.run.decision
    assert decision is not None, "nothing is decided"
    if decision.again_at is None or cluster.now < decision.again_at:
        return
    if not _stands(cluster, job, decision):
        cluster.withdraw(job)
        return
    decision.again_at = None
    cluster.emit(SaveJob(job=job, announces=job.generation))


def _stands(cluster: ClusterState, job: Job, decision: Decision) -> bool:
    """Whether its members are present as the same processes, and no worker has a newer state."""
    if any(cluster.workers[name].reconnection.returning for name in cluster.warming_since):
        return False
    start = roster.start_key(replace(job, **decision.before), cluster.available())
    return start == (job.start_generation, job.start_step) and all(
        cluster.workers.get(member.name) is member and member.state in AVAILABLE
        for member in decision.members
    )


def _announce(cluster: ClusterState, job: Job, decision: Decision) -> None:
    """Announce a generation to its members."""
    members, holds = decision.members, decision.holds
    _tell_what_is_left(cluster, job, decision)
    cluster.setbacks.no_progress_generations += 1
    cluster.waiting.must_settle = False
    cluster.waiting.settle_by = cluster.waiting.newer_since = cluster.waiting.form_at = None
    cluster.waiting.enough_since = None
    cluster.waiting.resumed = False
    cluster.run.roster = list(job.roster)
    cluster.move_generation(GenerationEvent.ANNOUNCED)
    cluster.run.begin(
        (worker.name for worker, has in zip(members, holds, strict=True) if has),
        _joined(job, members, holds),
    )
    if decision.incomplete:
        text = f"{decision.incomplete}; the job falls back to step {job.start_step}"
        cluster.incident("shards_missing", text, step=job.start_step)
    _count_lost(cluster, job, decision.lost)
    if decision.redone and cluster.ending.recovery is not None:
        cluster.ending.recovery.steps_redone += 1
    _assign(cluster, job, members, holds)
    donors = [worker.name for worker, has in zip(members, holds, strict=True) if has]
    cluster.incident(
        "generation_forming",
        f"generation {cluster.run.generation}: {', '.join(cluster.run.roster)};"
        f" state of step {job.start_step} from {', '.join(donors)}",
        step=job.start_step,
    )


def _joined(job: Job, members: list[Worker], holds: list[bool]) -> list[str]:
    """Members whose process has not trained yet, if others remember the state that they trained."""
    remember = any(has and states.in_memory(one) for one, has in zip(members, holds, strict=True))
    if not (job.start_step and remember):
        return []
    return [one.name for one in members if not states.in_memory(one)]


def count_prepared(cluster: ClusterState, job: Job) -> None:
    """Count a step that is committed because all members hold it prepared as progress."""
    step = roster.start_key(job, cluster.available())[1]
    if step > job.step:
        cluster.advance(step)


def remembering(cluster: ClusterState, job: Job) -> list[Worker]:
    """The survivors, if together they remember all of the state; of a sharded one each has a part.

    A job with such survivors continues at once, without waiting for others; not if one of them has
    a part of a newer state, of which the absent ones may have the rest.
    """
    survivors = cluster.survivors(job)
    if not job.terms.sharded:
        return survivors
    present = cluster.available()
    start, newest = roster.start_key(job, present), roster.newest_key(job, present)
    older = start < (job.start_generation, job.start_step) or start[1] < job.step
    older |= newest > start and not branches.is_left(newest, branches.remembered(job.branches))
    return [] if older or not states.covers(present, start) else survivors


def why_incomplete(cluster: ClusterState, job: Job) -> str:
    """Return the newest state's shards that no present worker has, in words; "" if none."""
    present = cluster.available()
    key = roster.newest_key(job, present)
    missing = states.uncovered(present, key)
    if not missing or missing.is_whole:  # no state exists yet
        return ""
    here = {worker.name for worker in present}
    absent = [name for name in job.roster if name not in here]
    had = [name for name in absent if states.assigned_part(job, name) & missing]
    whose = f", which {', '.join(had)} had" if had else ""
    return f"no present worker has the shards {missing} of step {key[1]}{whose}"


def choose(cluster: ClusterState, job: Job) -> roster.Choice:
    """The members of a generation formed now."""
    return roster.choose(
        cluster.available(),
        start=roster.start_key(job, cluster.available()),
        max_workers=most_workers(job),
        bad_links=cluster.links.bad,
    )


def bar(cluster: ClusterState, barred: list[Worker]) -> None:
    """Keep these workers out of rosters until their links work again."""
    for worker in barred:
        worker.reason = _why_barred(cluster, worker)
        if worker.state is not WorkerState.ISOLATED:
            cluster.incident(
                "worker_barred", f"{worker.name} stays out: {worker.reason}", worker=worker.name
            )
        cluster.move_worker(worker, WorkerEvent.NO_LINK)


def _why_barred(cluster: ClusterState, worker: Worker) -> str:
    others = cluster.links.unreachable_from(worker.name)
    every_s = min(cluster.links.probed_every_s(pair_of(worker.name, other)) for other in others)
    return f"no working link to {', '.join(others)}; probed every {every_s:g} s"


def _assign(cluster: ClusterState, job: Job, members: list[Worker], holds: list[bool]) -> None:
    members_sent = tuple(
        m.Member(
            name=w.name,
            incarnation=w.incarnation,
            host=w.registration.data_host,
            port=w.registration.data_port,
            others=w.registration.others,
            holds=has,
            serves=w.serves,
        )
        for w, has in zip(members, holds, strict=True)
    )
    strides = roster.strides(job.roster, cluster.links.bad)
    cluster.run.hop_bytes = roster.hop_bytes(members, cluster.run.hop_bytes)
    whole_bytes = roster.whole_bytes(members, strides, cluster.run.hop_bytes)
    for rank, worker in enumerate(members):
        cluster.move_worker(worker, WorkerEvent.ASSIGNED)
        worker.generation, worker.rank = cluster.run.generation, rank
        worker.reason = worker.reason if worker.leaving else ""
        assign = m.Assign(
            job=job.id,
            generation=cluster.run.generation,
            roster_id=job.roster_id,
            rank=rank,
            roster=members_sent,
            held_generation=job.start_generation,
            held_step=job.start_step,
            branches=tuple(m.Branch(**one._asdict()) for one in branches.remembered(job.branches)),
            strides=strides,
            whole_bytes=whole_bytes,
        )
        cluster.send(worker.name, assign)


def _leave_behind(cluster: ClusterState, job: Job, start: states.Key) -> None:
    """Leave checkpoints behind that are newer than the state to which the job returns.

    Members that are no longer awaited may hold states that were never reported, and a store that
    has gone back does not know what generations have committed since.  A job that takes
    up a branch again leaves the one that it has followed since.
    """
    known = branches.remembered(job.branches)
    saved = (job.checkpoint_generation, job.checkpoint_step)
    may_hold_more = bool(cluster.missing(job)) and not remembering(cluster, job)
    newest = max(saved, roster.newest_key(job, cluster.available()))
    goes_on = (
        newest <= start
        and _committed_step(cluster, job) <= start[1]
        and not (may_hold_more or job.forgetful)
    )
    if goes_on and not branches.is_left(start, known):
        return
    job.branches = branches.left(known, start, cluster.run.generation)


def _tell_what_is_left(cluster: ClusterState, job: Job, decision: Decision) -> None:
    saved = (job.checkpoint_generation, job.checkpoint_step)
    begun = job.branches != decision.before["branches"]
    if begun and branches.is_left(saved, branches.remembered(job.branches[-1:])):
        cluster.incident(
            "branch_left",
            f"the checkpoint of step {job.checkpoint_step} stays with"
            f" {', '.join(job.checkpoint_holders)}; the job continues from step {job.start_step}",
            step=job.start_step,
        )


def _committed_step(cluster: ClusterState, job: Job) -> int:
    """The newest step of the job that is known to have been committed, held or not.

    If the coordinator died with its workers it had stored less than they had committed: they report
    what their earlier processes did in the newest generation.  All members commit the same steps.
    """
    reports = [one.holdings.warmed for one in cluster.available()]
    steps = [
        one.committed_step
        for one in reports
        if one is not None and one.committed_generation == job.generation
    ]
    return max(job.step, *steps, 0)


def _count_lost(cluster: ClusterState, job: Job, lost: int) -> None:
    if lost > 0:
        job.steps_lost += lost
        if cluster.ending.recovery is not None:
            cluster.ending.recovery.steps_lost += lost
        cluster.incident(
            "steps_lost",
            f"no worker holds the last {lost} committed steps",
            step=job.start_step,
            steps_lost=lost,
        )


def _is_redone(cluster: ClusterState, job: Job, start: states.Key) -> bool:
    """Whether the broken generation's current step is redone instead of committed after all."""
    recovery = cluster.ending.recovery
    if recovery is None or recovery.at_boundary or not recovery.running or job.terms.launched:
        return False
    return start not in {w.holdings.prepared for w in _prepared(cluster, job)}


def _prepared(cluster: ClusterState, job: Job) -> list[Worker]:
    """Members with a prepared step that they have not committed."""
    ended = (w for w in cluster.available() if w.holdings.frozen_in == job.generation)
    return [worker for worker in ended if worker.holdings.prepared != states.held_key(worker)]


def member_running(cluster: ClusterState, job: Job, worker: Worker) -> None:
    """A member's ring is up and its state agreed; once all are, the generation runs."""
    cluster.move_worker(worker, WorkerEvent.RUNS)
    worker.holdings.held = states.start_held(job, worker.name)
    worker.holdings.prepared = states.held_key(worker)
    check_running(cluster, job)


def check_running(cluster: ClusterState, job: Job) -> None:
    """Start the generation's running phase once no member is still forming."""
    waited_for = (WorkerState.FORMING, WorkerState.DISCONNECTED)
    if cluster.run.phase is not GenerationState.FORMING:
        return
    if any(member.state in waited_for for member in cluster.members()):
        return
    cluster.move_generation(GenerationEvent.ALL_RUN)
    stopping = job.state is JobState.STOPPING
    if not stopping:
        cluster.move_job(job, JobEvent.RUNS)
    cluster.emit(SaveJob(job=job))
    beside = f" and {counted(job.servers, 'parameter server')}" if job.servers else ""
    workers = counted(len(cluster.run.roster) - job.servers, "worker")
    cluster.incident(
        "generation_running",
        f"generation {cluster.run.generation} runs with {workers}{beside}"
        f" from step {job.start_step}",
        step=job.start_step,
        world_size=len(cluster.run.roster),
        servers=job.servers,
    )
    if job.terms.launched:
        recovered(cluster, job)
    leaving = [
        member.name
        for member in cluster.members()
        if member.leaving and states.can_spare(job, member.name)
    ]
    if stopping:
        ending.freeze(cluster, at_boundary=True, stop=True, reason=job.reason)
    elif leaving:
        ending.end_at_boundary(cluster, f"{', '.join(leaving)} leaves")


ADMIT_PATIENCE_S = 0.5
"""Seconds that a ready worker waits for others that warm up, to join together with them."""


def progressed(cluster: ClusterState, job: Job, name: str, generation: int, step: int) -> None:
    """A member reports a committed step.

    A member that is still forming has committed none in this generation: it may still have the
    steps that the generation is to redo.
    """
    run = cluster.run
    if generation != run.generation or run.phase is GenerationState.NONE:
        return
    if cluster.workers[name].state is WorkerState.FORMING or step <= max(job.start_step, job.step):
        return
    cluster.advance(step)
    run.advanced_at = cluster.now
    job.step = step
    if run.phase is not GenerationState.ENDING:
        recovered(cluster, job)


def recovered(cluster: ClusterState, job: Job) -> None:
    """The job has resumed training, if it had a loss to recover from."""
    recovery, cluster.ending.recovery = cluster.ending.recovery, None
    if recovery is not None:
        cluster.incident(
            "recovered",
            f"job {job.id} resumed training: {recovery.cause}",
            worker=recovery.worker,
            step=job.step,
            **recovery.details(cluster.now),
        )


def left(cluster: ClusterState, job: Job, name: str, message: m.Frozen | m.Finished) -> None:
    """Count steps of a leaving member that no heartbeat has reported."""
    held = states.held_by(message)
    if held.generation == message.generation:
        progressed(cluster, job, name, message.generation, held.step)


def admit_ready(cluster: ClusterState, job: Job) -> None:
    """End the running generation at a step boundary when a worker is ready to join."""
    finishing = any(member.state is WorkerState.FINISHED for member in cluster.members())
    if finishing or job.state is JobState.STOPPING:
        return
    full = len(cluster.run.roster) - job.servers >= most_workers(job)
    ready = [
        w for w in _ready(cluster) if cluster.now >= ready_by(cluster, w) and (w.serves or not full)
    ]
    if not ready or not _fit_in(cluster, job, ready):
        return
    for worker in ready:
        worker.reason = "joins at the next step boundary"
    end_at_boundary(cluster, f"{', '.join(w.name for w in ready)} joins")


def _ready(cluster: ClusterState) -> list[Worker]:
    return [w for w in cluster.workers.values() if w.state is WorkerState.READY and not w.leaving]


def _fit_in(cluster: ClusterState, job: Job, ready: list[Worker]) -> bool:
    """Whether the ring would grow with these workers; bad links may leave no place for them."""
    candidates = [*cluster.members(), *ready]
    chosen = roster.choose(
        candidates,
        start=(job.start_generation, job.start_step),
        max_workers=most_workers(job),
        bad_links=cluster.links.bad,
    )
    bar(cluster, [worker for worker in chosen.barred if worker in ready])
    return len(chosen.members) > len(cluster.run.roster)


def ready_by(cluster: ClusterState, worker: Worker) -> float:
    """Return when a ready worker joins even though others still warm up."""
    return worker.ready_since + (ADMIT_PATIENCE_S if cluster.warming_since else 0.0)


def admission_deadline(cluster: ClusterState) -> float | None:
    """Return when the next ready worker will have waited long enough to join."""
    if cluster.run.phase is not GenerationState.RUNNING:
        return None
    return min((ready_by(cluster, worker) for worker in _ready(cluster)), default=None)
