"""Has workers measure hosts, links and steps for an operator, and record a profile of steps.

One MEASURE and one MEASURED for each request, told apart by a number.  A running job is not
disturbed: beside it only latencies are measured, unless the operator insists.  Bandwidths are
measured one at a time in the whole cluster, so that no transfer slows another one down.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
import shutil
import time
from typing import Any, Final

from dtd import __version__
from dtd.cluster.records import Job, Worker
from dtd.cluster.transitions import GenerationState
from dtd.coordinator.core import Core
from dtd.errors import RequestRefused
from dtd.observe.profile.trace import Reading, offset_of
from dtd.text.shown import one_line
from dtd.wire import messages as m

CLOCK_READINGS: Final = 5
TIMEOUTS_S: Final = {"host": 3.0, "latency": 15.0, "bandwidth": 30.0, "step": 150.0}
"""Seconds that a worker may take; its own bounds are tighter."""

PROFILE: Final = "profile"
LINK_MEASURES: Final = ("latency", "bandwidth")
HEAVY_MEASURES: Final = ("bandwidth", "step")


class MeasurementBroker:
    """Answers EXAMINE."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[str, asyncio.Future[m.Measured]]] = {}
        self._one_transfer = asyncio.Lock()

    async def examine(self, request: m.Examine) -> dict[str, Any]:
        """Return the requested figures."""
        if not request.worker:
            return self._own_figures()
        if request.what not in TIMEOUTS_S:
            raise RequestRefused(
                f"{request.what!r} cannot be measured", remedy=f"one of {', '.join(TIMEOUTS_S)}"
            )
        worker = self._worker(request.worker)
        if request.what == "host":
            figures, readings = await self.clock(worker.name)
            offset = offset_of(readings)
            return {
                **figures,
                "round_trip_s": 2 * offset.uncertainty_s,
                "skew_s": offset.seconds,
            }
        busy = ", ".join(job.id for job in self._core.membership.active())
        if request.what in HEAVY_MEASURES and busy and not request.force:
            raise RequestRefused(
                f"measuring {request.what} would slow job {busy} down",
                remedy="wait for its end, or use --force to measure anyway",
            )
        alone = self._one_transfer if request.what == "bandwidth" else contextlib.nullcontext()
        async with alone:
            return await self.order(worker.name, self._measure(request), TIMEOUTS_S[request.what])

    def measured(self, name: str, message: m.Measured) -> None:
        """A worker answers; one that is not waited for any more is ignored."""
        asked, answer = self._waiting.get(message.number, ("", None))
        if answer is not None and asked == name and not answer.done():
            answer.set_result(message)

    def forget(self, name: str) -> None:
        """A worker is gone: nothing more comes from it."""
        for asked, answer in self._waiting.values():
            if asked == name and not answer.done():
                answer.set_exception(RequestRefused(f"{name} left while it measured"))

    def _own_figures(self) -> dict[str, Any]:
        usage = shutil.disk_usage(self._core.config.state_dir)
        cluster = self._core.membership.cluster
        return {
            "version": __version__,
            "state_dir": str(self._core.config.state_dir),
            "disk_free_bytes": usage.free,
            "disk_bytes": usage.total,
            "heartbeat_interval_s": cluster.heartbeat_interval_s,
            "heartbeat_timeout_s": cluster.detector.timeout_s,
            "time_s": time.time(),
        }

    async def order(self, name: str, measure: m.Measure, wait_s: float) -> dict[str, Any]:
        """Have a worker do what an order says, whose number is set here; returns its figures."""
        link = self._core.links.link_to(name)
        if link is None:
            raise RequestRefused(f"{name} is not connected")
        number = next(self._numbers)
        answer: asyncio.Future[m.Measured] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (name, answer)
        link.send(self._core.links.filled(dataclasses.replace(measure, number=number), name))
        try:
            async with asyncio.timeout(wait_s):
                measured = await answer
        except TimeoutError:
            raise RequestRefused(
                f"{name} did not measure {measure.what} within {wait_s:g} s"
            ) from None
        finally:
            del self._waiting[number]
        if measured.reason:
            raise RequestRefused(measured.reason, remedy=measured.remedy)
        return measured.figures

    async def clock(self, name: str) -> tuple[dict[str, Any], list[Reading]]:
        """Read a worker's clock a few times; returns its other figures, too."""
        readings, figures = [], {}
        for _ in range(CLOCK_READINGS):
            sent_s = time.time()
            order = m.Measure(number=0, what="host", spec={})
            figures = await self.order(name, order, TIMEOUTS_S["host"])
            readings.append(Reading(sent_s, time.time(), float(figures["time_s"])))
        return figures, readings

    def _measure(self, request: m.Examine) -> m.Measure:
        if request.what not in LINK_MEASURES:
            return m.Measure(
                number=0,
                what=request.what,
                spec=request.spec,
                worlds=request.worlds,
                package=request.package,
            )
        peer = self._worker(request.peer)
        return m.Measure(
            number=0,
            what=request.what,
            name=peer.name,
            host=peer.registration.data_host,
            port=peer.registration.data_port,
            others=peer.registration.others,
            spec={},
        )

    def _worker(self, name: str) -> Worker:
        worker = self._core.membership.cluster_of(name).workers.get(name)
        if worker is None or name not in self._core.links.names():
            raise RequestRefused(f"no worker {name!r} is connected", remedy="see `dtdctl status`")
        return worker


# --- profiles ------------------------------------------------------------------------------------


MOST_STEPS: Final = 100
LONGEST_S: Final = 600.0
MOST_CHARACTERS: Final = 200
ON_ITS_WAY_S: Final = 0.1
"""Longer than an order takes to all workers."""
WRITE_S: Final = 60.0
"""Seconds for a worker beyond the limit: for its last step, and to write its file."""


class Profiles:
    """Answers PROFILE: has all workers of a running job record some steps.

    What they record stays on their disks: the answer says where it can be fetched, with a ticket
    for each, how far each worker's clock is ahead, and which workers recorded nothing and why.  One
    profile at a time: it slows the job.
    """

    def __init__(self, core: Core, broker: MeasurementBroker) -> None:
        self._core = core
        self._broker = broker
        self._under_way = ""
        self._last: dict[str, Any] = {}

    async def profile(self, request: m.Profile) -> dict[str, Any]:
        """Have it recorded and return the files' holders, or those again with new tickets."""
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
        known = await self._core.known_job(request.job)
        cluster = self._core.membership.cluster_with(request.job)
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
        if cluster.job.terms.launched:
            raise RequestRefused(f"job {request.job} runs a script whose steps dtd does not see")
        return cluster.job

    async def _record(self, request: m.Profile, job: Job) -> dict[str, Any]:
        roster = tuple(self._core.membership.cluster_with(job.id).run.roster)
        file, generation = f"{job.id}-{time.time_ns()}", job.generation
        before = await asyncio.gather(*map(self._broker.clock, roster), return_exceptions=True)
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
        cluster = self._core.membership.cluster_with(job.id)
        beats = cluster.running_beats().values()
        step = max((beat.step for beat in beats), default=job.step)
        step_s = min((beat.step_s for beat in beats if beat.step_s > 0), default=math.inf)
        ahead = 1 + math.ceil((cluster.heartbeat_interval_s + ON_ITS_WAY_S) / step_s)
        last = job.total_steps - steps if job.total_steps else step + ahead
        return max(step + 1, min(step + ahead, last))

    async def _one(
        self,
        name: str,
        rank: int,
        order: m.Measure,
        before: tuple[dict[str, Any], list[Reading]] | BaseException,
    ) -> dict[str, Any]:
        """Return one worker's recording; `reason` says why there is none."""
        worker = self._core.membership.cluster_of(name).workers.get(name)
        serves = worker is not None and worker.serves
        answer = {"name": name, "rank": rank, "serves": serves, "reason": ""}
        try:
            if isinstance(before, BaseException):
                raise before
            said = await self._broker.order(name, order, order.limit_s + WRITE_S)
        except RequestRefused as error:
            return {**answer, "reason": error.message}
        _, readings = before
        with contextlib.suppress(RequestRefused):  # it restarts when its job has ended
            readings += (await self._broker.clock(name))[1]
        offset = offset_of(readings)
        return {
            **answer,
            "steps": said["steps"],
            "dropped": said["dropped"],
            "note": one_line(said["note"], MOST_CHARACTERS),
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
        if name not in self._core.links.names():
            return {"alive": False}
        return {"alive": True, **self._core.source(name, resource).shown()}
