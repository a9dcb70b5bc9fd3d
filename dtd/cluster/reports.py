"""The one check of a worker's message: its form, and that what it is about is not over.

A member is honest, so nothing here asks whether a report is true.  A report of another job than the
active one, of an older generation, or of a worker that takes no part any more is ignored.  Pure;
`dtd.cluster` acts on the reports that count, and the shell asks before it stores or shows any.
"""

from __future__ import annotations

from typing import Any, Final

from dtd.cluster.records import Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import MEMBERS, WorkerState
from dtd.engine.shards import ShardSet
from dtd.wire import messages as m

_OF_THE_JOB: Final = (m.Warmed, m.Failed, m.Notice, m.Agreed)
_OF_A_MEMBER: Final = (m.Running, m.Frozen, m.Finished)
_FIGURES: Final = (m.Progress, m.Evaluated)
_ALWAYS: Final = (m.Heartbeat, m.JobOutput, m.CheckpointSaved)
"""They may come generations later, or after the job's end."""


def check_form(message: m.Message) -> None:
    """Check what the fields' own kinds do not: that parts of a state are sets of shards.

    Raises:
        ProtocolError: a part is none.
    """
    if isinstance(message, m.Frozen | m.Warmed):
        for held in message.held:
            ShardSet.from_wire(held.part)
    elif isinstance(message, m.Finished | m.CheckpointSaved):
        ShardSet.from_wire(message.part)


def counts(cluster: ClusterState, name: str, message: Any) -> bool:
    """Whether a worker's report concerns its present work."""
    known = (*_OF_THE_JOB, *_OF_A_MEMBER, *_FIGURES, *_ALWAYS)
    if not isinstance(message, known):
        return True  # the answer to a request, or about the sender alone
    worker = cluster.workers.get(name)
    if worker is None:  # it was rejected, and has not read the rejection yet
        return False
    if worker.stray:
        return isinstance(message, m.Heartbeat)
    if isinstance(message, _ALWAYS):
        return True
    if cluster.job is None or cluster.job.id != message.job:
        return False
    if isinstance(message, _OF_A_MEMBER):
        return _of_a_member(cluster, worker, message)
    if isinstance(message, m.Progress) and message.generation != worker.generation:
        return False
    return not isinstance(message, _FIGURES) or _takes_part(cluster, worker)


def _of_a_member(
    cluster: ClusterState, worker: Worker, message: m.Running | m.Frozen | m.Finished
) -> bool:
    """Whether a member, or one that was called back, reports of its newest generation."""
    called_back = worker.state is WorkerState.WARMING and worker.reconnection.returning
    if message.generation != worker.generation or not (worker.state in MEMBERS or called_back):
        return False
    if not isinstance(message, m.Running):
        return True
    return worker.state is WorkerState.FORMING and message.generation == cluster.run.generation


def _takes_part(cluster: ClusterState, worker: Worker) -> bool:
    """Whether the worker trains in the newest generation, or in one that may be the newest."""
    in_doubt = cluster.job is not None and cluster.job.in_doubt
    return worker.state in MEMBERS or (worker.reconnection.returning and in_doubt)
