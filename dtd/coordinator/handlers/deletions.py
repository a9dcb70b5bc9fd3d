"""Deletion of ended jobs and checkpoints: here from the store, by workers from their disks.

Deletions are recorded first, so a disconnected worker deletes its copy when it reconnects, even if
this process has restarted meanwhile.  A checkpoint that a job still starts from is not deleted.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.cluster.events import DeleteRequested
from dtd.coordinator.core import Core
from dtd.coordinator.models import ModelRegistry
from dtd.errors import RequestRefused
from dtd.observe.recorder import MetricsRecorder
from dtd.observe.sinks.entries import curves_of
from dtd.wire import messages as m

log = structlog.get_logger()

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
        self._reminders: set[asyncio.Task[None]] = set()

    async def delete(self, request: m.Delete) -> dict[str, Any]:
        """Delete a job, or its checkpoints of one step.

        Raises:
            RequestRefused: it has not ended, another job or a model needs it, or there is none.
        """
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
        task = asyncio.create_task(self._remind(worker))
        self._reminders.add(task)
        task.add_done_callback(self._reminded)

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
        for one in await self._core.in_store(self._core.store.doomed_on, worker):
            self._send(one)

    def _reminded(self, task: asyncio.Task[None]) -> None:
        """The store's disk may fail; the worker is reminded when it registers next."""
        self._reminders.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("store_failed", error=str(task.exception()))

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
