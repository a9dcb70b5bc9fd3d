"""Detects members that leave a generation with contradictory states.

A rank commits step s+1 only after it has seen that all ranks have prepared it (ADR 0006, A); with
a strategy that takes local steps, the unit that is committed is a round of them (ADR 0014).  So
there is always a step that every member of a generation either holds or can commit.  If there is
none, a member lies or its memory is corrupt.  Then the largest consistent group stays; among
groups of equal size, the one with the oldest state, but not older than two members have reported.
The others restart, and their reported states are ignored.

Where one says that it has committed a step, and one that it had not prepared it, both groups are
equal in size: the rest can be at either step.  One of the two lies, and nobody can tell which.  If
the rest have prepared the step, and have all of its state, nobody has to be believed: the job goes
on from that step, and nobody restarts.  So the lie neither undoes what an honest member has
committed nor puts it out; if the other one lied, an honest one copies a state for nothing.  Part of
the membership machine; changes the cluster's state and adds effects.
"""

from __future__ import annotations

from dtd.cluster import admission, branches, holding
from dtd.cluster import roster as choice
from dtd.cluster.coverage import covers
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState


def settle(cluster: ClusterState, job: Job, now: float) -> None:
    """Expel members that the others contradict, before a generation starts from their states."""
    for worker in [one for one in cluster.available() if _was_passed_over(job, one)]:
        _put_out(cluster, job, worker, job.start_step, now)
    ran = [worker for worker in cluster.available() if _ran(job, worker)]
    if not ran:
        return
    agreeing, denying = _agreeing(ran, job.rounds.begin(job.step), job.generation)
    newest = max(worker.holdings.prepared[1] for worker in agreeing)
    if denying:
        _tell_dispute(cluster, job, agreeing, denying)
    for worker in ran:
        if worker not in agreeing + denying:
            _put_out(cluster, job, worker, newest, now)
            job.step = min(job.step, newest)  # its report may have confirmed one step too many
    for worker in cluster.available():
        held = worker.holdings.held or choice.NOTHING_HELD
        known = held.generation == job.generation and held.where == "checkpoint"
        if known and held.step > newest:
            why = f"the members of that generation had got to step {newest} at most"
            holding.disbelieve(cluster, worker, why)
        worker.holdings.saved = tuple(
            one
            for one in worker.holdings.saved
            if one.generation != job.generation or one.step <= newest
        )


def _was_passed_over(job: Job, worker: Worker) -> bool:
    """Whether the worker left an earlier generation with a newer state than the newest began with.

    That cannot happen: the newest generation began with everything committed before (ADR 0006, B).
    """
    key, start = choice.held_key(worker), (job.start_generation, job.start_step)
    earlier = 0 < worker.holdings.frozen_in < job.generation and key[0] < job.generation
    if not (earlier and choice.in_memory(worker) and key > start):
        return False
    return not branches.is_left(key, branches.remembered(job.branches))


def _ran(job: Job, worker: Worker) -> bool:
    """Whether the worker left the newest generation with its starting state or a newer one."""
    start = (job.start_generation, job.start_step)
    left = worker.holdings.frozen_in == job.generation > 0 and choice.in_memory(worker)
    key = choice.held_key(worker)
    # One that was told to return to an older state, and has not done so, still holds the newer one.
    gone_back = branches.is_left(key, branches.remembered(job.branches))
    return left and not gone_back and max(key, worker.holdings.prepared) >= start


def _agreeing(ran: list[Worker], least: int, generation: int) -> tuple[list[Worker], list[Worker]]:
    """The largest group that can all be at one step, and who denies that step with equal right."""
    steps = {choice.held_key(worker)[1] for worker in ran}
    groups = {step: [one for one in ran if _can_stand_at(one, step)] for step in steps}
    best = max(steps, key=lambda step: (len(groups[step]), step >= least, -step))
    for step in sorted(step for step in steps if step > best):
        group, equal = groups[step], len(groups[step]) == len(groups[best])
        prepared = [one for one in group if choice.held_key(one)[1] < step]
        if equal and covers(prepared, (generation, step)):
            return group, [one for one in groups[best] if one not in group]
    return groups[best], []


def _can_stand_at(worker: Worker, step: int) -> bool:
    return choice.held_key(worker)[1] <= step <= worker.holdings.prepared[1]


def _tell_dispute(
    cluster: ClusterState, job: Job, agreeing: list[Worker], denying: list[Worker]
) -> None:
    """Tell once that two reports contradict each other, of which nobody knows the false one."""
    if cluster.trust.disputed == job.generation:
        return
    cluster.trust.disputed = job.generation
    step = max(choice.held_key(one)[1] for one in agreeing)
    less, more = (
        ", ".join(sorted((one.name for one in group), key=choice.natural_key))
        for group in (denying, [one for one in agreeing if choice.held_key(one)[1] == step])
    )
    cluster.incident(
        "report_contradicted",
        f"{more} has committed step {step}, and {less} says that it had not prepared it: one of"
        " these reports is false; the job goes on from that step, which the others have prepared",
        step=step,
    )


def _put_out(cluster: ClusterState, job: Job, worker: Worker, newest: int, now: float) -> None:
    why = (
        f"it says that it holds step {choice.held_key(worker)[1]} of generation {job.generation},"
        f" and the others had got to step {newest} at most, which cannot both be"
    )
    cluster.incident(
        "report_contradicted", f"{worker.name} starts afresh: {why}", worker=worker.name
    )
    cluster.trust.contradicted.add((worker.name, worker.incarnation))
    admission.expel(cluster, worker, why, now)
