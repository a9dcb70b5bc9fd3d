"""Replicas that differ: whose memory counts no more, and when that is no accident.

All ranks compare their digests before a state is trusted, and leave the generation if they differ.
Members with the majority's state name one without (FROZEN, evidence "diverged"): it restarts.  If
no state has a majority they name nobody, and no memory of that generation counts; the job returns
to its newest checkpoint.  A difference that nobody has reported is found when the next generation
compares the states with which it begins.

A flipped bit will not flip again: the job passes the point.  A state that dtd does not know (an
optimizer that the task steps itself) differs again at the same step, in the same entry: then the
job fails.  Part of the membership machine; changes the cluster's state, adds effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dtd.cluster.events import SaveJob
from dtd.cluster.generation.states import in_memory
from dtd.cluster.records import Divergence, Job, Worker
from dtd.cluster.state import ClusterState
from dtd.wire import messages as m

DIVERGED: Final = "diverged"
MINORITY: Final = "its state differs from the majority's"
NO_MAJORITY: Final = "states differ, and none has a majority"
MAX_DIVERGENCES: Final = 4
"""This number of divergences without progress beyond the earliest ends the job."""


# --- reports -------------------------------------------------------------------------------------


def reported(cluster: ClusterState, message: m.Frozen) -> Worker | None:
    """Handle the report of a member that has seen states differ; returns the one that differs."""
    if message.evidence != DIVERGED:
        return None
    cluster.run.differed.append(message)
    suspect = cluster.workers.get(message.suspect)
    if suspect is not None:
        cluster.setbacks.dissenters.add((suspect.name, suspect.incarnation))
    return suspect


def settle(cluster: ClusterState, job: Job) -> str:
    """Note how states differed, once all have left the generation.

    Returns:
        Why to go on is pointless, as states differ again and again; empty when it is not.
    """
    without = [one for one in cluster.run.differed if not one.suspect]
    known = remembered(job.divergences)
    for one in without:
        known = noted(known, Divergence(one.generation, one.diverged_step, one.differs))
    if without:
        job.divergences = tuple(known)
        cluster.emit(SaveJob(job=job))
        hopeless = why_hopeless(known)
        if hopeless:
            return f"{hopeless}; {_fullest_reason(without)}"
    return _why_copies_differ(cluster, job)


def why_distrusted(cluster: ClusterState, job: Job, worker: Worker) -> str:
    """Why the state that a worker has brought from its generation does not count; or empty."""
    if not in_memory(worker):
        return ""
    if 0 < worker.holdings.frozen_in == last_generation(remembered(job.divergences)):
        return NO_MAJORITY
    differs = (worker.name, worker.incarnation) in cluster.setbacks.dissenters
    return MINORITY if differs else ""


def _why_copies_differ(cluster: ClusterState, job: Job) -> str:
    """Note that copied states differ at once; returns why that is not accidental, or empty.

    It is not if the job, which cannot go on without that worker, comes to the same point again.
    """
    run = cluster.run
    seen = [
        one
        for one in run.differed
        if one.suspect and one.suspect not in run.brought and one.diverged_step == job.start_step
    ]
    if not seen or not run.brought:
        return ""
    known = cluster.setbacks.copies_differed
    for one in seen:
        known = noted(known, Divergence(run.generation, job.start_step, one.differs))
    cluster.setbacks.copies_differed = known
    why = why_hopeless(known)
    return f"{why}; {_fullest_reason(seen)}" if why else ""


def _fullest_reason(reports: Sequence[m.Frozen]) -> str:
    """The first reason that names the entry, which those whose ring broke meanwhile do not know."""
    return max(reports, key=lambda one: one.differs != "").reason


# --- repetition ----------------------------------------------------------------------------------


def remembered(known: Sequence[Sequence[Any]]) -> list[Divergence]:
    """The divergences of a job's record, which may come from a file."""
    return [Divergence(int(one[0]), int(one[1]), str(one[2])) for one in known]


def noted(known: Sequence[Divergence], new: Divergence) -> list[Divergence]:
    """The divergences to keep: the job has passed earlier points.

    All members of a generation report the same; one whose ring broke first may not know the entry.
    """
    last = known[-1] if known else None
    if last is not None and last.generation == new.generation:
        return [*known[:-1], last if last.entry else new]
    return [*(one for one in known if one.step >= new.step), new]


def last_generation(known: Sequence[Divergence]) -> int:
    """The last generation in which states differed; 0: none."""
    return known[-1].generation if known else 0


def why_hopeless(known: Sequence[Divergence]) -> str:
    """Why continuing after the last of these is pointless; empty when it is not."""
    last = known[-1]
    where = f" after step {last.step}"
    if any((one.step, one.entry) == (last.step, last.entry) for one in known[:-1]):
        again = f", again in {last.entry}" if last.entry else ""
        return f"replicas differ again{where}{again}"
    if len(known) >= MAX_DIVERGENCES:
        return f"replicas have differed {len(known)} times, the last time{where}"
    return ""
