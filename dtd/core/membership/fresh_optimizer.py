"""Continuation of a job without its optimizer's state, from the parameters that workers hold.

If the last copy of a shard is lost, workers may still have all parameters: in stages 1 and 2 every
trainer gathers them for a step.  The job would return to its newest checkpoint.  The operator may
let it go on from those parameters instead, with a fresh optimizer; nothing else makes such a state.

It is another state than the one whose parameters it has, so it has a key of its own (`Reset`): a
new generation number, which no generation of workers is given, and the same number of steps.  So it
is newer than everything that was committed before, and what returns later cannot be taken for a
part of it.  It is made alike wherever those parameters are: a member that was told to make it, and
has not done so, can still make it.  The wish is written down, and is void if the lost state comes
back before it is met (`roster.start_key`).

Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from dtd.core.membership import roster as choice
from dtd.core.membership.coverage import Key, part_of
from dtd.core.membership.events import SaveJob
from dtd.core.membership.records import Job, Reset, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.trust import doubt
from dtd.errors import RequestRefused

DIVIDES_PARAMETERS = 3
"""The stage from which on no worker has all parameters."""


def ask(cluster: ClusterState, job: Job) -> None:
    """Let the job go on from the newest parameters that the workers present hold.

    Raises:
        RequestRefused: there are none, or the optimizer's state is not lost; nothing has changed.
    """
    reset = Reset.of(job)
    if reset is not None and not (reset.is_start(job) or doubt.lasts(cluster, job)):
        return  # asked before
    why = why_not(cluster, job)
    if why:
        raise RequestRefused(
            f"job {job.id} cannot go on without its optimizer's state: {why}",
            remedy=f"dtdctl resume {job.id} goes on from the newest state that is whole",
        )
    generation, step = _newest(cluster)
    job.reset = (doubt.next_number(cluster, generation), generation, step)
    for worker in cluster.workers.values():
        offer(job, worker)
    cluster.emit(SaveJob(job=job))


def why_not(cluster: ClusterState, job: Job) -> str:
    """Why the job cannot go on without the state of its optimizer, in words; empty if it can."""
    if not job.terms.sharded:
        return "whoever holds its state holds all of it"
    if job.terms.strategy.stage >= DIVIDES_PARAMETERS:
        return "no worker has all parameters, which are divided as well (strategy.stage = 3)"
    if doubt.lasts(cluster, job):
        return "a newer generation may exist than the coordinator knows"
    newest = _newest(cluster)
    if not newest[1]:
        return "no worker present has all parameters of a step"
    whole = choice.start_key(job, cluster.available())
    if whole >= newest:
        return f"the state of step {whole[1]} is there, with the optimizer's"
    return ""


def remedy(cluster: ClusterState, job: Job) -> str:
    """Return the operator's alternative to waiting, to append to what the job waits for."""
    reset = Reset.of(job)
    if reset is not None and not reset.is_start(job):
        return f"; it goes on from the parameters of step {reset.step}, with a fresh optimizer"
    if why_not(cluster, job):
        return ""
    newest = _newest(cluster)
    names = [worker.name for worker in cluster.available() if _parameters(worker) == newest]
    return (
        f"; `dtdctl resume {job.id} --without-optimizer` goes on from the parameters of step"
        f" {newest[1]}, held by {', '.join(sorted(names, key=choice.natural_key))}, with a fresh"
        " optimizer"
    )


def offer(job: Job, worker: Worker) -> None:
    """Record whether a worker can make the state that the operator has asked for."""
    reset = Reset.of(job)
    makes = reset is not None and _parameters(worker) == reset.made_of
    worker.holdings.makes = reset.key if makes and reset is not None else None


def decided(job: Job, start: Key) -> None:
    """The next generation starts from this state: the wish is met, or void.

    It is counted before the generation is written down, so that no crash forgets it.
    """
    reset = Reset.of(job)
    if reset is None:
        return
    if reset.key != start:
        job.reset = ()
    elif not reset.is_start(job):
        job.optimizer_resets += 1


def tell(cluster: ClusterState, job: Job, before: Key) -> None:
    """Report that a generation is the first to start from such a state.

    Args:
        cluster: the cluster's state.
        job: the active one; its newest generation is announced.
        before: key of the state from which the generation before that one started.
    """
    reset = Reset.of(job)
    if reset is None or reset.key == before:
        return
    cluster.incident(
        "optimizer_reset",
        f"the job goes on from the parameters of step {reset.step}, as the operator wishes: its"
        " optimizer begins afresh, as the last copy of its state is lost",
        step=reset.step,
    )


def _newest(cluster: ClusterState) -> Key:
    """Key of the newest state whose parameters a worker present has in memory; (0, 0) for none."""
    return max(map(_parameters, cluster.available()), default=(0, 0))


def _parameters(worker: Worker) -> Key:
    """Key of the state of which a worker has the parameters alone; (0, 0) if it has none."""
    held = worker.holdings.held
    if held is None or held.where != "memory" or not held.parameters or part_of(held).is_whole:
        return (0, 0)
    return choice.held_key(worker)
