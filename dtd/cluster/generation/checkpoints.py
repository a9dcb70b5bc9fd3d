"""Checkpoints of the active job: what workers hold of them, agreed digests, and sharded parts.

All ranks compare the digest of a state before a checkpoint of it is published, and report it
(AGREED).  It is recorded with the job: a checkpoint with another digest was written from memory in
which a bit has flipped.  A sharded state is saved in parts: they count as a checkpoint once
together they cover [0, 1).  Its digest is that of its division among the ranks
(`dtd.engine.digests`), so several may be known for one state.  Part of the membership
machine; changes the cluster's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dtd.cluster.events import SaveJob
from dtd.cluster.generation import branches, states
from dtd.cluster.generation.states import NOTHING_HELD, copies, part_from
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.engine.shards import WHOLE, ShardSet
from dtd.wire import messages as m

VERIFIED: Final = "verified"
UNCONFIRMED: Final = "unconfirmed"
CONTRADICTED: Final = "contradicted"

MAX_CONFIRMED: Final = 128
"""Number of confirmed digests kept for a job, the newest ones."""

MAX_PARTS: Final = 8
"""Number of incomplete parts kept for each worker."""


class Confirmed(NamedTuple):
    """A state (generation, step) and the digest on which all ranks agreed."""

    generation: int
    step: int
    digest: str


def remembered(known: Iterable[Sequence[Any]]) -> tuple[Confirmed, ...]:
    """The confirmed digests in a job's record, which may have been read from the store."""
    return tuple(Confirmed(int(one[0]), int(one[1]), str(one[2])) for one in known)


def verdict(
    confirmed: Iterable[Confirmed], key: branches.Key, digest: str, *, sharded: bool = False
) -> str:
    """Compare a checkpoint's digest with the confirmed one, if there is one for its state.

    Args:
        confirmed: of the job.
        key: of the checkpoint's state.
        digest: of the checkpoint.
        sharded: whether the state is divided: an unknown digest may be that of another division.
    """
    known = {one.digest for one in confirmed if (one.generation, one.step) == key}
    if digest in known:
        return VERIFIED
    return CONTRADICTED if known and not sharded else UNCONFIRMED


def agreed(cluster: ClusterState, job: Job, message: m.Agreed) -> None:
    """Handle AGREED: all ranks have this digest of a state."""
    key, known = (message.generation, message.step), remembered(job.agreed)
    of_it = {one.digest for one in known if (one.generation, one.step) == key}
    if message.digest in of_it or (of_it and not job.terms.sharded):
        return
    job.agreed = (*known, Confirmed(*key, message.digest))[-MAX_CONFIRMED:]
    if key == (job.checkpoint_generation, job.checkpoint_step):
        cluster.emit(SaveJob(job=job))  # otherwise saved with a later change


def saved(cluster: ClusterState, job: Job, name: str, message: m.CheckpointSaved) -> None:
    """Handle a worker's CHECKPOINT_SAVED."""
    key = (message.generation, message.step)
    known, sharded = remembered(job.agreed), job.terms.sharded
    if verdict(known, key, message.digest, sharded=sharded) == CONTRADICTED:
        cluster.incident(
            "checkpoint_contradicted",
            f"{name} says that it saved step {message.step} with digest {message.digest}, and the"
            " ranks agreed on another one",
            worker=name,
            step=message.step,
        )
        if cluster.saving is not None:
            cluster.saving.contradicts(name, cluster.now)
        return
    if sharded:
        _note_part(job, name, message)
    if cluster.saving is not None:
        cluster.saving.answered(name)
    _counts(cluster, job, name, key)


def _counts(cluster: ClusterState, job: Job, name: str, newest: branches.Key) -> None:
    """Update the holders of the newest complete checkpoint; those of left branches rank last."""
    known = (job.checkpoint_generation, job.checkpoint_step)
    if newest != known and _rank(job, newest) <= _rank(job, known):
        return  # nothing new; a needless write would delay the next generation
    holders = {name, *(job.checkpoint_holders if newest == known else ())}
    if job.terms.sharded:
        found = parts_at(job, newest)
        if copies(found.values()) == 0:
            return  # a part of it alone is no checkpoint
        holders = set(found)
    if newest == known and holders == set(job.checkpoint_holders):
        return
    job.checkpoint_generation, job.checkpoint_step = newest
    job.checkpoint_holders = tuple(sorted(holders))
    job.parts = tuple(one for one in job.parts if _rank(job, key_of(one)) >= _rank(job, newest))
    cluster.emit(SaveJob(job=job))


def _rank(job: Job, key: branches.Key) -> tuple[bool, branches.Key]:
    return not branches.is_left(key, branches.remembered(job.branches)), key


# --- the parts of sharded checkpoints ------------------------------------------------------------


def key_of(entry: Sequence[Any]) -> branches.Key:
    """The key of an entry of a job's record: [generation, step, worker, shards]."""
    return int(entry[0]), int(entry[1])


def parts_at(job: Job, key: branches.Key) -> dict[str, ShardSet]:
    """The parts of the checkpoint with this key that workers have written, by worker."""
    return {
        str(one[2]): part_from(tuple(map(int, one[3]))) for one in job.parts if key_of(one) == key
    }


def written(job: Job, key: branches.Key) -> dict[str, ShardSet]:
    """Return published parts of the state with this key, or of a newer one, by worker."""
    saved = (job.checkpoint_generation, job.checkpoint_step)
    if saved >= key and branches.saved_step(job):
        if not job.terms.sharded:
            return dict.fromkeys(job.checkpoint_holders, WHOLE)
        return parts_at(job, saved)
    return parts_at(job, key)


def _note_part(job: Job, name: str, message: m.CheckpointSaved) -> None:
    """Record which shards a worker's checkpoint has; one part for each worker and state counts."""
    key, part = (message.generation, message.step), part_from(message.part)
    others = [one for one in job.parts if (key_of(one), one[2]) != (key, name)]
    mine = [one for one in others if one[2] == name][-MAX_PARTS + 1 :]
    kept = [one for one in others if one[2] != name or one in mine]
    if part:
        job.parts = (*kept, (*key, name, tuple(part.to_wire())))


def left(job: Job, worker: Worker, message: m.Frozen | m.Finished) -> None:
    """A worker has left a generation and reports its state."""
    held = states.held_by(message)
    if held.where != "memory":
        held = _on_disk(job, held)
    worker.holdings.held, worker.holdings.frozen_in = held, message.generation
    worker.holdings.prepared = states.held_key(worker)
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
    known = remembered(job.agreed)
    said = verdict(known, key, held.digest, sharded=job.terms.sharded)
    return said != CONTRADICTED
