"""Limits which part of a sharded state a worker can claim.

A worker that claims shards which it does not have could make a state seem complete that is not.
What a member has in memory follows from its rank, so the coordinator knows it: the shards of its
rank in the newest generation once that has run, and before that those that it brought as well.  A
claim counts only as far as that.  What a worker has on its disk is known to itself alone; such a
claim is believed, as the claim to have a checkpoint is for other jobs (ADR 0006).

Where the state is not sharded there are no parts: a worker that claims one has nothing.  Part of
the membership machine; changes the cluster's state and adds effects.
"""

from __future__ import annotations

from dataclasses import replace

from dtd.cluster.coverage import NOTHING_HELD, assigned_part, part_at, part_of
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.engine.shards import NOTHING, ShardSet
from dtd.wire import messages as m


def limited(
    cluster: ClusterState, job: Job, worker: Worker, held: m.Held, generation: int = 0
) -> m.Held:
    """Return the credible part of a worker's claim; report any claim beyond it.

    Args:
        cluster: what the coordinator knows.
        job: the active one.
        worker: with what it reported before.
        held: the state that it claims now.
        generation: the one that it has left with this state in memory; 0 for one on its disk.
    """
    claimed = part_of(held)
    counts = _credible(job, worker, held, generation, claimed)
    if counts.covers(claimed):
        return held
    cluster.incident(
        "report_contradicted",
        f"{worker.name} claims the shards {claimed} of step {held.step}, of which it can have"
        f" {counts & claimed}: only those count",
        worker=worker.name,
        step=held.step,
    )
    left = counts & claimed
    return replace(held, part=tuple(left.to_wire())) if left else NOTHING_HELD


def _credible(
    job: Job, worker: Worker, held: m.Held, generation: int, claimed: ShardSet
) -> ShardSet:
    """The shards that the worker may have of the state."""
    if not job.terms.sharded:
        return claimed if claimed.is_whole else NOTHING
    if held.where != "memory" or generation != job.generation:
        return claimed
    if not held.step:  # the provider of the untrained state has all of it, and none is lost
        return claimed
    key, start = (held.generation, held.step), (job.start_generation, job.start_step)
    assigned = assigned_part(job, worker.name)
    if held.generation == generation:
        return assigned
    if worker.holdings.held is None:
        return claimed  # this coordinator has started since, and does not know what it brought
    return part_at(worker, key) | (assigned if key == start else NOTHING)
