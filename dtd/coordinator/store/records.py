"""Jobs as the store's file holds them: JSON, read with the defaults of what it does not have.

Pure.  A file may come from an older or a newer dtd: fields that it lacks have their defaults, those
that are not known here are passed over.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from dtd import job as jobs
from dtd.core.membership.records import Job
from dtd.core.membership.transitions import JobState
from dtd.core.observe.figures import finite
from dtd.errors import JobSpecError


def job_body(job: Job) -> dict[str, Any]:
    """A job as JSON can hold it; a snapshot, safe to hand to another thread.

    A loss that is not finite is null: not every SQLite and no other reader takes NaN for JSON.
    """
    body = {field.name: getattr(job, field.name) for field in fields(Job)}
    return {**{name: finite(value) for name, value in body.items()}, "state": job.state.value}


def job_from_body(body: dict[str, Any]) -> Job:
    """The job that `job_body` was made of."""
    known = {field.name: body[field.name] for field in fields(Job) if field.name in body}
    for field in fields(Job):
        if field.name in known and isinstance(field.default, tuple):
            known[field.name] = tuple(known[field.name])
    return Job(**{**known, "state": JobState(body["state"])})


def completed(job: Job) -> Job:
    """The job with every key of its spec that this dtd knows.

    A spec that this dtd refuses stays as it is: whoever warms up for it says why.
    """
    try:
        spec = jobs.to_mapping(jobs.from_mapping(job.spec, source=job.id))
    except JobSpecError:
        return job
    return replace(job, spec=spec)


def job_row(
    body: dict[str, Any], submitted_s: float, started_s: float | None, ended_s: float | None
) -> dict[str, Any]:
    """A job as `dtdctl jobs` shows it."""
    job = job_from_body(body)
    return {
        "id": job.id,
        "name": job.name,
        "identity": job.identity,
        "task": job.spec["job"]["task"],
        "state": job.state.value,
        "submitted_s": submitted_s,
        "started_s": started_s,
        "ended_s": ended_s,
        "step": job.step,
        "total_steps": job.total_steps,
        "generation": job.generation,
        "reason": job.reason,
        "result": job.result,
    }


def job_details(body: dict[str, Any]) -> dict[str, Any]:
    """What `dtdctl show` tells of a job besides its row."""
    job = job_from_body(body)
    return {
        "spec": completed(job).spec,
        "package": job.package,
        "from_job": job.from_job,
        "from_step": job.from_step,
        "from_mode": job.from_mode,
        "weights": job.weights,
        "epoch": job.epoch,
        "world_size": job.world_size,
        "workers": list(job.roster),
        "steps_lost": job.steps_lost,
        "skipped_steps": job.skipped_steps,
        "metrics": job.metrics,
        "dataset_rows": job.dataset_rows,
        "dataset_fingerprint": job.dataset_fingerprint,
        "task_digest": job.task_digest,
    }
