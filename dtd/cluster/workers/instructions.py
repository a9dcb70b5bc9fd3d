"""The processor instructions with which a job's updates are computed, equal on all its workers.

Replicas stay equal because every rank computes the same update from the same averages.  torch
chooses the kernels of the update by what the processor can, and those for AVX2 round otherwise than
those for older processors.  So each worker registers its level, the job takes the lowest of those
that are there before it first trains, and PREPARE names it, before torch is imported.  Matrix
products are computed by libraries that choose for themselves: gradients may differ between ranks,
averages do not.

In a job with parameter servers only they compute updates, and workers copy the result.  So only the
servers have to agree, and workers use the best that they have.

Part of the membership machine.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE

LEVELS: Final = ("default", "avx2", "avx512")
"""From the lowest to the highest, as ATEN_CPU_CAPABILITY names them."""


def why_not(job: Job, worker: Worker) -> str:
    """Why a worker cannot compute this job's updates; empty if it can."""
    own, needed = worker.registration.instructions, needed_by(job, worker)
    if not own or not needed or not job.generation or _rank(own) >= _rank(needed):
        return ""
    return (
        f"{job.id} computes its updates with {needed} instructions, and this processor has {own}:"
        f" `dtdctl cancel {job.id}` and `dtdctl resume {job.id}` while this worker is connected,"
        " and the new job uses what all its workers have"
    )


def needed_by(job: Job, worker: Worker) -> str:
    """The level for PREPARE; empty: the worker's own, since it computes no update."""
    return job.instructions if _updates(job, worker) else ""


def _updates(job: Job, worker: Worker) -> bool:
    return worker.serves or not job.terms.has_servers


def settle(cluster: ClusterState, job: Job) -> list[Worker]:
    """Have the job take the lowest level of its workers, until it has trained; it never rises.

    Returns:
        Those that warm up, or have warmed up, for a higher one, and must begin again.
    """
    if job.generation:
        return []
    here = [
        one
        for one in cluster.workers.values()
        if one.state not in GONE and not one.foreign and _updates(job, one)
    ]
    levels = {one.registration.instructions for one in here} - {""}
    lowest, before = min(levels, key=_rank, default=""), job.instructions
    if not lowest or (before and _rank(lowest) >= _rank(before)):
        return []
    job.instructions = lowest
    if len(levels) > 1:
        has_it = min(one.name for one in here if one.registration.instructions == lowest)
        cluster.incident(
            "instructions_lowered",
            f"all compute updates with {lowest} instructions: {has_it} has no better",
            worker=has_it,
        )
    higher = [one for one in here if _rank(one.registration.instructions) > _rank(lowest)]
    return [one for one in higher if one.name in cluster.warming_since or one.holdings.warmed]


def _rank(level: str) -> int:
    """A level's place; one that this release does not know is taken for the lowest."""
    return LEVELS.index(level) if level in LEVELS else 0
