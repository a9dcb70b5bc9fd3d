"""Members that leave one generation and cannot all be right: nobody is more than a step ahead.

Who has committed step s+1 has seen that all ranks had prepared it (ADR 0006, A).  So there is a
step that everybody who ran in a generation holds, or could commit.  If there is none, somebody
lies, or its memory is spoilt: those stay who agree with most, and of equally many those who claim
least, but not less than two members have told of.  The others start afresh, and what that process
holds counts no more.  Part of the membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from dtd.core.membership import admission, branches
from dtd.core.membership import roster as choice
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState


def settle(books: ClusterState, job: Job, now: float) -> None:
    """Put out whom the others contradict, before what it holds is started from."""
    for worker in [one for one in books.available() if _was_passed_over(job, one)]:
        _put_out(books, job, worker, job.start_step, now)
    ran = [worker for worker in books.available() if _ran(job, worker)]
    if not ran:
        return
    agreeing = _agreeing(ran, job.step - 1)
    newest = max(worker.holdings.prepared[1] for worker in agreeing)
    for worker in ran:
        if worker not in agreeing:
            _put_out(books, job, worker, newest, now)
            job.step = min(job.step, newest)  # its word may have borne out one step too many
    for worker in books.available():
        held = worker.holdings.held or choice.NOTHING_HELD
        known = held.generation == job.generation and held.where == "checkpoint"
        if known and held.step > newest:
            why = f"the members of that generation had got to step {newest} at most"
            admission.disbelieve(books, worker, why)


def _was_passed_over(job: Job, worker: Worker) -> bool:
    """It left an earlier generation with more than the newest began with, which has it all (B)."""
    key, start = choice.held_key(worker), (job.start_generation, job.start_step)
    earlier = 0 < worker.holdings.frozen_in < job.generation and key[0] < job.generation
    if not (earlier and choice.in_memory(worker) and key > start):
        return False
    return not branches.is_left(key, branches.remembered(job.branches))


def _ran(job: Job, worker: Worker) -> bool:
    """It left the newest generation with what that began with, or more."""
    start = (job.start_generation, job.start_step)
    left = worker.holdings.frozen_in == job.generation > 0 and choice.in_memory(worker)
    return left and max(choice.held_key(worker), worker.holdings.prepared) >= start


def _agreeing(ran: list[Worker], least: int) -> list[Worker]:
    """Those who can all stand at one step: as many as possible."""
    steps = {choice.held_key(worker)[1] for worker in ran}
    groups = {step: [one for one in ran if _can_stand_at(one, step)] for step in steps}
    return groups[max(steps, key=lambda step: (len(groups[step]), step >= least, -step))]


def _can_stand_at(worker: Worker, step: int) -> bool:
    return choice.held_key(worker)[1] <= step <= worker.holdings.prepared[1]


def _put_out(books: ClusterState, job: Job, worker: Worker, newest: int, now: float) -> None:
    why = (
        f"it says that it holds step {choice.held_key(worker)[1]} of generation {job.generation},"
        f" and the others had got to step {newest} at most, which cannot both be"
    )
    books.incident("report_contradicted", f"{worker.name} starts afresh: {why}", worker=worker.name)
    books.trust.contradicted.add((worker.name, worker.incarnation))
    admission.expel(books, worker, why, now)
