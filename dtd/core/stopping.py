"""A job that is to end while a generation of it is under way: within bounded time.

A cancelled job stops at its next step boundary, so that nothing is lost.  A step, or an evaluation,
that takes very long is broken off at last, and at once when the operator asks a second time; who
does not leave the ring even then is put out.  Part of the membership machine; changes the books,
adds effects.  What follows is `dtd.core.saving`.
"""

from __future__ import annotations

from typing import Final

from dtd.core import admission, ending
from dtd.core.books import ClusterState
from dtd.core.records import Job
from dtd.core.transitions import GenerationState, JobState, WorkerState

BOUNDARY_S: Final = 600.0
"""How long a job that is to end may take to its next step boundary."""
LEAVE_S: Final = 10.0
"""How much longer a member may take to leave a ring that was broken off."""


def hurry(books: ClusterState) -> None:
    """The operator does not want to wait for a step boundary.

    Who asks again and again does not give more time with that.
    """
    broken_off = books.ending.freeze_by is not None
    by = books.now + (LEAVE_S if broken_off else 0.0)
    books.ending.stop_by = by if books.ending.stop_by is None else min(books.ending.stop_by, by)


def advance(books: ClusterState, job: Job, now: float) -> None:
    """Break off a generation of a job that is to end, once it has had its time."""
    if job.state is not JobState.STOPPING or books.run.phase is GenerationState.NONE:
        books.ending.stop_by = None
        return
    if books.ending.stop_by is None:
        books.ending.stop_by = now + BOUNDARY_S
    if now < books.ending.stop_by:
        return
    if books.run.phase is not GenerationState.ENDING or books.ending.freeze_by is None:
        ending.end_now(books, "the job is to end, and no step boundary comes", now)
        books.ending.stop_by = now + LEAVE_S
        return
    for name in books.not_frozen():
        worker = books.workers[name]
        if worker.state is not WorkerState.FINISHED:
            admission.expel(books, worker, "it did not leave the ring of a job that is to end", now)
