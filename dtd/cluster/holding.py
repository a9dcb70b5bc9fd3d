"""Records what workers report to hold: the newest state, and parts of checkpoints beside it.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from dtd.cluster import branches, doubt, parts, vouching
from dtd.cluster import roster as choice
from dtd.cluster.coverage import NOTHING_HELD
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.wire import messages as m


def left(cluster: ClusterState, job: Job, worker: Worker, message: m.Frozen | m.Finished) -> None:
    """A worker has left a generation and reports its state."""
    claimed = choice.held_by(message)
    held = parts.limited(cluster, job, worker, claimed, message.generation)
    if held.where != "memory":
        held = _on_disk(cluster, job, worker, held)
    if isinstance(message, m.Frozen):
        worker.holdings.saved = _saved(cluster, job, worker, message.held[1:])
    worker.holdings.held, worker.holdings.frozen_in = held, message.generation
    worker.holdings.prepared = choice.held_key(worker)
    if isinstance(message, m.Frozen) and (held is claimed or held.part):
        worker.holdings.prepared = (message.prepared_generation, message.prepared_step)


def warmed_up(cluster: ClusterState, job: Job, worker: Worker, message: m.Warmed) -> None:
    """A worker has warmed up and reports what is on its disk."""
    held = message.held[0] if message.held else NOTHING_HELD
    held = parts.limited(cluster, job, worker, held)
    worker.holdings.held = _on_disk(cluster, job, worker, held)
    worker.holdings.saved = _saved(cluster, job, worker, message.held[1:])


def disbelieve(cluster: ClusterState, worker: Worker, why: str) -> None:
    """Ignore a worker's reported checkpoint: it fetches the state from others."""
    held = worker.holdings.held or NOTHING_HELD
    _tell(cluster, worker, held, why)
    worker.holdings.held, worker.holdings.prepared = NOTHING_HELD, (0, 0)


def _on_disk(cluster: ClusterState, job: Job, worker: Worker, held: m.Held) -> m.Held:
    """The checkpoint that a worker reports as its newest state, if it can have it."""
    if held.where != "checkpoint":
        return NOTHING_HELD
    why = _incredible(cluster, job, held)
    if why:
        _tell(cluster, worker, held, why)
    return NOTHING_HELD if why else held


def _saved(
    cluster: ClusterState, job: Job, worker: Worker, reported: tuple[m.Held, ...]
) -> tuple[m.Held, ...]:
    """The checkpoints beside the newest state that count: of a sharded job, those it can have."""
    kept = []
    for held in reported if job.terms.sharded else ():
        why = _incredible(cluster, job, held)
        if why:
            _tell(cluster, worker, held, why)
        elif held.where == "checkpoint" and held.job == job.id:
            kept.append(held)
    return tuple(kept)


def _incredible(cluster: ClusterState, job: Job, held: m.Held) -> str:
    """Why a worker cannot have this checkpoint of the job, or of its origin; empty if it can."""
    key = (held.generation, held.step)
    if held.job != job.id:
        return _why_not_begun_with(job, held.job, key)
    confirmed = vouching.remembered(job.agreed)
    said = vouching.verdict(confirmed, key, held.digest, sharded=job.terms.sharded)
    if said == vouching.CONTRADICTED:
        return "all ranks agreed on another digest for that state"
    known = max(job.generation, doubt.lowest_number(cluster))  # a restored store may lack some
    if held.generation > known and not doubt.lasts(cluster, job):
        return f"the job's newest generation is {job.generation}"
    return "" if doubt.lasts(cluster, job) else branches.why_not_saved(key, job)


def _why_not_begun_with(job: Job, origin: str, key: choice.Key) -> str:
    """Why the job cannot have begun with this state of another job; empty if it can."""
    if origin != job.from_job:
        return f"the job does not start from {origin!r}"
    if job.from_mode == "weights" and key[1]:
        return f"only weights are taken over from {origin}"
    if job.from_mode != "weights" and job.from_step not in (0, key[1]):
        return f"the job starts from step {job.from_step} of {origin}"
    start = (job.start_generation, job.start_step)
    return f"the job has got to step {start[1]}" if key > start > (0, 0) else ""


def _tell(cluster: ClusterState, worker: Worker, held: m.Held, why: str) -> None:
    cluster.incident(
        "report_contradicted",
        f"{worker.name} reports a checkpoint of step {held.step} of generation"
        f" {held.generation}, which does not count: {why}",
        worker=worker.name,
        step=held.step,
    )
