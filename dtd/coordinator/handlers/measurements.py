"""Has workers measure hosts, links and steps, for an operator (`dtdctl doctor`).

One MEASURE and one MEASURED for each request, told apart by a number.  A running job is not
disturbed: beside it only latencies are measured, unless the operator insists.  Bandwidths are
measured one at a time in the whole cluster, so that no transfer slows another one down.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from pathlib import Path
from typing import Any, Final

from dtd import __version__
from dtd.coordinator.data_secrets import DataSecrets
from dtd.coordinator.worker_links import WorkerLinks
from dtd.core.membership.machine import Membership
from dtd.core.membership.records import Worker
from dtd.errors import RequestRefused
from dtd.wire import messages as m

CLOCK_READINGS: Final = 5
TIMEOUTS_S: Final = {"host": 3.0, "latency": 15.0, "bandwidth": 30.0, "step": 150.0}
"""How long a worker may take; its own bounds are tighter."""

LINK_MEASURES: Final = ("latency", "bandwidth")
HEAVY_MEASURES: Final = ("bandwidth", "step")


class MeasurementBroker:
    """Answers EXAMINE.

    Args:
        membership: who is there, and whether a job runs.
        links: the workers' connections.
        secrets: of the data ports.
        state_dir: the coordinator's.
    """

    def __init__(
        self,
        membership: Membership,
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
        """Figures of what was asked for.

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
        busy = self._membership.books.job
        if request.what in HEAVY_MEASURES and busy is not None and not request.force:
            raise RequestRefused(
                f"measuring {request.what} would slow job {busy.id} down",
                remedy="wait for its end, or measure all the same with --force",
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
        books = self._membership.books
        return {
            "version": __version__,
            "state_dir": str(self._state_dir),
            "disk_free_bytes": usage.free,
            "disk_bytes": usage.total,
            "heartbeat_interval_s": books.heartbeat_interval_s,
            "heartbeat_timeout_s": books.detector.timeout_s,
            "time_s": time.time(),
        }

    async def _host(self, worker: Worker) -> dict[str, Any]:
        """Its figures, and how far its clock is ahead: by the reading that took least time."""
        best: dict[str, Any] = {}
        request = m.Examine(what="host", worker=worker.name, spec={})
        for _ in range(CLOCK_READINGS):
            sent_s = time.time()
            figures = await self._ask(worker, request)
            round_trip_s = time.time() - sent_s
            if not best or round_trip_s < best["round_trip_s"]:
                skew_s = float(figures.get("time_s", 0.0)) - (sent_s + round_trip_s / 2)
                best = {**figures, "round_trip_s": round_trip_s, "skew_s": skew_s}
        return best

    async def _ask(self, worker: Worker, request: m.Examine) -> dict[str, Any]:
        link = self._links.link_to(worker.name)
        if link is None:
            raise RequestRefused(f"{worker.name} is not connected")
        number = next(self._numbers)
        answer: asyncio.Future[m.Measured] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (worker.name, answer)
        link.send(self._secrets.filled(self._measure(number, request), worker.name))
        timeout_s = TIMEOUTS_S[request.what]
        try:
            async with asyncio.timeout(timeout_s):
                measured = await answer
        except TimeoutError:
            raise RequestRefused(
                f"{worker.name} did not measure {request.what} within {timeout_s:g} s"
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
        worker = self._membership.books.workers.get(name)
        if worker is None or name not in self._links.names():
            raise RequestRefused(f"no worker {name!r} is connected", remedy="see `dtdctl status`")
        return worker
