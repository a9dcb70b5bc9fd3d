"""Handles a store that was rolled back and may not name the newest generation.

A store that was restored from a backup has a later *epoch* than its jobs: generations may have
begun and ended since the backup, and one of them may still be running unknown to this coordinator.
The job is therefore *in doubt*.  No generation is formed until the newest one is known:

* the highest generation that any worker reports counts, with its roster and its starting state;
* once all of its members have registered and none of them had left it, there was no later
  generation, since that would have required a member that had left (ADR 0006, rule 5);
* if all of its members have finished it, the job ends with what they report; a later generation may
  exist, but none is formed here (`reconnection.take_up`);
* otherwise the operator decides (`dtdctl resume`).

Until then, workers that are training continue.  The generation numbers of two epochs are far
apart, so that no number is assigned twice.  A worker that reports a generation unknown to the
store shows that the store was rolled back without the restore command, or that another backup of
the same epoch was restored before; that begins a new epoch as well.  Part of the membership
machine; changes the cluster's state and adds effects.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster import branches
from dtd.cluster.events import SaveJob
from dtd.cluster.records import Job
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GenerationState
from dtd.wire import messages as m

NUMBERS_PER_EPOCH: Final = 1_000_000
"""Generations of epoch E have numbers above (E - 1) times this."""

MOST_NUMBER: Final = 2**63 - 1
PARTAKING: Final = frozenset({"forming", "running"})


def lasts(cluster: ClusterState, job: Job) -> bool:
    """Whether a generation may exist that is newer than the job's newest."""
    return job.store_epoch < cluster.epoch


def lowest_number(cluster: ClusterState) -> int:
    """The number that all generation numbers of this epoch exceed."""
    return max(0, cluster.epoch - 1) * NUMBERS_PER_EPOCH


def next_number(cluster: ClusterState, start: int) -> int:
    """The number of the next generation, which starts from a state of generation `start`."""
    return max(_highest_known(cluster), start) + 1


def _highest_known(cluster: ClusterState) -> int:
    run = cluster.run
    return max(run.generation, run.highest_seen, run.highest_beside, lowest_number(cluster))


def is_exhausted(cluster: ClusterState) -> bool:
    """Whether no number is left; a store with a number near the maximum is damaged."""
    return _highest_known(cluster) >= MOST_NUMBER


def why_exhausted(cluster: ClusterState) -> str:
    """Return the remedy once no number is left, as a message for the operator."""
    return (
        f"waiting for good: generation {_highest_known(cluster)} is the last that has a number, so"
        " this coordinator's store is damaged; restore a backup of it (`dtd-coordinator restore`),"
        " or begin with an empty --state-dir and submit the job with the weights of a checkpoint"
        " (`dtdctl fetch`)"
    )


def must_be_proved(cluster: ClusterState, message: m.Register) -> bool:
    """Whether the worker must prove its membership in the generation that it names.

    That is so for any generation of the active job except the newest one known here: a member of
    that one knows the id of its roster, which only its members were told.
    """
    job = cluster.job
    if job is None or not is_ours(job, message) or not message.generation:
        return False
    known = (message.generation, message.roster_id) == (job.generation, job.roster_id)
    return not (known and message.name in job.roster)


def is_ours(job: Job | None, message: m.Register) -> bool:
    """Whether a worker registers with the active job itself, not another job of the same id."""
    return job is not None and (job.id, job.identity) == (message.job, message.identity)


def learn(cluster: ClusterState, job: Job, message: m.Register) -> None:
    """Handle a worker's report of the generation that it last took part in; the highest counts."""
    seen = max(cluster.run.highest_seen, message.generation)  # proved, or known already
    cluster.run.highest_seen = seen
    members = tuple(member.name for member in message.roster)
    if cluster.run.phase is not GenerationState.NONE:
        return
    floor = max(cluster.run.highest_beside, lowest_number(cluster)) if lasts(cluster, job) else 0
    if message.generation > max(job.generation, cluster.run.generation, floor):
        _went_back(cluster, message.name, message.generation)
    if lasts(cluster, job) and message.generation > job.generation:
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


def _went_back(cluster: ClusterState, name: str, number: int) -> None:
    cluster.epoch += 1
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
    job.store_epoch = cluster.epoch
    cluster.vouched.clear()
    cluster.emit(SaveJob(job=job))


def explain(cluster: ClusterState, job: Job) -> str:
    """Return what the job waits for, as a message for the operator."""
    why = (
        f"the coordinator's store has gone back (epoch {cluster.epoch}) and may not know what was"
        " decided last"
    )
    way_out = f"`dtdctl resume {job.id}` if nobody else trains it"
    if not job.generation:
        return f"waiting: {why}; {way_out}"
    missing = [name for name in job.roster if name not in cluster.vouched]
    return (
        f"waiting for {', '.join(missing)} to say that generation {job.generation}, the newest"
        f" known, still runs or has finished: {why}; {way_out}"
    )
