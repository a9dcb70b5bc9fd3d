"""Records what workers report to hold: the newest state, and parts of checkpoints beside it.

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from dtd.core.membership import branches, fresh_optimizer
from dtd.core.membership import roster as choice
from dtd.core.membership.coverage import NOTHING_HELD
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.trust import doubt, parts, vouching
from dtd.wire import messages as m


def left(cluster: ClusterState, job: Job, worker: Worker, message: m.Frozen | m.Finished) -> None:
    """A worker has left a generation and reports its state."""
    claimed = choice.held_by(message)
    held = parts.limited(cluster, job, worker, claimed, message.generation)
    if isinstance(message, m.Frozen):
        worker.holdings.saved = _saved(cluster, job, worker, message.held[1:])
    worker.holdings.held, worker.holdings.frozen_in = held, message.generation
    worker.holdings.prepared = choice.held_key(worker)
    if isinstance(message, m.Frozen) and (held is claimed or held.part):
        worker.holdings.prepared = (message.prepared_generation, message.prepared_step)
    fresh_optimizer.offer(job, worker)


def warmed_up(cluster: ClusterState, job: Job, worker: Worker, message: m.Warmed) -> None:
    """A worker has warmed up and reports what is on its disk."""
    held = message.held[0] if message.held else NOTHING_HELD
    worker.holdings.held = parts.limited(cluster, job, worker, held)
    worker.holdings.saved = _saved(cluster, job, worker, message.held[1:])
    why = _incredible(cluster, job, worker.holdings.held)
    if why:
        disbelieve(cluster, worker, why)


def disbelieve(cluster: ClusterState, worker: Worker, why: str) -> None:
    """Ignore a worker's reported checkpoint: it fetches the state from others."""
    held = worker.holdings.held or NOTHING_HELD
    _tell(cluster, worker, held, why)
    worker.holdings.held, worker.holdings.prepared = NOTHING_HELD, (0, 0)


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
    """Why a worker cannot have this checkpoint of the job; empty if it can."""
    if held.job != job.id:
        return ""
    key = (held.generation, held.step)
    confirmed = vouching.remembered(job.agreed)
    said = vouching.verdict(confirmed, key, held.digest, sharded=job.terms.sharded)
    if said == vouching.CONTRADICTED:
        return "all ranks agreed on another digest for that state"
    known = max(job.generation, doubt.lowest_number(cluster))  # a restored store may lack some
    if held.generation > known and not doubt.lasts(cluster, job):
        return f"the job's newest generation is {job.generation}"
    return "" if doubt.lasts(cluster, job) else branches.why_impossible(key, job)


def _tell(cluster: ClusterState, worker: Worker, held: m.Held, why: str) -> None:
    cluster.incident(
        "report_contradicted",
        f"{worker.name} reports a checkpoint of step {held.step} of generation"
        f" {held.generation}, which does not count: {why}",
        worker=worker.name,
        step=held.step,
    )
