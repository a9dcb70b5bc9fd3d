"""Operators' requests that change jobs and workers; the core accepts or refuses them.

An answer is given when everything decided is written down.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from dtd import job
from dtd.checkpoint.choice import complete
from dtd.cluster.events import (
    CancelRequested,
    DeleteRequested,
    DrainRequested,
    KillRequested,
    ResumeRequested,
    Submitted,
)
from dtd.cluster.generation.checkpoints import CONTRADICTED
from dtd.cluster.records import Job
from dtd.cluster.transitions import ENDED, JobState
from dtd.cluster.workers.admission import what_to_prepare
from dtd.coordinator.core import Core
from dtd.coordinator.services.audit import Caller
from dtd.coordinator.services.models import ModelRegistry
from dtd.errors import RequestRefused
from dtd.job.differences import Difference, differences, obstacles, shown_value
from dtd.job.terms import identity_of
from dtd.observe.recorder import MetricsRecorder
from dtd.observe.sinks.entries import curves_of
from dtd.wire import messages as m
from dtd.wire.frames import MAX_HEADER_BYTES

log = structlog.get_logger()

SIGNALS: Final = ("KILL", "TERM", "STOP")
RESUME: Final = "resume"
WEIGHTS: Final = "weights"
MODES: Final = (RESUME, WEIGHTS)


async def submit(core: Core, request: m.SubmitJob) -> dict[str, Any]:
    """Queue a job."""
    read = functools.partial(job.from_mapping, request.spec, source="submitted job")
    spec = await asyncio.get_running_loop().run_in_executor(None, read)
    _check_encryption(core, spec)
    await core.packages.check(request.package)
    await core.weights.check(request.weights)
    if request.weights and request.from_job:
        raise RequestRefused("a job starts either from another job or from a file of weights")
    origin, begins = await _origin(core, request, spec) if request.from_job else ({}, {})
    job_id = core.new_job_id(spec.job.name)
    settings = job.to_mapping(spec)
    submitted = Job(
        id=job_id,
        spec=settings,
        identity=identity_of(core.store_id, int(time.time()), job_id, settings),
        package=request.package,
        weights=request.weights,
        strict=request.strict,
        **origin,
    )
    _check_size(submitted)
    core.handle(Submitted(job=submitted))
    await core.settled()
    return {"job": job_id, **begins}


async def _origin(
    core: Core, request: m.SubmitJob, spec: job.JobSpec
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a job that starts from another one, and those of the answer."""
    parent = await core.known_job(request.from_job)
    mode = origin_mode(request.from_mode, parent["state"])
    step = await _starting_step(core, request)
    differs = differences(parent["spec"], job.to_mapping(spec))
    if mode == RESUME:
        check_same_course(differs, request.from_job)
        _ends_later(spec, step, parent)
    origin = {
        "from_identity": parent["identity"],
        "from_job": request.from_job,
        "from_step": request.from_step,
        "from_newest": 0 if request.from_step else step,
        "from_mode": mode,
    }
    return origin, {
        "from_mode": mode,
        "from_step": step,
        "differs": [list(one) for one in differs],
    }


async def wait(core: Core, _caller: Caller, request: m.WaitJob) -> dict[str, Any]:
    """Answer WAIT_JOB when the job has ended."""
    known = await core.known_job(request.job)
    if known["state"] in ENDED:
        await core.settled()  # so that the status tells the same
        return {"job": request.job, **{key: known[key] for key in ("state", "reason", "result")}}
    ended = await core.end_of(request.job)
    return {
        "job": ended.id,
        "state": ended.state.value,
        "reason": ended.reason,
        "result": ended.result,
    }


async def cancel(core: Core, _caller: Caller, request: m.CancelJob) -> dict[str, Any]:
    """Answer CANCEL_JOB."""
    await core.known_job(request.job)
    core.handle(CancelRequested(job=request.job))
    return await _settled_state(core, request.job)


async def resume(core: Core, _caller: Caller, request: m.ResumeJob) -> dict[str, Any]:
    """Answer RESUME_JOB."""
    await core.known_job(request.job)
    core.handle(ResumeRequested(job=request.job))
    return await _settled_state(core, request.job)


async def kill(core: Core, _caller: Caller, request: m.KillWorker) -> dict[str, Any]:
    """Answer KILL_WORKER."""
    if request.signal not in SIGNALS:
        raise RequestRefused(
            f"signal {request.signal!r} cannot be sent", remedy=f"one of {', '.join(SIGNALS)}"
        )
    core.handle(KillRequested(name=request.name, signal=request.signal))
    worker = core.membership.cluster_of(request.name).workers[request.name]
    return {"name": request.name, "pid": worker.registration.pid, "signal": request.signal}


async def drain(core: Core, _caller: Caller, request: m.DrainWorker) -> dict[str, Any]:
    """Answer DRAIN_WORKER."""
    core.handle(DrainRequested(name=request.name))
    return {"name": request.name}


async def annotate(core: Core, _caller: Caller, request: m.AnnotateJob) -> dict[str, Any]:
    """Answer ANNOTATE_JOB: change a job's tags and note."""
    await core.known_job(request.job)
    change = functools.partial(
        core.store.annotations.change,
        request.job,
        add=request.add,
        remove=request.remove,
        note=request.note if request.sets_note else None,
    )
    return {"job": request.job, **await core.in_store(change)}


async def _settled_state(core: Core, job_id: str) -> dict[str, Any]:
    await core.settled()
    return {"job": job_id, "state": (await core.known_job(job_id))["state"]}


def _check_encryption(core: Core, spec: job.JobSpec) -> None:
    if spec.sync.encryption == "tls" and core.port.authority is None:
        raise RequestRefused(
            "[sync] encryption: this coordinator serves its own host only, where workers have"
            " no credentials",
            remedy="remove it, or start the coordinator with --listen HOST:PORT",
        )


async def _starting_step(core: Core, request: m.SubmitJob) -> int:
    """Steps in the checkpoint that the job starts from."""
    listed = await core.in_store(core.store.checkpoints, request.from_job)
    found = complete([one for one in listed if one["confirmation"] != CONTRADICTED])
    steps = sorted({group[0]["step"] for group in found})
    if not steps:
        but = ", except ones that all ranks contradict or of which parts lack" if listed else ""
        raise RequestRefused(
            f"job {request.from_job} has no checkpoint{but}",
            remedy=f"start from the beginning with: dtdctl submit --like {request.from_job}",
        )
    if request.from_step and request.from_step not in steps:
        raise RequestRefused(
            f"job {request.from_job} has no checkpoint of step {request.from_step}",
            remedy=f"kept steps: {', '.join(map(str, steps))}",
        )
    return request.from_step or int(found[0][0]["step"])


def _check_size(submitted: Job) -> None:
    """Refuse a job that no message can carry: once stored it would fail at its first worker."""
    size = len(m.encode_header(what_to_prepare(submitted)))
    if size > MAX_HEADER_BYTES:
        raise RequestRefused(
            f"the job takes {size} bytes in a message to a worker; the limit is {MAX_HEADER_BYTES}",
            remedy="shorten its tables, [task] above all: put a long list into a file",
        )


def _ends_later(spec: job.JobSpec, step: int, parent: dict[str, Any]) -> None:
    """A job must not start past its end; where only its workers know the end, they refuse it.

    Its epochs are as long as those of a parent whose state it can take over.
    """
    before, key = parent["spec"]["job"], "job.steps" if spec.job.steps is not None else "job.epochs"
    steps = spec.job.steps
    if steps is None and spec.job.epochs and before.get("epochs"):
        steps = parent["total_steps"] * spec.job.epochs // before["epochs"]
    if steps and step > steps:
        raise RequestRefused(
            f"the checkpoint of job {parent['id']} has {step} steps, and this job ends after"
            f" {steps}",
            remedy=f"raise {key}, or name an earlier checkpoint: dtdctl submit --like"
            f" {parent['id']} --resume-from {parent['id']}@STEP",
        )


# --- what a job takes over from another one -----------------------------------------------------
#
# This compares the two jobs' settings only; the workers find out whether the state fits the model.


def origin_mode(asked: str, parent_state: str) -> str:
    """Whether all is taken over or the weights only: unless asked, those of a job that is done."""
    if asked and asked not in MODES:
        raise RequestRefused(f"{asked!r} is not one of {', '.join(MODES)}")
    return asked or (WEIGHTS if parent_state == JobState.DONE else RESUME)


def check_same_course(differs: Sequence[Difference], parent: str) -> None:
    """Refuse to take a whole state over with settings that would change the course of training."""
    found = obstacles(differs)
    if found:
        named = ", ".join(
            f"{setting} = {shown_value(now)} (was {shown_value(was)})"
            for setting, was, now in found
        )
        raise RequestRefused(
            f"the whole state of {parent} cannot be taken over with other settings: {named}",
            remedy="restore their values, or start from the weights only: dtdctl submit ..."
            f" --weights-from {parent}",
        )


# --- deletion ------------------------------------------------------------------------------------
#
# Ended jobs and checkpoints are deleted here from the store, by workers from their disks.
# Deletions are recorded first, so a disconnected worker deletes its copy when it reconnects, even
# if this process has restarted meanwhile.  A checkpoint that a job still starts from is not
# deleted.


ANSWERS_WITHIN_S: Final = 3.0
"""Seconds that a request waits for the workers; they continue deleting after that."""

Doomed = dict[str, Any]


class Deletions:
    """Answers DELETE, and has workers do their part."""

    def __init__(self, core: Core, models: ModelRegistry, history: MetricsRecorder) -> None:
        self._core = core
        self._models = models
        self._history = history
        self._waiting: dict[tuple[str, str], asyncio.Future[str]] = {}

    async def delete(self, request: m.Delete) -> dict[str, Any]:
        """Delete a job, or its checkpoints of one step."""
        known = await self._core.known_job(request.job)
        store, in_store = self._core.store, self._core.in_store
        there = {one["step"] for one in await in_store(store.checkpoints, request.job)}
        if request.step and request.step not in there:
            raise RequestRefused(
                f"job {request.job} has no checkpoint of step {request.step}",
                remedy=f"list its checkpoints with: dtdctl checkpoints {request.job}",
            )
        self._is_free(request)
        self._core.handle(DeleteRequested(job=request.job, step=request.step))
        doomed = await in_store(store.doom, request.job, known["identity"], request.step)
        if not request.step:
            await in_store(store.delete_job, request.job)
            await in_store(_remove, self._core.config.state_dir, request.job, known["identity"])
            await self._history.forget(request.job)
        return {"job": request.job, "step": request.step, **await self._drop(doomed)}

    def _is_free(self, request: m.Delete) -> None:
        """Copies of a model's version are files of their own, once there is one."""
        version = self._models.depends_on(request.job, request.step)
        if version:
            raise RequestRefused(
                f"version {version} of a model has no copy yet, and is made of this checkpoint",
                remedy=f"wait until `dtdctl models show {version}` calls it ready, or delete it",
            )

    def registered(self, worker: str) -> None:
        """A worker has (re)connected: it may have something to delete."""
        self._core.begin("reminding a worker of deletions", lambda: self._remind(worker))

    def dropped(self, worker: str, message: m.CheckpointDropped) -> None:
        """A worker has deleted a checkpoint, or says why not."""
        if message.reason:
            log.warning(
                "checkpoint_not_deleted",
                worker=worker,
                directory=message.directory,
                reason=message.reason,
            )
        else:
            self._core.store_thread.later(self._core.store.dropped, worker, message.directory)
        waiting = self._waiting.get((worker, message.directory))
        if waiting is not None and not waiting.done():
            waiting.set_result(message.reason)

    async def _remind(self, worker: str) -> None:
        """If the store's disk fails, the worker is reminded when it registers next."""
        for one in await self._core.in_store(self._core.store.doomed_on, worker):
            self._send(one)

    async def _drop(self, doomed: list[Doomed]) -> dict[str, Any]:
        """Have connected workers delete it; return the outcome of each checkpoint."""
        here = [one for one in doomed if self._core.links.link_to(one["worker"]) is not None]
        keys = [(str(one["worker"]), str(one["directory"])) for one in here]
        loop = asyncio.get_running_loop()
        answers = {key: loop.create_future() for key in keys}
        self._waiting |= answers
        try:
            for one in here:
                self._send(one)
            if answers:
                await asyncio.wait(answers.values(), timeout=ANSWERS_WITHIN_S)
        finally:
            for key in answers:
                self._waiting.pop(key, None)
        return {"checkpoints": [_outcome(one, answers) for one in doomed]}

    def _send(self, one: Doomed) -> None:
        link = self._core.links.link_to(one["worker"])
        if link is not None:
            link.send(
                m.DropCheckpoint(
                    job=one["job"],
                    identity=one["identity"],
                    generation=one["generation"],
                    step=one["step"],
                    directory=one["directory"],
                )
            )


def _remove(state_dir: Path, job: str, identity: str) -> None:
    """Curves are a convenience: those that cannot be removed stay."""
    for directory in curves_of(state_dir, job, identity):
        shutil.rmtree(directory, ignore_errors=True)


def _outcome(one: Doomed, answers: dict[tuple[str, str], asyncio.Future[str]]) -> dict[str, Any]:
    """Return the outcome for one checkpoint on one worker: deleted, later or failed."""
    answer = answers.get((one["worker"], one["directory"]))
    said = answer.result() if answer is not None and answer.done() else None
    outcome = "later" if said is None else "failed" if said else "deleted"
    return {
        "worker": one["worker"],
        "step": one["step"],
        "directory": one["directory"],
        "outcome": outcome,
        "reason": said or ("it is not connected" if answer is None else ""),
    }
