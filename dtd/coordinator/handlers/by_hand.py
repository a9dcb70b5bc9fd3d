"""The jobs of scripts that were started by hand: JOIN_JOB.

The first process that comes begins the job, and the others take part in it.  They are told apart by
their job's name.  It goes on until it ends, also when all of its processes have ended: then it
waits for the next ones.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Final

from dtd import job
from dtd.checkpoint.choice import complete
from dtd.cluster.generation.checkpoints import CONTRADICTED
from dtd.cluster.records import Job
from dtd.cluster.workers.admission import ENDING_JOBS
from dtd.coordinator.core import Core
from dtd.coordinator.handlers.jobs import RESUME, submit
from dtd.errors import RequestRefused
from dtd.job.differences import differences
from dtd.job.terms import terms_of
from dtd.net.link import Link
from dtd.wire import messages as m

_MOST_EARLIER: Final = 8
"""Ended jobs of a name that are looked through for a checkpoint."""


class JobsByHand:
    """Answers JOIN_JOB, one process after another: two that come together get one job."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._one_at_a_time = asyncio.Lock()

    def ask(self, link: Link, message: m.JoinJob) -> None:
        """Answer with the job that the process at the other end is to register for."""
        self._core.check_request(link, message)

        async def answer() -> None:
            link.send(m.Joined(job=await self._join(link, message)))

        self._core.answers.begin(link, message, answer)

    async def _join(self, link: Link, message: m.JoinJob) -> str:
        read = functools.partial(job.from_mapping, message.spec, source="dtd.join()")
        spec = await asyncio.get_running_loop().run_in_executor(None, read)
        settings = job.to_mapping(spec)
        settings["elastic"]["by_hand"] = True
        while (active := self._active(spec.job.name)) is not None and active.state in ENDING_JOBS:
            await self._core.end_of(active.id)
        async with self._one_at_a_time:
            active = self._active(spec.job.name)
            if active is not None:
                _check_same(active, settings)
                return active.id
            before = await self._newest_saved(spec.job.name)
            remedy = "restore them, or give the job another name: dtd.join(name=...)"
            request = m.SubmitJob(
                spec=settings, from_job=before, from_mode=RESUME if before else ""
            )
            try:
                answer = await self._core.audit.around(
                    link, request, lambda: submit(self._core, request), told=dict
                )
            except RequestRefused as error:  # it names options of dtdctl
                raise RequestRefused(error.message, remedy=remedy if before else "") from None
            return str(answer["job"])

    def _active(self, name: str) -> Job | None:
        jobs = self._core.membership.active()
        return next((one for one in jobs if one.terms.by_hand and one.terms.name == name), None)

    async def _newest_saved(self, name: str) -> str:
        """Return the newest of the ended jobs of this name that has a checkpoint, if any."""
        core = self._core
        known = [one["id"] for one in await core.in_store(core.store.jobs)]
        of_name = [one for one in known if one.rpartition("-")[0] == name]
        for job_id in of_name[:_MOST_EARLIER]:
            listed = await core.in_store(core.store.checkpoints, job_id)
            whole = complete([one for one in listed if one["confirmation"] != CONTRADICTED])
            if whole and terms_of((await core.known_job(job_id))["spec"]).by_hand:
                return str(job_id)
        return ""


def _check_same(active: Job, settings: dict[str, Any]) -> None:
    """Refuse a process of another script, or with other settings, than those that train the job."""
    script, theirs = settings["job"]["task"], active.terms.task
    differs = [str(one) for one in differences(active.spec, settings)]
    if script != theirs:
        differs.insert(0, f"script {theirs} -> {script}")
    if differs:
        raise RequestRefused(
            f"job {active.id} has been started with another script or settings:"
            f" {', '.join(differs[:5])}",
            remedy="start the same script with the same settings on each host, give this one"
            f" another name (dtd.join(name=...)), or end that one: dtdctl cancel {active.id}",
        )
