"""Has all workers of the running job record some steps, for an operator (`dtdctl profile`).

What they record stays on their disks: the answer says where it can be fetched, with a ticket for
each, how far each worker's clock is ahead, and which workers recorded nothing and why.  One profile
at a time: it slows the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Any, Final

from dtd.cluster.records import Job
from dtd.cluster.transitions import GenerationState
from dtd.coordinator.handlers.api import CoordinatorApi, known_job
from dtd.coordinator.handlers.measurements import PROFILE
from dtd.errors import RequestRefused
from dtd.observe.profile.trace import Reading, offset_of
from dtd.shown import one_line
from dtd.wire import messages as m

MOST_STEPS: Final = 100
MOST_CHARACTERS: Final = 200
LONGEST_S: Final = 600.0
ON_ITS_WAY_S: Final = 0.1
"""Longer than an order takes to all workers."""
WRITE_S: Final = 60.0
"""Seconds for a worker beyond the limit: for its last step, and to write its file."""


class Profiles:
    """Answers PROFILE.

    Args:
        coordinator: the daemon behind it.
    """

    def __init__(self, coordinator: CoordinatorApi) -> None:
        self._coordinator = coordinator
        self._under_way = ""
        self._last: dict[str, Any] = {}

    async def profile(self, request: m.Profile) -> dict[str, Any]:
        """Have it recorded, and return the files' holders; or return those again, with new tickets.

        Raises:
            RequestRefused: the job does not run, another profile is under way, or no worker has
                recorded anything.
        """
        if request.file:
            return self._again(request)
        job = await self._running(request)
        if self._under_way:
            raise RequestRefused(
                f"a profile of {self._under_way} is under way", remedy="wait for its end"
            )
        self._under_way = request.job
        try:
            self._last = await self._record(request, job)
        finally:
            self._under_way = ""
        return self._with_tickets(self._last)

    def _again(self, request: m.Profile) -> dict[str, Any]:
        if (self._last.get("job"), self._last.get("file")) != (request.job, request.file):
            raise RequestRefused(
                f"{request.file} is not the last profile", remedy="record another one"
            )
        return self._with_tickets(self._last)

    async def _running(self, request: m.Profile) -> Job:
        """Return the job, which trains."""
        if not 1 <= request.steps <= MOST_STEPS or not 0 < request.limit_s <= LONGEST_S:
            raise RequestRefused(
                f"a profile has 1 to {MOST_STEPS} steps and takes {LONGEST_S:g} s at most"
            )
        known = await known_job(self._coordinator, request.job)
        cluster = self._coordinator.membership.cluster_with(request.job)
        if cluster.job is None or cluster.job.id != request.job:
            raise RequestRefused(
                f"job {request.job} does not run: it is {known['state']}",
                remedy="profile a job while it trains: see `dtdctl status`",
            )
        if cluster.run.phase is not GenerationState.RUNNING:
            raise RequestRefused(
                f"job {request.job} does not train now: it is {cluster.job.state.value}",
                remedy="try again when `dtdctl status` says that it is running",
            )
        return cluster.job

    async def _record(self, request: m.Profile, job: Job) -> dict[str, Any]:
        roster = tuple(self._coordinator.membership.cluster_with(job.id).run.roster)
        file, generation = f"{job.id}-{time.time_ns()}", job.generation
        broker = self._coordinator.measurement_broker
        before = await asyncio.gather(*map(broker.clock, roster), return_exceptions=True)
        order = m.Measure(
            number=0,
            what=PROFILE,
            spec={},
            job=job.id,
            steps=request.steps,
            limit_s=request.limit_s,
            profile=file,
            first_step=self._first_step(job, request.steps),
        )
        workers = await asyncio.gather(
            *(
                self._one(name, rank, order, readings)
                for rank, (name, readings) in enumerate(zip(roster, before, strict=True))
            )
        )
        if all(one["reason"] for one in workers):
            why = "; ".join(f"{one['name']}: {one['reason']}" for one in workers)
            raise RequestRefused(f"no worker has recorded a profile of {job.id}: {why}")
        encrypted = job.spec.get("sync", {}).get("encryption") == "tls"
        return {
            "job": job.id,
            "generation": generation,
            "file": file,
            "encrypted": encrypted,
            "workers": workers,
        }

    def _first_step(self, job: Job, steps: int) -> int:
        """Return the committed steps after which all begin: none is that far when it hears of it.

        A heartbeat is old by its interval at most.  What is left of the job may be less.
        """
        cluster = self._coordinator.membership.cluster_with(job.id)
        beats = cluster.running_beats().values()
        step = max((beat.step for beat in beats), default=job.step)
        step_s = min((beat.step_s for beat in beats if beat.step_s > 0), default=math.inf)
        ahead = 1 + math.ceil((cluster.heartbeat_interval_s + ON_ITS_WAY_S) / step_s)
        last = job.total_steps - steps if job.total_steps else step + ahead
        return max(step + 1, min(step + ahead, last))

    async def _one(
        self, name: str, rank: int, order: m.Measure, before: list[Reading] | BaseException
    ) -> dict[str, Any]:
        """Return one worker's recording; `reason` says why there is none."""
        broker = self._coordinator.measurement_broker
        worker = self._coordinator.membership.cluster_of(name).workers.get(name)
        serves = worker is not None and worker.serves
        answer = {"name": name, "rank": rank, "serves": serves, "reason": ""}
        try:
            if isinstance(before, BaseException):
                raise before
            said = await broker.order(name, order, order.limit_s + WRITE_S)
        except RequestRefused as error:
            return {**answer, "reason": error.message}
        readings = before
        with contextlib.suppress(RequestRefused):  # it restarts when its job has ended
            readings = before + await broker.clock(name)
        offset = offset_of(readings)
        return {
            **answer,
            "steps": _whole(said.get("steps")),
            "dropped": _dropped(said.get("dropped")),
            "note": one_line(str(said.get("note", "")), MOST_CHARACTERS),
            "clock_ahead_s": offset.seconds,
            "clock_uncertainty_s": offset.uncertainty_s,
        }

    def _with_tickets(self, answer: dict[str, Any]) -> dict[str, Any]:
        resource = f"profile/{answer['file']}"
        workers = [
            one if one["reason"] else {**one, **self._place(one["name"], resource)}
            for one in answer["workers"]
        ]
        return {**answer, "workers": workers}

    def _place(self, name: str, resource: str) -> dict[str, Any]:
        """Return the address and the key of a worker's file; none while it is disconnected."""
        worker = self._coordinator.membership.cluster_of(name).workers.get(name)
        if worker is None or name not in self._coordinator.connected():
            return {"alive": False}
        expires_s, key = self._coordinator.ticket(name, resource)
        return {
            "alive": True,
            "data_host": worker.registration.data_host,
            "data_port": worker.registration.data_port,
            "ticket_expires_s": expires_s,
            "ticket_key": key,
        }


def _dropped(said: Any) -> dict[str, int]:
    """Return the number of entries that a worker has left out, by kind."""
    given = said if isinstance(said, dict) else {}
    return {kind: _whole(given.get(kind)) for kind in ("spans", "operations")}


def _whole(said: Any) -> int:
    return said if isinstance(said, int) and said >= 0 else 0
