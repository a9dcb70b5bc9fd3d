"""Records what workers report to hold: the newest state, and parts of checkpoints beside it.

Part of the membership machine; changes the cluster's state.
"""

from __future__ import annotations

from dtd.cluster import checkpoints
from dtd.cluster import roster as choice
from dtd.cluster.coverage import NOTHING_HELD
from dtd.cluster.records import Job, Worker
from dtd.wire import messages as m


def left(job: Job, worker: Worker, message: m.Frozen | m.Finished) -> None:
    """A worker has left a generation and reports its state."""
    held = choice.held_by(message)
    if held.where != "memory":
        held = _on_disk(job, held)
    worker.holdings.held, worker.holdings.frozen_in = held, message.generation
    worker.holdings.prepared = choice.held_key(worker)
    if isinstance(message, m.Frozen):
        worker.holdings.saved = _saved(job, message.held[1:])
        worker.holdings.prepared = (message.prepared_generation, message.prepared_step)


def warmed_up(job: Job, worker: Worker, message: m.Warmed) -> None:
    """A worker has warmed up and reports what is on its disk."""
    worker.holdings.held = _on_disk(job, message.held[0] if message.held else NOTHING_HELD)
    worker.holdings.saved = _saved(job, message.held[1:])


def _on_disk(job: Job, held: m.Held) -> m.Held:
    """The checkpoint that a worker reports as its newest state, if the job can use it."""
    return held if held.where == "checkpoint" and _is_usable(job, held) else NOTHING_HELD


def _saved(job: Job, reported: tuple[m.Held, ...]) -> tuple[m.Held, ...]:
    """The checkpoints beside the newest state, of which a sharded job can use parts."""
    if not job.terms.sharded:
        return ()
    checkpoints_ = (one for one in reported if one.where == "checkpoint" and one.job == job.id)
    return tuple(one for one in checkpoints_ if _is_usable(job, one))


def _is_usable(job: Job, held: m.Held) -> bool:
    """Whether a checkpoint is the job's own and undamaged, or one with which it can still begin."""
    key = (held.generation, held.step)
    if held.job != job.id:
        start = (job.start_generation, job.start_step)
        return held.job == job.from_job and not key > start > (0, 0)
    known = checkpoints.remembered(job.agreed)
    said = checkpoints.verdict(known, key, held.digest, sharded=job.terms.sharded)
    return said != checkpoints.CONTRADICTED
