"""Has workers measure hosts, links and steps, for an operator (`dtdctl doctor`).

One MEASURE and one MEASURED for each request, told apart by a number.  A running job is not
disturbed: beside it only latencies are measured, unless the operator insists.  Bandwidths are
measured one at a time in the whole cluster, so that no transfer slows another one down.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import time
from pathlib import Path
from typing import Any, Final

from dtd import __version__
from dtd.cluster.pools import Pools
from dtd.cluster.records import Worker
from dtd.coordinator.data_secrets import DataSecrets
from dtd.coordinator.worker_links import WorkerLinks
from dtd.errors import RequestRefused
from dtd.observe.profile.trace import Reading
from dtd.wire import messages as m

CLOCK_READINGS: Final = 5
TIMEOUTS_S: Final = {"host": 3.0, "latency": 15.0, "bandwidth": 30.0, "step": 150.0}
"""Seconds that a worker may take; its own bounds are tighter."""

PROFILE: Final = "profile"
LINK_MEASURES: Final = ("latency", "bandwidth")
HEAVY_MEASURES: Final = ("bandwidth", "step")


class MeasurementBroker:
    """Answers EXAMINE.

    Args:
        membership: the workers, and the jobs that run.
        links: the workers' connections.
        secrets: of the data ports.
        state_dir: the coordinator's.
    """

    def __init__(
        self,
        membership: Pools,
        links: WorkerLinks,
        secrets: DataSecrets,
        state_dir: Path,
    ) -> None:
        self._membership = membership
        self._links = links
        self._secrets = secrets
        self._state_dir = state_dir
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[str, asyncio.Future[m.Measured]]] = {}
        self._one_transfer = asyncio.Lock()

    async def examine(self, request: m.Examine) -> dict[str, Any]:
        """Return the requested figures.

        Raises:
            RequestRefused: it would disturb a job, a worker is not there, or it cannot be measured.
        """
        if not request.worker:
            return self._own_figures()
        if request.what not in TIMEOUTS_S:
            raise RequestRefused(
                f"{request.what!r} cannot be measured", remedy=f"one of {', '.join(TIMEOUTS_S)}"
            )
        worker = self._worker(request.worker)
        if request.what == "host":
            return await self._host(worker)
        busy = ", ".join(job.id for job in self._membership.active())
        if request.what in HEAVY_MEASURES and busy and not request.force:
            raise RequestRefused(
                f"measuring {request.what} would slow job {busy} down",
                remedy="wait for its end, or use --force to measure anyway",
            )
        if request.what == "bandwidth":
            async with self._one_transfer:
                return await self._ask(worker, request)
        return await self._ask(worker, request)

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
        usage = shutil.disk_usage(self._state_dir)
        cluster = self._membership.cluster
        return {
            "version": __version__,
            "state_dir": str(self._state_dir),
            "disk_free_bytes": usage.free,
            "disk_bytes": usage.total,
            "heartbeat_interval_s": cluster.heartbeat_interval_s,
            "heartbeat_timeout_s": cluster.detector.timeout_s,
            "time_s": time.time(),
        }

    async def _host(self, worker: Worker) -> dict[str, Any]:
        """Return a worker's figures, and its clock's lead by the reading that took least time."""
        best: dict[str, Any] = {}
        request = m.Examine(what="host", worker=worker.name, spec={})
        for _ in range(CLOCK_READINGS):
            sent_s = time.time()
            figures = await self._ask(worker, request)
            round_trip_s = time.time() - sent_s
            if not best or round_trip_s < best["round_trip_s"]:
                skew_s = _clock_of(figures, worker.name) - (sent_s + round_trip_s / 2)
                best = {**figures, "round_trip_s": round_trip_s, "skew_s": skew_s}
        return best

    async def _ask(self, worker: Worker, request: m.Examine) -> dict[str, Any]:
        measure = self._measure(next(self._numbers), request)
        return await self._answered(worker.name, measure, timeout_s=TIMEOUTS_S[request.what])

    async def order(self, name: str, measure: m.Measure, wait_s: float) -> dict[str, Any]:
        """Have a worker do what an order says, whose number is set here.

        Args:
            name: the worker's.
            measure: the order.
            wait_s: how long it may take.

        Raises:
            RequestRefused: it does not.
        """
        numbered = dataclasses.replace(measure, number=next(self._numbers))
        return await self._answered(name, numbered, timeout_s=wait_s)

    async def clock(self, name: str) -> list[Reading]:
        """Read a worker's clock a few times.

        Raises:
            RequestRefused: it does not answer.
        """
        readings = []
        for _ in range(CLOCK_READINGS):
            measure = m.Measure(number=next(self._numbers), what="host", spec={})
            sent_s = time.time()
            figures = await self._answered(name, measure, timeout_s=TIMEOUTS_S["host"])
            readings.append(Reading(sent_s, time.time(), _clock_of(figures, name)))
        return readings

    async def _answered(self, name: str, measure: m.Measure, *, timeout_s: float) -> dict[str, Any]:
        """Send a request to a worker, and return the figures that it answers."""
        link = self._links.link_to(name)
        if link is None:
            raise RequestRefused(f"{name} is not connected")
        number = measure.number
        answer: asyncio.Future[m.Measured] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (name, answer)
        link.send(self._secrets.filled(measure, name))
        try:
            async with asyncio.timeout(timeout_s):
                measured = await answer
        except TimeoutError:
            raise RequestRefused(
                f"{name} did not measure {measure.what} within {timeout_s:g} s"
            ) from None
        finally:
            del self._waiting[number]
        if measured.reason:
            raise RequestRefused(measured.reason, remedy=measured.remedy)
        return measured.figures

    def _measure(self, number: int, request: m.Examine) -> m.Measure:
        if request.what not in LINK_MEASURES:
            return m.Measure(
                number=number,
                what=request.what,
                spec=request.spec,
                worlds=request.worlds,
                package=request.package,
            )
        peer = self._worker(request.peer)
        return m.Measure(
            number=number,
            what=request.what,
            name=peer.name,
            host=peer.registration.data_host,
            port=peer.registration.data_port,
            spec={},
        )

    def _worker(self, name: str) -> Worker:
        worker = self._membership.cluster_of(name).workers.get(name)
        if worker is None or name not in self._links.names():
            raise RequestRefused(f"no worker {name!r} is connected", remedy="see `dtdctl status`")
        return worker


def _clock_of(figures: dict[str, Any], name: str) -> float:
    """Return the time of a worker's clock, in Unix seconds.

    Raises:
        RequestRefused: it says something else.
    """
    time_s = figures.get("time_s")
    if not isinstance(time_s, int | float):
        raise RequestRefused(
            f"{name} does not say what time it is",
            remedy=f"compare the version of dtd on {name} with the coordinator's",
        )
    return float(time_s)
