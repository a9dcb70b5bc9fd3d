"""Members whose training thread is stuck, as they report of themselves with every heartbeat.

How a thread's progress is measured is in `dtd.cluster.workers.progress`.  A stuck worker that
others wait for restarts at once.  But a cause that affects all alike, such as hanging storage, is
no worker's fault; and one of the last holders of the newest state is never evicted, since its
memory would be lost: then an event tells the operator, who alone can give it up.  Part of the
membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dtd.cluster.generation import branches, ending, states
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import MEMBERS, JobState, WorkerState
from dtd.cluster.workers import admission, isolation
from dtd.cluster.workers.progress import TELL_AFTER_S
from dtd.engine.shards import NOTHING, ShardSet, united
from dtd.text.names import natural_key
from dtd.wire import messages as m

ALIKE: Final = 0.5
"""Two workers are stuck alike if one is stuck for at least this part of the other's time."""

ALIKE_PATIENCE_S: Final = 60.0
"""Extra seconds that several may be stuck alike where no state depends on them."""

_HERE: Final = MEMBERS - {WorkerState.DISCONNECTED} | {WorkerState.FROZEN}

MOST_LIMITS: Final = 10.0
"""Maximum time given to a worker's thread, in multiples of the longest limit of its job."""

LOOK_AGAIN_S: Final = 1.0
"""Interval of checks of members that have not frozen in time but make progress."""


def is_stuck(beat: m.Heartbeat | None) -> bool:
    """Whether the worker itself reports that it is stuck."""
    return beat is not None and 0 < beat.patience_s < beat.stalled_s


def makes_progress(beat: m.Heartbeat | None) -> bool:
    """Whether its thread makes progress: it neither waits for its ring nor is stuck."""
    return beat is not None and 0 < beat.stalled_s <= beat.patience_s


def judge(cluster: ClusterState, job: Job, worker: Worker) -> None:
    """Judge a member's heartbeat: whether it is stuck, and whether to restart it."""
    beat = worker.liveness.heartbeat
    if beat is not None and beat.generation == cluster.run.generation and is_stuck(beat):
        _give_up(cluster, job, worker, why_stuck(beat))
    elif cluster.ending.freeze_by is None or makes_progress(beat):
        # Otherwise it has been asked to freeze, and has not done so yet.
        forgive(cluster, worker)


def forgive(cluster: ClusterState, worker: Worker) -> None:
    """Record that it is no longer stuck, or has frozen."""
    if worker.liveness.kept:
        text = f"{worker.name} makes progress again"
        cluster.incident("training_goes_on", text, worker=worker.name)
    worker.liveness.makes_progress()


def give_up_late(cluster: ClusterState, job: Job) -> None:
    """Evict members that have not frozen in time, except those that visibly make progress."""
    late = [cluster.workers[name] for name in cluster.not_frozen()]
    for worker in [one for one in late if _is_late(cluster, one)]:
        why = "it did not freeze in time: its training thread does not respond"
        _give_up(cluster, job, worker, why)
    assert cluster.ending.freeze_by is not None, "nobody was asked to freeze by now"
    cluster.ending.freeze_by = max(cluster.ending.freeze_by, cluster.now + LOOK_AGAIN_S)


def _is_late(cluster: ClusterState, worker: Worker) -> bool:
    """Whether it should have frozen and makes no progress; stuck workers are judged separately.

    A member that does not know the generation yet is not late: its assignment is still waiting for
    the coordinator's disk.
    """
    beat = worker.liveness.heartbeat
    knows = beat is None or _is_of(cluster, beat)
    return (
        cluster.ending.freeze_by is not None
        and cluster.now >= cluster.ending.freeze_by
        and worker.state in MEMBERS - {WorkerState.FINISHED}
        and knows
        and not (makes_progress(beat) or is_stuck(beat))
    )


def _is_of(cluster: ClusterState, beat: m.Heartbeat) -> bool:
    return beat.generation == cluster.run.generation


def give_up_returning(cluster: ClusterState, job: Job) -> None:
    """Evict workers that came back, stay in an old generation, and make no progress."""
    for name, since in list(cluster.warming_since.items()):
        worker = cluster.workers[name]
        late = cluster.now - since > ending.freeze_patience_s(worker)
        hangs = not makes_progress(worker.liveness.heartbeat)
        hangs |= cluster.now - since > MOST_LIMITS * job.terms.longest_limit_s
        if worker.reconnection.returning and late and hangs:
            _give_up(cluster, job, worker, "came back and did not freeze: its training hangs")


def _give_up(cluster: ClusterState, job: Job, worker: Worker, why: str) -> None:
    if worker.liveness.stuck_since is None:
        worker.liveness.stuck_since = cluster.now
    kept = _why_kept(cluster, job, worker)
    if not kept:
        worker.liveness.kept = ""
        if worker.name in isolation.blamed(cluster, job, job.step):
            isolation.keep_away(cluster, job, worker, why)
        admission.expel(cluster, worker, why)
        return
    if not worker.liveness.kept:
        text = f"{worker.name}: {why}; it is kept, since {kept}"
        cluster.incident("training_stalled", text, worker=worker.name, step=job.step)
    worker.liveness.kept = kept


def why_stuck(beat: m.Heartbeat) -> str:
    """Describe a stuck thread."""
    where = f" in {beat.where}" if beat.where else ""
    limit = beat.evidence or f"limit {beat.patience_s:.1f} s"
    return f"its training thread has been stuck{where} for {beat.stalled_s:.1f} s ({limit})"


def why_late(worker: Worker) -> str:
    """Why the job waits for a worker, in words."""
    beat = worker.liveness.heartbeat
    if beat is None or not is_stuck(beat):
        return "its training thread does not respond"
    return why_stuck(beat)


# --- needed workers --------------------------------------------------------------------------


def _why_kept(cluster: ClusterState, job: Job, worker: Worker) -> str:
    """Why a stuck worker is not evicted; empty when it is."""
    unfinished = job.verdict != JobState.DONE.value
    if job.state is JobState.STOPPING or (job.state is JobState.SAVING and unfinished):
        return ""  # the operator wants the job to end
    others = [one for one in cluster.members() if one is not worker and one.state in _HERE]
    alike = [one.name for one in others if _stands_alike(cluster, worker, one)]
    if not _is_spare(cluster, job, worker, alike):
        return f"no other worker that makes progress holds step {job.step}"
    if worker.reconnection.returning or (others and not alike):
        return ""
    if (
        worker.liveness.stuck_since is None
        or cluster.now - worker.liveness.stuck_since < ALIKE_PATIENCE_S
    ):
        return f"{', '.join(alike)} are stuck alike" if alike else "no worker waits for it"
    return ""


def _is_spare(cluster: ClusterState, job: Job, worker: Worker, alike: Collection[str]) -> bool:
    """Whether no committed step is lost with it: others, or a disk, hold them all."""
    beat = worker.liveness.heartbeat
    step = max(job.step, beat.step if beat is not None else 0)
    if step <= branches.saved_step(job) or not cluster.remembers(job, worker):
        return True
    heirs = (one for one in cluster.workers.values() if one is not worker and one.name not in alike)
    return united(_remembered_part(cluster, job, one) for one in heirs).is_whole


def _remembered_part(cluster: ClusterState, job: Job, worker: Worker) -> ShardSet:
    """Return the shards of the newest state that it has in memory, as far as is known."""
    if worker.reconnection.returning or not cluster.remembers(job, worker):
        return NOTHING
    if worker.state in (WorkerState.RUNNING, WorkerState.FINISHED):
        return states.assigned_part(job, worker.name)
    return states.part_of(worker.holdings.held)


def _stands_alike(cluster: ClusterState, worker: Worker, other: Worker) -> bool:
    """Whether another member has been stuck for about as long.

    Both count all seconds of their stall in which nothing moved, so that a flicker of activity on
    one of them makes nobody stuck alone.
    """
    one, two = worker.liveness.heartbeat, other.liveness.heartbeat
    if one is None or two is None or two.generation != cluster.run.generation:
        return False
    if one.still_s >= TELL_AFTER_S:
        return two.still_s >= ALIKE * one.still_s
    return 0 < ALIKE * one.stalled_s <= two.stalled_s


def explain(cluster: ClusterState) -> str:
    """The stuck workers for which the job waits, in words; empty if there are none."""
    kept = [worker for worker in cluster.workers.values() if worker.liveness.kept]
    if not kept:
        return ""
    names = ", ".join(sorted((worker.name for worker in kept), key=natural_key))
    first = min(kept, key=lambda worker: natural_key(worker.name))
    job = cluster.job.id if cluster.job is not None else ""
    return (
        f"waiting for {names}, kept since {first.liveness.kept}; {first.name}: {why_late(first)};"
        f" `dtdctl kill-worker {first.name}` gives it up, `dtdctl cancel {job}` ends the job"
    )
