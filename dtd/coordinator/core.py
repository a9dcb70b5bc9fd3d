"""The coordinator's state and decisions, as its services and request handlers see them.

The membership core decides; its effects are performed by `dtd.coordinator.effects`.  What needs
only this is a service (`dtd.coordinator.coordinator` has all of them); nothing here knows one.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dtd import __version__
from dtd.cluster.events import Effect, Event, Incident, JobEnded, Ticked
from dtd.cluster.pools import Pools
from dtd.cluster.records import CoordinatorIdentity, Job
from dtd.cluster.status import EndedJob
from dtd.config import CoordinatorConfig
from dtd.coordinator.audit import AuditFile, AuditLog, Caller
from dtd.coordinator.containment import Containment, DiagnosticsCollector, GuardedCore
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.effects import Effects
from dtd.coordinator.handlers.packages import PACKAGES, WEIGHTS, PackageCounter
from dtd.coordinator.store.store import Store
from dtd.coordinator.store.thread import StoreThread, Turn
from dtd.coordinator.throttles import Answers
from dtd.coordinator.worker_links import WorkerLinks
from dtd.errors import ProtocolError, RequestRefused
from dtd.net.driver import Driver
from dtd.net.limits import Connections, connections_for
from dtd.net.link import Link
from dtd.packages.archives import WEIGHTS as WEIGHTS_KIND
from dtd.packages.archives import Archives
from dtd.rules import did_you_mean
from dtd.security.authority import DIRECTORY, open_data_key
from dtd.wire import messages as m

T = TypeVar("T")


class Core:
    """State and decisions; belongs to the running event loop.

    Args:
        config: addresses and time-outs.
        store: the open state directory.
        new_link: makes the protocol object of a connection.

    Attributes:
        address: where the coordinator is called.
        last_job: the job that ended last.
        job_numbers: number of each job in the store.
        decided: called with each effect when it is decided.
        complaints: tell why a disk is unreliable, or nothing.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        store: Store,
        *,
        new_link: Callable[[], Link],
    ) -> None:
        self.config = config
        self.store = store
        self.address = ""
        self.started_s = time.monotonic()
        self.membership = Pools(
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            last_generation=first_number(store),
            identity=CoordinatorIdentity(
                version=__version__, host=socket.gethostname(), store_id=store.identity()
            ),
        )
        self.last_job = store.last_ended()
        self.job_numbers: dict[str, int] = {}
        self.decided: list[Callable[[Effect], None]] = []
        self.containment = Containment(time.monotonic, self.incident)
        self.store_thread = StoreThread(self.store_failed)
        self.complaints = [self.store_thread.complaint]
        self.audit = AuditLog(AuditFile(config.state_dir), self.store_thread)
        self.answers = Answers(self.containment)
        self.links = WorkerLinks(
            open_data_key(config.state_dir / DIRECTORY), lambda: self._driver.now
        )
        self.effects = Effects(
            links=self.links,
            store=store,
            thread=self.store_thread,
            job_numbers=self.job_numbers,
            handle=self.handle,
            performed=self._performed,
            containment=self.containment,
        )
        guarded = GuardedCore(
            self.membership,
            self.containment,
            perform=self._put,
            disconnect_all=self.links.fail_all,
        )
        self._driver: Driver[Event, Effect] = Driver(guarded, self._put, Ticked)
        self.diagnostics = DiagnosticsCollector(
            self.membership.clusters,
            time.monotonic,
            lambda: next(filter(None, (one() for one in self.complaints)), ""),
        )
        self.port = ControlPort(
            config,
            new_link,
            time.monotonic,
            self.diagnostics.turned_away,
            Connections(in_all=connections_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
        )
        # Hashing gigabytes must not hold up what generations wait for in the store's thread.
        self.weights_thread = StoreThread(self.store_failed)
        self.packages = PackageCounter(
            Archives(config.state_dir / PACKAGES),
            in_use=store.packages_in_use,
            store_thread=self.store_thread,
            thread=self.store_thread,
            answers=self.answers,
        )
        self.weights = PackageCounter(
            Archives(config.state_dir / WEIGHTS, WEIGHTS_KIND),
            in_use=store.weights_in_use,
            store_thread=self.store_thread,
            thread=self.weights_thread,
            answers=self.answers,
        )
        self._loop = asyncio.get_running_loop()
        self._next_number = store.next_job_number()
        self._news = asyncio.Event()
        self._ends: dict[str, asyncio.Future[Job]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- decisions and their effects -----------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Hand an event to the membership core.

        Raises:
            RequestRefused: the core refuses.
        """
        self._driver.handle(event)

    def stop(self) -> None:
        """Decide nothing more, and end what is under way."""
        self._driver.stop()
        for task in self._tasks:
            task.cancel()

    async def settled(self) -> None:
        """Return when every effect so far is done: all decisions are written down."""
        await self.effects.settled()

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        """Something that the core has no part in, for an operator to read."""
        self._put(Incident(kind=kind, message=message, worker=worker, details=details))

    def _put(self, effect: Effect) -> None:
        with self.containment.around(f"deciding on {type(effect).__name__}"):
            for decided in self.decided:
                decided(effect)
            self.effects.put(effect)

    def _performed(self, effect: JobEnded | Incident) -> None:
        """Wake the requests that wait for it."""
        if isinstance(effect, JobEnded):
            self.last_job = EndedJob(job=effect.job, ended_s=time.time())
            waiting = self._ends.pop(effect.job.id, None)
            if waiting is not None:
                waiting.set_result(effect.job)
        else:
            self._news.set()
            self._news = asyncio.Event()

    async def end_of(self, job_id: str) -> Job:
        """Return a job when it has ended."""
        waiting = self._ends.get(job_id)
        if waiting is None:
            waiting = self._ends[job_id] = self._loop.create_future()
        return await asyncio.shield(waiting)

    @property
    def news(self) -> asyncio.Event:
        """Is set by the next incident."""
        return self._news

    # --- tasks ---------------------------------------------------------------------------------

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task that goes on until it ends or the daemon does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin(self, doing: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a task that nobody awaits; unexpected errors are reported."""

        async def contained() -> None:
            with self.containment.around(doing):
                await work()

        self.keep(contained())

    # --- the store -----------------------------------------------------------------------------

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store in its thread, in order."""
        return await self.store_thread.run(function, *arguments)

    async def after_lines(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a method that reads jobs' output, once all output so far is written."""
        return await self.store_thread.run(function, *arguments, turn=Turn.PATIENT)

    async def known_job(self, job_id: str) -> dict[str, Any]:
        """A job as it is written down.

        Raises:
            RequestRefused: there is none of this id.
        """
        found = await self.in_store(self.store.job, job_id)
        if found is None:
            known = [job["id"] for job in await self.in_store(self.store.jobs)]
            near = did_you_mean(job_id, known)
            raise RequestRefused(f"job {job_id!r} does not exist{near}", remedy="see `dtdctl jobs`")
        return found

    def counter(self, message: m.PutPackage | m.GetPackage) -> PackageCounter:
        """Return the counter for files of the message's kind."""
        return self.weights if message.kind == WEIGHTS else self.packages

    def new_job_id(self, name: str) -> str:
        """A fresh id for a job of this name."""
        number, self._next_number = self._next_number, self._next_number + 1
        job_id = f"{name}-{number}"
        self.job_numbers[job_id] = number
        return job_id

    def store_failed(self, error: BaseException) -> None:
        """Report an error of a call that nothing waits for; in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.containment.failed, error, "a call to the store")

    # --- callers -------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The clock that the membership core sees."""
        return self._driver.now

    def check_request(self, caller: Caller, message: m.Message) -> None:
        """Check that the caller may send this request; refusals are in the audit log.

        Raises:
            ProtocolError: REFUSED, it may not.
        """
        try:
            self.port.check(caller, message)
        except ProtocolError as error:
            self.audit.refused(caller, message, error.message)
            raise


def first_number(store: Store) -> int:
    """The number that the generations of this process exceed.

    A store that has gone back may not know the last ones; none of them began in the future.
    """
    begun = store.next_job_number() > 1
    return max(store.last_generation(), int(time.time())) if begun else 0
