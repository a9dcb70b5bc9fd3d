"""The thread of a worker's job: warm up, then one generation after another until the job is over.

It reports to the member core how each generation ended, and which state is here.  Its two kinds are
`dtd.worker.job.training_thread`, which trains, and `dtd.worker.job.launch_thread`, which runs a
script as torchrun does.  `dtd.worker.job.training` says how it and the event loop reach each other.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from dtd.cluster import figures, member
from dtd.cluster.workers.progress import ProgressWatch
from dtd.config import WorkerConfig
from dtd.errors import CodeError, DtdError, RingBroken, TaskError, UnreadableWord
from dtd.exchange.collective import Bridge, RingCollective
from dtd.exchange.schedule.neighbours import CORRUPT
from dtd.job import JobSpec
from dtd.net.clients.blocking_link import Connect
from dtd.net.data_port.data_server import DataServer
from dtd.net.liveness import Lifeline
from dtd.text.shown import cut, cut_trace
from dtd.wire import messages as m
from dtd.worker.control import Requests
from dtd.worker.environment.environments import Environments
from dtd.worker.environment.packages import TaskPackages, look_first_in
from dtd.worker.files.datasets import JobData
from dtd.worker.job.reporter import JobReporter

if TYPE_CHECKING:
    from dtd.train.record import Outcome
    from dtd.train.task import Task

log = structlog.get_logger()


class OwnScript(Protocol):
    """The script of a process that was started by hand, and takes part in its job alone."""

    spec: Mapping[str, Any]
    """Its job, as the script describes it."""

    def load(self, spec: JobSpec) -> tuple[Task, JobSpec]:
        """Return its loop as a task, on the training thread."""
        ...

    def failed(self, error: BaseException) -> None:
        """Training has failed here with this, on the training thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facilities:
    """The parts of a worker that its job uses.

    Attributes:
        bridge: posts calls onto the event loop, from any thread.
        tell: sends to the coordinator, on the event loop; lost while there is no connection.
        feed: hands an event to the member core, on the event loop.
        script: the script of a process that was started by hand; None in a daemon.
    """

    config: WorkerConfig
    bridge: Bridge
    data: DataServer
    lifeline: Lifeline
    packages: TaskPackages
    datasets: JobData
    environments: Environments
    requests: Requests
    tell: Callable[[m.Message], None]
    feed: Callable[[member.Event], None]
    script: OwnScript | None = None


class JobThread(threading.Thread, ABC):
    """One job's thread.

    Args:
        post: hands an event to the member core, after the job's earlier output.
        connect: returns the function that connects to other workers' data ports.
    """

    def __init__(
        self,
        prepare: m.Prepare,
        spec: JobSpec,
        worker: Facilities,
        *,
        reporter: JobReporter,
        watch: ProgressWatch,
        post: Callable[[member.Event], None],
        connect: Callable[[], Connect],
    ) -> None:
        super().__init__(name="trainer", daemon=True)
        self._prepare = prepare
        self._spec = spec
        self._config = worker.config
        self._packages = worker.packages
        self._datasets = worker.datasets
        self._environments = worker.environments
        self._reporter = reporter
        self._watch = watch
        self._post = post
        self._connect = connect
        self._orders: queue.SimpleQueue[RingCollective | m.Save] = queue.SimpleQueue()

    def assign(self, ring: RingCollective) -> None:
        """Give the thread its next generation; called on the event loop."""
        self._orders.put(ring)

    def save(self, save: m.Save) -> None:
        """Have the thread write its state, between generations; called on the event loop."""
        self._orders.put(save)

    # --- the kind of job -----------------------------------------------------------------------

    @abstractmethod
    def _warm_up(self) -> None:
        """Get ready for generations, and report WARMED."""

    @abstractmethod
    def _generation(self, ring: RingCollective) -> Outcome:
        """Take part in a generation until the job or the generation ends.

        Raises:
            RingBroken: the generation is over.
            UnreadableWord: a rank has sent what no rank sends.
        """

    @abstractmethod
    def _committed_step(self) -> int:
        """Committed steps of the state that is live."""

    @abstractmethod
    def _held(self) -> tuple[m.Held, ...]:
        """The states that are here, the best one first."""

    @abstractmethod
    def _prepared(self) -> tuple[int, int]:
        """(generation, step) of the state that a prepared step leads to, or of the best one."""

    @abstractmethod
    def _save(self, order: m.Save) -> None:
        """Write what is held; each order is answered, by the report of a checkpoint or a notice."""

    def _place_of_code(self) -> Path | None:
        """Where the job's package is, if one was shipped; imports find it, and what it requires.

        Raises:
            TaskError: it cannot be had, or what it requires cannot be installed.
        """
        package = self._prepare.package
        place = self._packages.fetch(package) if package else None
        if self._spec.job.requirements:
            if place is None:
                raise TaskError(
                    "the job's requirements were not shipped", remedy="submit it without --no-ship"
                )
            self._environments.use(
                place,
                progress=self._reporter.progress,
                patience_s=self._spec.elastic.warmup_timeout_s,
            )
        look_first_in(place)
        return place

    def _required(self) -> dict[str, str]:
        """The versions of what the job requires, for the environment that WARMED reports."""
        versions = self._environments.versions
        return {figures.REQUIRED: versions} if versions else {}

    # --- its generations -----------------------------------------------------------------------

    def run(self) -> None:
        """Work until the process is replaced; every failure becomes a report."""
        try:
            self._watch.begin(time.monotonic())
            copies = self._datasets.bring(
                self._prepare.job,
                self._spec.data,
                connect=self._connect(),
                progress=self._reporter.progress,
            )
            for copy in copies:
                self._reporter.notice("data_copied", copy)
            self._warm_up()
            self._watch.end()
        except BaseException as error:  # noqa: BLE001 - a user's SystemExit fails the job too
            self._fail(error, step=0)
            return
        while True:
            order = self._orders.get()
            if isinstance(order, m.Save):
                self._save(order)
                continue
            try:
                self._serve(order)
            except BaseException as error:  # noqa: BLE001 - as above
                self._fail(error, step=self._committed_step())
                self._outlive_failure(order)

    def _outlive_failure(self, ring: RingCollective) -> None:
        """The state of the last committed step is whole: keep it for the coordinator's decision.

        It has the state saved, or, if a joiner was to blame, trains on without that one.  The
        neighbours are let go after both reports: their word of a lost link shall come second.
        """
        try:
            self._froze(ring.assign, "", "", "its training has failed")
        finally:
            ring.give_up("the training thread has failed")

    def _serve(self, ring: RingCollective) -> None:
        """One generation, and the report of how it ended."""
        assign = ring.assign
        self._reporter.begin_generation(assign)
        self._watch.begin(time.monotonic())
        try:
            outcome = self._generation(ring)
        except RingBroken as error:
            self._froze(assign, error.suspect, error.evidence, error.message)
        except UnreadableWord as error:
            ring.give_up(error.message)
            suspect = assign.roster[error.rank].name
            self._froze(assign, suspect, CORRUPT, error.message)
        else:
            if outcome.kind in ("finished", "stopped"):
                self._finished(assign, outcome)
            else:
                self._froze(assign, "", "", "the generation ended at a step boundary")
        finally:
            self._watch.end()

    def _froze(
        self,
        assign: m.Assign,
        suspect: str,
        evidence: str,
        reason: str,
        *,
        diverged_step: int = 0,
        differs: str = "",
    ) -> None:
        prepared_generation, prepared_step = self._prepared()
        self._post(
            m.Frozen(
                job=assign.job,
                generation=assign.generation,
                roster_id=assign.roster_id,
                held=self._held(),
                prepared_generation=prepared_generation,
                prepared_step=prepared_step,
                suspect=suspect,
                evidence=evidence,
                reason=reason,
                diverged_step=diverged_step,
                differs=differs,
            )
        )

    def _finished(self, assign: m.Assign, outcome: Outcome) -> None:
        held = self._held()[0]
        finished = m.Finished(
            job=assign.job,
            generation=assign.generation,
            held_generation=held.generation,
            part=held.part,
            step=outcome.step,
            digest=outcome.digest,
            result=self._result(outcome) if assign.rank == 0 else {},
            stopped=outcome.kind == "stopped",
        )
        self._reporter.flush()
        self._post(finished)

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        return self._reporter.result(outcome)

    def _fail(self, error: BaseException, *, step: int) -> None:
        """The job's own code, data or numbers failed, or this host: the coordinator judges."""
        blame = "" if isinstance(error, DtdError) else f"{type(error).__name__}: "
        log.error("training_failed", error=f"{blame}{error}")
        failed = m.Failed(
            job=self._prepare.job,
            reason=cut(f"{blame}{error}"),
            traceback=self._trace(error),
            step=step,
            of_code=isinstance(error, CodeError),
        )
        self._post(failed)

    def _trace(self, error: BaseException) -> str:
        """The end of an error's traceback, which the job's output has as well."""
        trace = cut_trace(error)
        with contextlib.suppress(Exception):  # the job may have put its own object there
            sys.stderr.write(trace)  # for `dtdctl logs`
        return trace
