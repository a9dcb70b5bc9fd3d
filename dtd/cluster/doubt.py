"""A store that has gone back and may not name the newest generation of a job.

After a backup was taken, generations may have begun and ended, and one may still be running unknown
to this coordinator.  `dtd-coordinator restore` therefore marks each unfinished job as *in doubt*;
so does the report of a generation that the store does not know.  No generation is formed until the
newest one is known:

* the highest generation that any worker reports counts, with its roster and its starting state;
* once all of its members have registered and none of them had left it, there was no later
  generation, since that would have required a member that had left (ADR 0006, rule 5);
* if all of its members have finished it, the job ends with what they report; a later generation may
  exist, but none is formed here (`reconnection.take_up`);
* otherwise the operator decides (`dtdctl resume`).

Until then, workers that are training continue.  No number is given twice: after a restart they
begin above the clock in seconds.  Part of the membership machine; changes the cluster's state and
adds effects.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster import branches
from dtd.cluster.events import SaveJob
from dtd.cluster.records import Job
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GenerationState
from dtd.wire import messages as m

PARTAKING: Final = frozenset({"forming", "running"})


def next_number(cluster: ClusterState, start: int) -> int:
    """The number of the next generation, which starts from a state of generation `start`."""
    run = cluster.run
    return max(run.generation, run.highest, start) + 1


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
