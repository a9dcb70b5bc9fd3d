"""Answers requests about runs: comparisons, tags and notes."""

from __future__ import annotations

import asyncio
from typing import Any

from dtd.coordinator.handlers.api import CoordinatorApi, known_job
from dtd.errors import RequestRefused
from dtd.observe.comparison import MOST_POINTS, MOST_RUNS, Run, compare
from dtd.wire import messages as m


async def compare_jobs(coordinator: CoordinatorApi, request: m.CompareJobs) -> dict[str, Any]:
    """The answer to COMPARE_JOBS; made in a thread, since there may be thousands of points.

    Raises:
        RequestRefused: fewer than two jobs are named or too many, or one is not known, or a figure.
    """
    ids = tuple(dict.fromkeys(request.jobs))
    if not 2 <= len(ids) <= MOST_RUNS:
        raise RequestRefused(
            f"a comparison is of 2 to {MOST_RUNS} different jobs, not {len(ids)}",
            remedy="name them by their ids: dtdctl compare JOB JOB; see `dtdctl jobs`",
        )
    points = max(2, min(request.points, MOST_POINTS))
    runs = [await _run(coordinator, job_id, points) for job_id in ids]
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, compare, runs, request.names)


async def _run(coordinator: CoordinatorApi, job_id: str, points: int) -> Run:
    await known_job(coordinator, job_id)
    details = await coordinator.after_lines(coordinator.store.job_details, job_id)
    assert details is not None, "it was there a moment ago, and only this loop deletes jobs"
    found = await coordinator.history.answer(m.GetMetrics(job=job_id, points=points))
    return Run(details=details, series=found["series"])


async def annotate_job(coordinator: CoordinatorApi, request: m.AnnotateJob) -> dict[str, Any]:
    """Carry out ANNOTATE_JOB.

    Raises:
        RequestRefused: the job is not known, or a tag or the note is not valid.
    """
    await known_job(coordinator, request.job)
    changed = await coordinator.in_store(_annotate, coordinator, request)
    return {"job": request.job, **changed}


def _annotate(coordinator: CoordinatorApi, request: m.AnnotateJob) -> dict[str, Any]:
    """Change a job's tags and note; in the store's thread."""
    return coordinator.store.annotations.change(
        request.job,
        add=request.add,
        remove=request.remove,
        note=request.note if request.sets_note else None,
    )
