"""Decides whether the next generation may form, and if not, which workers to wait for and why.

Part of the membership machine.  In order: workers that come back with a state, workers that warm up
(unless others hold the job's state: then it continues at once), enough workers, working links, one
that has the checkpoint from which the job is to start, late ones at the very beginning, and absent
workers that may hold a newer state than the present ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtd.cluster.generation import branches, datasets, forming, roster, states
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import WorkerState
from dtd.cluster.workers import admission, registration
from dtd.text.names import natural_key

RESUME_WAIT_S = 60.0
MOST_RESUME_WAIT_S = 3600.0
"""Limits of the wait for holders of newer steps, which lasts as long as redoing them would."""
QUICK_GENERATIONS = 3
FIRST_PAUSE_S = 0.1
MAX_DOUBLINGS = 6


def awaited(cluster: ClusterState, job: Job) -> str:
    """Return what the next generation waits for, in words; empty if it may form now.

    The times of the wait are kept in `cluster.waiting`: each begins when its reason does.
    """
    times = cluster.waiting
    doubt = _doubt(cluster, job)
    if doubt:
        return doubt
    too_few = why_too_few(cluster.available(), job)
    if too_few:
        times.enough_since = None
    elif times.enough_since is None:
        times.enough_since = cluster.now
    reason = _warm_up(cluster, job) or _refusals(cluster, too_few)
    reason = reason or _links(cluster, job) or _origin(cluster, job)
    if reason:
        times.settle_by = times.form_at = None
        return reason
    reason = _latecomers(cluster, job) or _newer_state(cluster, job)
    if reason:
        times.form_at = None
        return reason
    return _pause(cluster)


def _doubt(cluster: ClusterState, job: Job) -> str:
    """A generation that may still train unheard: no member has certainly stopped."""
    if job.in_doubt:
        return registration.explain(cluster, job)
    if job.generation == 0 or job.fenced:
        return ""
    return (
        f"waiting for {', '.join(job.roster)}: generation {job.generation} may still run there;"
        f" `dtdctl resume {job.id}` if they are gone for good"
    )


def _warm_up(cluster: ClusterState, job: Job) -> str:
    """Survivors continue at once, and workers that warm up join later; a fresh start waits.

    It does so for as long as a warm-up may take; then enough workers begin without the others.
    Workers that reconnect with a state are waited for in any case: it may be the newest.
    """
    warming = sorted(cluster.warming_since, key=natural_key)
    returning = [name for name in warming if cluster.workers[name].reconnection.returning]
    if returning:
        return f"waiting for {', '.join(returning)} to leave the last generation"
    survivors = [worker for worker in forming.remembering(cluster, job) if not worker.leaving]
    since = cluster.waiting.enough_since
    is_over = since is not None and cluster.now - since > job.terms.warmup_timeout_s
    if not warming or (since is not None and survivors) or is_over:
        return ""
    data = datasets.explain(cluster, job)
    return f"warming up: {', '.join(warming)}" + (f"; {data}" if data else "")


def why_too_few(workers: Sequence[Worker], job: Job) -> str:
    """Return the workers that a generation of the job lacks, in words; empty if there are enough.

    Parameter servers train no rows, so they do not count as workers.
    """
    ready, least = sum(not worker.serves for worker in workers), job.terms.min_workers
    if ready < least:
        how = "; start the job's script on more hosts" if job.terms.by_hand else ""
        return f"{ready} {'worker' if ready == 1 else 'workers'} ready, {least} needed{how}"
    if job.terms.has_servers and ready == len(workers):
        return (
            "no parameter server is ready; start one with `dtd-worker --role server`"
            " (the unit dtd-worker@server)"
        )
    return ""


def _refusals(cluster: ClusterState, too_few: str) -> str:
    """Too few workers, and why others are refused."""
    refused = [w for w in cluster.workers.values() if w.state is WorkerState.INCOMPATIBLE]
    why = "".join(f"; {w.name} is refused: {w.reason}" for w in refused)
    return f"{too_few}{why}" if too_few else ""


def _links(cluster: ClusterState, job: Job) -> str:
    """Too few workers, or not all shards, without those that lack a link."""
    bad = cluster.links.bad
    if not bad:
        return ""
    members, present = forming.choose(cluster, job).members, cluster.available()
    start = roster.start_key(job, present)
    torn = states.covers(present, start) and not states.covers(members, start)
    if not torn and not why_too_few(members, job):
        return ""
    dead = "; ".join(f"{one} and {other}" for one, other in sorted(bad))
    return f"waiting for a working link between {dead}"


def _origin(cluster: ClusterState, job: Job) -> str:
    """The checkpoint from which the job is to start."""
    if not lacks_origin(cluster, job):
        return ""
    step = job.from_step or job.from_newest
    return (
        f"waiting for workers that have the checkpoint of step {step} of {job.from_job}, from"
        f" which the job is to start: those present have none, or not all parts of it"
        f" (`dtdctl checkpoints {job.from_job}` names the holders);"
        f" `dtdctl resume {job.id}` begins at step 0 without it"
    )


def lacks_origin(cluster: ClusterState, job: Job) -> bool:
    """Whether the job is to start from a checkpoint of another one that no present worker has.

    It would begin at step 0, as nobody wants, unless the operator has said so, then or before.
    """
    if not job.from_job or cluster.waiting.resumed:
        return False
    untrained = (0, 0)
    said_before = job.generation > 0 and (job.start_generation, job.start_step) == untrained
    return not said_before and roster.start_key(job, cluster.available()) == untrained


def _latecomers(cluster: ClusterState, job: Job) -> str:
    """A job's first generation gives late workers a moment to join."""
    times = cluster.waiting
    if not times.must_settle or (job.roster and not cluster.missing(job)):
        return ""
    if times.settle_by is None:
        times.settle_by = cluster.now + job.terms.settle_s
    return "settling: giving late workers a moment to join" if cluster.now < times.settle_by else ""


def _newer_state(cluster: ClusterState, job: Job) -> str:
    """Absent workers that may hold a newer state, until the wait for them is over."""
    times = cluster.waiting
    if _is_newest_here(cluster, job):
        times.newer_since = None
    elif times.newer_since is None:
        times.newer_since = cluster.now
    resume_at = resume_by(cluster)
    if times.resumed or resume_at is None or cluster.now >= resume_at:
        return ""
    step = max(job.step, branches.saved_step(job))
    lack = forming.why_incomplete(cluster, job)
    lack = lack or f"no present worker holds the state of step {step}"
    return (
        f"waiting for {', '.join(absent_holders(cluster, job))}: {lack};"
        f" `dtdctl resume {job.id}` goes on without it,"
        f" as the job does in {_in_words(resume_at - cluster.now)}"
    )


def _pause(cluster: ClusterState) -> str:
    """A pause that grows with each generation that makes no progress."""
    times = cluster.waiting
    past = cluster.setbacks
    brief, idle = past.brief_generations, past.no_progress_generations
    in_row = max(brief, idle)
    if in_row <= QUICK_GENERATIONS:
        return ""
    if times.form_at is None:
        doublings = min(in_row - QUICK_GENERATIONS, MAX_DOUBLINGS)
        times.form_at = cluster.now + FIRST_PAUSE_S * 2**doublings
    if cluster.now >= times.form_at:
        return ""
    if brief > idle:
        return f"pausing after {brief} generations that broke after hardly a step"
    return f"pausing after {idle} generations that committed no step: {past.last_cause}"


def resume_by(cluster: ClusterState) -> float | None:
    """Return when the job continues without waiting for absent workers that may hold newer state.

    The workers present may change during the wait, and with them the cost of continuing.
    """
    if cluster.job is None or cluster.waiting.newer_since is None:
        return None
    return cluster.waiting.newer_since + resume_wait_s(cluster, cluster.job)


def resume_wait_s(cluster: ClusterState, job: Job) -> float:
    """Return how long to wait for steps instead of redoing them: as long as redoing would take."""
    here = roster.start_key(job, cluster.available())[1]
    cost_s = (max(job.step, branches.saved_step(job)) - here) * job.step_s
    return min(max(cost_s, RESUME_WAIT_S), MOST_RESUME_WAIT_S)


def _is_newest_here(cluster: ClusterState, job: Job) -> bool:
    """Whether no absent worker can hold a newer state than the present ones."""
    return bool(forming.remembering(cluster, job)) or not absent_holders(cluster, job)


def absent_holders(cluster: ClusterState, job: Job) -> list[str]:
    """Absent workers that may hold a newer state than the present ones, and may return with it."""
    absent = set(cluster.missing(job))
    newest = max((states.held_key(worker) for worker in cluster.available()), default=(0, 0))
    if job.terms.sharded:  # a part of a state is not enough
        newest = roster.start_key(job, cluster.available())
    saved = (job.checkpoint_generation, job.checkpoint_step)
    if newest < saved and not branches.is_left(saved, branches.remembered(job.branches)):
        absent |= set(job.checkpoint_holders) - {worker.name for worker in cluster.available()}
    return sorted(absent, key=natural_key)


def restart_partial(cluster: ClusterState, job: Job) -> bool:
    """Restart workers with a part of the untrained state if there is nothing else to start from.

    A fresh state is complete, and comes from a worker that has none in memory yet.
    """
    present = cluster.available()
    start = roster.start_key(job, present)
    holders = [worker for worker in present if states.in_memory(worker)]
    if start[1] or not holders or states.covers(present, start):
        return False
    cluster.waiting.reason = f"the job begins afresh: {forming.why_incomplete(cluster, job)}"
    for worker in holders:
        admission.expel(cluster, worker, cluster.waiting.reason)
    return True


def explain(cluster: ClusterState, job: Job) -> str:
    """Why no generation forms, in words."""
    decision = cluster.run.decision
    if decision is None:
        return cluster.waiting.reason or "about to form a generation"
    if not decision.failure:
        return f"writing down generation {job.generation}"
    return (
        f"generation {job.generation} cannot be stored, and is not announced before:"
        f" {decision.failure}; make room on the coordinator's disk, or repair it"
    )


def _in_words(left_s: float) -> str:
    """The remaining wait as text, with suitable precision."""
    return f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
