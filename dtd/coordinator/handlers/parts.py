"""Tells workers which others have the parts of a checkpoint that their job starts from.

A checkpoint of a sharded state is on many workers' disks.  A job that starts from it does not have
to be sharded, or be so in the same way; so a worker fetches the other parts and assembles them.
It is given tickets for the checkpoint that its job names, and for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from dtd.checkpoint.choice import complete, fewest, missing, part_of
from dtd.cluster.checkpoints import CONTRADICTED, VERIFIED
from dtd.cluster.transitions import JobState
from dtd.coordinator.handlers.api import CoordinatorApi
from dtd.errors import ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.wire import messages as m

MAX_UNANSWERED: Final = 4
"""A worker that has just connected again may ask twice."""


class PartDirectory:
    """Answers GET_PARTS.

    Args:
        coordinator: the daemon that is asked.
    """

    def __init__(self, coordinator: CoordinatorApi) -> None:
        self._coordinator = coordinator
        self._tasks: dict[asyncio.Task[None], Link] = {}

    def ask(self, link: Link, worker: str, request: m.GetParts) -> None:
        """Answer with PARTS, soon.

        Args:
            link: the connection of the worker that asks.
            worker: its name.
            request: its request.

        Raises:
            ProtocolError: too many requests on this connection are not answered yet.
        """
        if sum(one is link for one in self._tasks.values()) >= MAX_UNANSWERED:
            raise ProtocolError(ErrorCode.REFUSED, f"{MAX_UNANSWERED} GET_PARTS are unanswered")
        task = asyncio.create_task(self._contained(link, worker, request))
        self._tasks[task] = link
        task.add_done_callback(self._tasks.pop)

    async def _contained(self, link: Link, worker: str, request: m.GetParts) -> None:
        with self._coordinator.containment.around("answering GET_PARTS", link):
            link.send(await self._answer(worker, request))

    async def _answer(self, worker: str, request: m.GetParts) -> m.Parts:
        nothing = m.Parts(job=request.job, step=request.step)
        job = self._coordinator.membership.cluster_of(worker).job
        # Who joins a job that trains gets the state from its members.
        if not request.job or job is None or job.state is JobState.RUNNING:
            return nothing
        if (request.job, request.step) != (job.from_job, job.from_step):
            return nothing
        listed = await self._coordinator.in_store(self._coordinator.store.checkpoints, request.job)
        holders = _newest(listed, request.step)
        connected = self._coordinator.connected()
        there = [one for one in holders if one["worker"] in connected]
        if not holders or self._is_handed_over(worker, there):
            return nothing
        lacks = missing([part_of(one) for one in there])
        away = ", ".join(
            f"{one['worker']} ({part_of(one) & lacks})"
            for one in holders
            if one not in there and part_of(one) & lacks
        )
        first = [there[index] for index in fewest([part_of(one) for one in there])]
        ordered = [*first, *(one for one in there if one not in first)][: m.MAX_PART_HOLDERS]
        return m.Parts(
            job=request.job,
            step=request.step,
            digest=next((one["digest"] for one in holders if one["digest"]), ""),
            holders=tuple(self._holder(one) for one in ordered),
            missing=f"{lacks}, which were on {away}" if lacks else "",
        )

    def _is_handed_over(self, worker: str, holders: Sequence[Mapping[str, Any]]) -> bool:
        """Whether another worker of the same job has all of it, and this one nothing."""
        names = {one["worker"] for one in holders if part_of(one).is_whole}
        workers = self._coordinator.membership.cluster_of(worker).workers
        return worker not in {one["worker"] for one in holders} and any(
            name in workers and not workers[name].serves for name in names
        )

    def _holder(self, one: Mapping[str, Any]) -> m.PartHolder:
        name = one["worker"]
        worker = self._coordinator.membership.cluster_of(name).workers[name].registration
        path = PurePosixPath(one["directory"])
        resource = f"checkpoint/{path.parent.name}/{path.name}"
        expires_s, key = self._coordinator.ticket(one["worker"], resource)
        return m.PartHolder(
            name=one["worker"],
            host=worker.data_host,
            port=worker.data_port,
            resource=resource,
            part=tuple(one["part"]),
            ticket_expires_s=expires_s,
            ticket_key=key,
        )


def _newest(listed: Sequence[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """All entries of the checkpoint that a job starts from, those that are confirmed first.

    Args:
        listed: newest first.
        step: committed steps of the checkpoint; 0 for the newest.
    """
    sound = [one for one in listed if one["confirmation"] != CONTRADICTED]
    found = (group for group in complete(sound) if step in (0, group[0]["step"]))
    return sorted(next(found, []), key=lambda one: one["confirmation"] != VERIFIED)
