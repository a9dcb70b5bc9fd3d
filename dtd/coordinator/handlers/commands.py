"""Operators' requests that change jobs and workers; the core accepts or refuses them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, Final

from dtd import job
from dtd.checkpoint.choice import complete
from dtd.cluster.admission import what_to_prepare
from dtd.cluster.checkpoints import CONTRADICTED
from dtd.cluster.events import (
    CancelRequested,
    DrainRequested,
    KillRequested,
    ResumeRequested,
    Submitted,
)
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.coordinator.handlers.api import CoordinatorApi, known_job
from dtd.errors import RequestRefused
from dtd.job.differences import Difference, differences, obstacles, shown_value
from dtd.job.identity import identity_of
from dtd.wire import messages as m
from dtd.wire.frames import MAX_HEADER_BYTES

# --- what a job takes over from another one, and whether that is possible.  Pure ---------------
# This compares the two jobs' settings only; the workers find out whether the state fits the model.


RESUME: Final = "resume"
WEIGHTS: Final = "weights"
MODES: Final = (RESUME, WEIGHTS)


def origin_mode(asked: str, parent_state: str) -> str:
    """Whether everything is taken over, or the weights only.

    Args:
        asked: in the submission; empty: the weights of a job that is done, everything of another.
        parent_state: how the job that is started from stands.

    Raises:
        RequestRefused: the request is for neither.
    """
    if asked and asked not in MODES:
        raise RequestRefused(f"{asked!r} is not one of {', '.join(MODES)}")
    return asked or (WEIGHTS if parent_state == JobState.DONE else RESUME)


def check_same_course(differs: Sequence[Difference], parent: str) -> None:
    """Refuse to continue from a whole state with settings that would change the course of training.

    Raises:
        RequestRefused: settings differ that must be equal; all are named with both values.
    """
    found = obstacles(differs)
    if found:
        named = ", ".join(
            f"{setting} = {shown_value(now)} (was {shown_value(was)})"
            for setting, was, now in found
        )
        raise RequestRefused(
            f"the whole state of {parent} cannot be taken over with other settings: {named}",
            remedy="restore their values, or start from the weights only: --weights-from",
        )


# --- requests that change jobs and workers; the core decides whether they are carried out ------


SIGNALS: Final = ("KILL", "TERM", "STOP")
ENDED_STATES: Final = ("done", "failed", "cancelled")

Order = m.SubmitJob | m.WaitJob | m.CancelJob | m.ResumeJob | m.KillWorker | m.DrainWorker


class Commands:
    """Carries them out; an answer is given when everything decided is written down.

    Args:
        coordinator: the daemon that is operated.
    """

    def __init__(self, coordinator: CoordinatorApi) -> None:
        self._coordinator = coordinator
        self._ended: dict[str, asyncio.Future[dict[str, Any]]] = {}

    def job_ended(self, ended: Job) -> None:
        """Wake the requests that wait for the job."""
        waiting = self._ended.pop(ended.id, None)
        if waiting is not None:
            result = {"state": ended.state.value, "reason": ended.reason, "result": ended.result}
            waiting.set_result({"job": ended.id, **result})

    async def carry_out(self, order: Order) -> dict[str, Any]:
        """Perform a request.

        Raises:
            DtdError: it cannot be done, or the job is not valid.
        """
        if isinstance(order, m.SubmitJob):
            return await self._submit(order)
        if isinstance(order, m.WaitJob):
            return await self._wait(order.job)
        if isinstance(order, m.CancelJob):
            return await self._cancel(order.job)
        if isinstance(order, m.ResumeJob):
            return await self._resume(order)
        return self._kill_or_drain(order)

    async def _submit(self, request: m.SubmitJob) -> dict[str, Any]:
        read = functools.partial(job.from_mapping, request.spec, source="submitted job")
        spec = await asyncio.get_running_loop().run_in_executor(None, read)
        self._can_encrypt(spec)
        await self._coordinator.packages.check(request.package)
        await self._coordinator.weights.check(request.weights)
        if request.weights and request.from_job:
            raise RequestRefused("a job starts either from another job or from a file of weights")
        begins: dict[str, Any] = {}
        mode = from_identity = ""
        step = 0
        if request.from_job:
            parent = await known_job(self._coordinator, request.from_job)
            mode = origin_mode(request.from_mode, parent["state"])
            step = await self._starting_step(request)
            differs = differences(parent["spec"], job.to_mapping(spec))
            if mode == RESUME:
                check_same_course(differs, request.from_job)
                _ends_later(spec, step, parent)
            begins = {"from_mode": mode, "from_step": step, "differs": [list(d) for d in differs]}
            from_identity = parent["identity"]
        job_id = self._coordinator.new_job_id(spec.job.name)
        here, settings = self._coordinator.membership.home.cluster.identity, job.to_mapping(spec)
        submitted = Job(
            id=job_id,
            spec=settings,
            store_epoch=max(1, here.epoch),
            identity=identity_of(here.store_id, here.epoch, job_id, settings),
            from_identity=from_identity,
            from_job=request.from_job,
            from_step=request.from_step,
            from_newest=0 if request.from_step else step,
            from_mode=mode,
            package=request.package,
            weights=request.weights,
            strict=request.strict,
        )
        _can_be_sent(submitted)
        self._coordinator.handle(Submitted(job=submitted))
        await self._coordinator.settled()
        return {"job": job_id, **begins}

    def _can_encrypt(self, spec: job.JobSpec) -> None:
        if spec.sync.encryption == "tls" and not self._coordinator.has_authority:
            raise RequestRefused(
                "[sync] encryption: this coordinator serves its own host only, where workers have"
                " no credentials",
                remedy="remove it, or start the coordinator with --listen HOST:PORT",
            )

    async def _starting_step(self, request: m.SubmitJob) -> int:
        """Steps in the checkpoint that the job starts from."""
        store = self._coordinator.store
        listed = await self._coordinator.in_store(store.checkpoints, request.from_job)
        found = complete([one for one in listed if one["confirmation"] != CONTRADICTED])
        steps = sorted({group[0]["step"] for group in found})
        if not steps:
            but = ", except ones that all ranks contradict or of which parts lack" if listed else ""
            raise RequestRefused(
                f"job {request.from_job} has no checkpoint{but}",
                remedy="submit its job file again to start from the beginning",
            )
        if request.from_step and request.from_step not in steps:
            raise RequestRefused(
                f"job {request.from_job} has no checkpoint of step {request.from_step}",
                remedy=f"kept steps: {', '.join(map(str, steps))}",
            )
        return request.from_step or int(found[0][0]["step"])

    async def _wait(self, job_id: str) -> dict[str, Any]:
        known = await known_job(self._coordinator, job_id)
        if known["state"] in ENDED_STATES:
            await self._coordinator.settled()  # so that the status tells the same
            return {"job": job_id, **{key: known[key] for key in ("state", "reason", "result")}}
        if job_id not in self._ended:
            self._ended[job_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._ended[job_id])

    async def _cancel(self, job_id: str) -> dict[str, Any]:
        await known_job(self._coordinator, job_id)
        self._coordinator.handle(CancelRequested(job=job_id))
        return await self._settled_state(job_id)

    async def _resume(self, order: m.ResumeJob) -> dict[str, Any]:
        await known_job(self._coordinator, order.job)
        self._coordinator.handle(ResumeRequested(job=order.job))
        return await self._settled_state(order.job)

    async def _settled_state(self, job_id: str) -> dict[str, Any]:
        await self._coordinator.settled()
        return {"job": job_id, "state": (await known_job(self._coordinator, job_id))["state"]}

    def _kill_or_drain(self, request: m.KillWorker | m.DrainWorker) -> dict[str, Any]:
        if isinstance(request, m.DrainWorker):
            self._coordinator.handle(DrainRequested(name=request.name))
            return {"name": request.name}
        if request.signal not in SIGNALS:
            raise RequestRefused(
                f"signal {request.signal!r} cannot be sent", remedy=f"one of {', '.join(SIGNALS)}"
            )
        self._coordinator.handle(KillRequested(name=request.name, signal=request.signal))
        name = request.name
        worker = self._coordinator.membership.cluster_of(name).workers[name]
        return {"name": request.name, "pid": worker.registration.pid, "signal": request.signal}


def _can_be_sent(submitted: Job) -> None:
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
            remedy=f"raise {key}, or name an earlier checkpoint: --resume-from JOB@STEP",
        )
