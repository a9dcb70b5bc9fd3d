"""Jobs as JSON in the store's file; fields that are missing have their defaults.

Pure.  A file may come from an older or a newer dtd: fields that it lacks have their defaults, those
that are not known here are passed over.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from dtd import job as jobs
from dtd.cluster.figures import finite
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.errors import JobSpecError

_STORED: Final = {field.name: field for field in fields(Job) if field.init}
"""Fields that are not read from the specification again."""


def job_body(job: Job) -> dict[str, Any]:
    """A job as JSON can hold it; a snapshot, safe to hand to another thread.

    A loss that is not finite is null: not every SQLite and no other reader takes NaN for JSON.
    """
    body = {name: getattr(job, name) for name in _STORED}
    return {**{name: finite(value) for name, value in body.items()}, "state": job.state.value}


def job_from_body(body: dict[str, Any]) -> Job:
    """The job that `job_body` was made of."""
    known = {name: body[name] for name in _STORED if name in body}
    for name, field in _STORED.items():
        if name in known and isinstance(field.default, tuple):
            known[name] = tuple(known[name])
    return Job(**{**known, "state": JobState(body["state"])})


def completed(job: Job) -> Job:
    """The job with every key of its spec that this dtd knows.

    A spec that this dtd refuses stays as it is: a worker that warms up for it says why.
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
        "task": job.terms.task,
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
    """Return the details of `dtdctl show` besides a job's row."""
    job = job_from_body(body)
    return {
        "spec": completed(job).spec,
        "package": job.package,
        "from_job": job.from_job,
        "from_step": job.from_step,
        "from_mode": job.from_mode,
        "from_newest": job.from_newest,
        "weights": job.weights,
        "strict": job.strict,
        "epoch": job.epoch,
        "world_size": job.world_size,
        "workers": list(job.roster),
        "steps_lost": job.steps_lost,
        "skipped_steps": job.skipped_steps,
        "metrics": job.metrics,
        "dataset_rows": job.dataset_rows,
        "dataset_fingerprint": job.dataset_fingerprint,
        "task_digest": job.task_digest,
        "environment": job.environment,
    }
