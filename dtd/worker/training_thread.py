"""The training thread: warm up, then one generation after another until the job is over.

It connects `dtd.train` (state, loop) with the data plane: it loads the state from which a
generation starts, runs the loop on the ring, and reports how the generation ended.  torch is
imported here and not before, so an idle worker has not paid for it.  `dtd.worker.training` says how
it and the event loop reach each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from dtd.checkpoint.assemble import FoundPart
from dtd.cluster import member
from dtd.cluster.branches import told_by
from dtd.cluster.figures import told
from dtd.cluster.progress import ProgressWatch
from dtd.config import WorkerConfig
from dtd.engine.agenda import checkpoint_writers
from dtd.engine.shards import ShardSet
from dtd.engine.step_protocol import Reaction, reaction
from dtd.errors import (
    CheckpointError,
    DivergenceError,
    DtdError,
    LoopLeft,
    RingBroken,
    UnreadableWord,
)
from dtd.exchange.collective import Bridge, RingCollective
from dtd.exchange.schedule.neighbours import CORRUPT
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED
from dtd.net.blocking_link import Connect
from dtd.net.data_server import DataServer, Resource, memory_blob
from dtd.net.liveness import Lifeline
from dtd.shown import cut, cut_trace, one_line
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from dtd.worker.checkpoint_files import ask_for_parts, collect
from dtd.worker.control import Requests
from dtd.worker.fetch import fetch_state
from dtd.worker.packages import TaskPackages, look_first_in, task_digest
from dtd.worker.reporter import JobReporter

if TYPE_CHECKING:
    from dtd.exchange.api import Collective
    from dtd.train.profile import StepProfiler
    from dtd.train.record import HeldState, Outcome, WarmupReport
    from dtd.train.run import JobSessionRunner
    from dtd.train.task import Task

log = structlog.get_logger()


@contextmanager
def made_to_last() -> Iterator[None]:
    """Disable collection inside; objects that exist at the end are never scanned again."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()


def leave_out_what_is_there() -> None:
    """Collect all garbage; the objects that remain are never scanned again."""
    gc.collect()
    gc.freeze()


MAX_ENTRY_CHARACTERS: Final = 255


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
        config: the worker's settings.
        bridge: posts calls onto the event loop, from any thread.
        data: the data port, on the event loop.
        lifeline: holds connections that end with the process.
        packages: has packages and weights on this worker's disk.
        requests: asks the coordinator, from the training thread.
        tell: sends to the coordinator, on the event loop; lost while there is no connection.
        feed: hands an event to the member core, on the event loop.
        script: the script of a process that was started by hand; None in a daemon.
    """

    config: WorkerConfig
    bridge: Bridge
    data: DataServer
    lifeline: Lifeline
    packages: TaskPackages
    requests: Requests
    tell: Callable[[m.Message], None]
    feed: Callable[[member.Event], None]
    script: OwnScript | None = None


def state_resource(generation: int) -> str:
    """Name under which the source of a generation offers its state."""
    return f"state/{generation}"


class TrainingThread(threading.Thread):
    """One job's training thread.

    Args:
        prepare: the job.
        spec: its specification.
        worker: the parts of the worker that it uses.
        silence_s: after which a donor that sends nothing is given up.
        reporter: told of steps, evaluations and checkpoints.
        committed: (generation, step) of the last commit by an earlier process of this worker.
        watch: watches the thread's progress.
        post: hands an event to the member core, after the job's earlier output.
        connect: returns the function that connects to other workers' data ports.
        profiler: profiles steps when it is asked to.
    """

    def __init__(
        self,
        prepare: m.Prepare,
        spec: JobSpec,
        worker: Facilities,
        *,
        silence_s: float,
        reporter: JobReporter,
        committed: tuple[int, int] = (0, 0),
        watch: ProgressWatch,
        post: Callable[[member.Event], None],
        connect: Callable[[], Connect],
        profiler: StepProfiler | None = None,
    ) -> None:
        super().__init__(name="trainer", daemon=True)
        self._prepare = prepare
        self._spec = spec
        self._config = worker.config
        self._packages = worker.packages
        self._requests = worker.requests
        self._script = worker.script
        self._offer = worker.bridge.posting(worker.data.offer)
        self._silence_s = silence_s
        self._reporter = reporter
        self._committed = committed
        self._watch = watch
        self._post = post
        self._connect = connect
        self._profiler = profiler
        self._orders: queue.SimpleQueue[RingCollective | m.Save] = queue.SimpleQueue()

    def assign(self, ring: RingCollective) -> None:
        """Give the thread its next generation; called on the event loop."""
        self._orders.put(ring)

    def save(self, save: m.Save) -> None:
        """Have the thread write its state, between generations; called on the event loop."""
        self._orders.put(save)

    def run(self) -> None:
        """Train until the process is replaced; every failure becomes a report."""
        try:
            self._watch.begin(time.monotonic())
            run = self._warm_up()
            self._watch.end()
        except BaseException as error:  # noqa: BLE001 - a user's SystemExit fails the job too
            self._fail(error, step=0)
            return
        while True:
            order = self._orders.get()
            if isinstance(order, m.Save):
                self._save(run, order)
                continue
            try:
                self._serve(run, order)
            except LoopLeft as error:
                if isinstance(error.__cause__, Exception | None):
                    self._fail(error, step=run.committed_step)
                    self._outlive_failure(run, order)
                else:
                    self._leave(run, order, error)
            except BaseException as error:  # noqa: BLE001 - as above
                self._fail(error, step=run.committed_step)
                self._outlive_failure(run, order)

    def _outlive_failure(self, run: JobSessionRunner, ring: RingCollective) -> None:
        """The state of the last committed step is whole: keep it for the coordinator's decision.

        It has the state saved, or, if a joiner was to blame, trains on without that one.  The
        neighbours are let go after both reports: their word of a lost link shall come second.
        """
        try:
            self._froze(run, ring.assign, "", "", "its training has failed")
        finally:
            ring.give_up("the training thread has failed")

    def _leave(self, run: JobSessionRunner, ring: RingCollective, error: LoopLeft) -> None:
        """The script was interrupted: the others redo the step, and what is held here is saved."""
        self._froze(run, ring.assign, "", "", error.message)
        ring.give_up(error.message)
        held = run.held()
        if held.where == "memory" and held.step:
            key = {"generation": held.generation, "step": held.step}
            self._save(run, m.Save(job=self._prepare.job, **key))

    def _save(self, run: JobSessionRunner, save: m.Save) -> None:
        """Write what is held; each order is answered, by the report of a checkpoint or by this."""
        try:
            run.save(save.generation, save.step)
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator asks another one
            self._reporter.warning("checkpoint_failed", str(error))

    def _warm_up(self) -> JobSessionRunner:
        with made_to_last():
            from dtd.own_loop.script import load_job_code
            from dtd.train.fingerprints import environment
            from dtd.train.record import InitFrom
            from dtd.train.run import JobSessionRunner
        if self._spec.sync.transport != "ring":
            from dtd.exchange.group_backends import check_backend

            check_backend(self._spec.sync.transport, self._config.device)
        prepare, packages = self._prepare, self._packages
        place = packages.fetch(prepare.package) if prepare.package else None
        look_first_in(place)
        parent = None
        if prepare.from_job:
            parent = InitFrom(
                job_id=prepare.from_job,
                step=prepare.from_step or None,
                mode="weights" if prepare.from_mode == "weights" else "resume",
                identity=prepare.from_identity,
            )
        run = JobSessionRunner(
            spec=self._spec,
            job_id=prepare.job,
            identity=prepare.identity,
            init_from=parent,
            weights=packages.fetch_weights(prepare.weights) if prepare.weights else None,
            strict=prepare.strict,
            device=self._config.device,
            threads=self._config.threads,
            state_dir=self._config.state_dir,
            reporter=self._reporter,
            requests=self._reporter,
            serves=self._config.role == "server",
            profiler=self._profiler,
            load=load_job_code if self._script is None else self._script.load,
        )
        report = run.prepare()
        self._complete_origin(run)
        leave_out_what_is_there()  # in no ring yet: nobody waits for it
        self._watch.mark(time.monotonic())  # reading checkpoints may take as long again
        self._post(self._warmed(run, report, place, told(environment(self._config.device))))
        return run

    def _warmed(
        self,
        run: JobSessionRunner,
        report: WarmupReport,
        place: Path | None,
        environment: tuple[str, ...],
    ) -> m.Warmed:
        return m.Warmed(
            job=self._prepare.job,
            dataset_rows=report.dataset_rows,
            dataset_fingerprint=report.dataset_fingerprint,
            plan_digest=report.plan_digest,
            numerics_fingerprint=report.numerics_fingerprint,
            parameters=report.parameters,
            steps_total=report.steps_total,
            held=(_told(run.held()), *map(_told, run.saved()))[: m.MAX_HELD],
            task_digest=task_digest(self._spec.job.task, place),
            environment=environment,
            committed_generation=self._committed[0],
            committed_step=self._committed[1],
        )

    def _complete_origin(self, run: JobSessionRunner) -> None:
        """Assemble the checkpoint that the job starts from, if workers have it in parts.

        What cannot be had is not reported as held: the last worker to come finds all the others.
        """
        incomplete = run.incomplete_origin()
        if incomplete is None:
            return
        path, directory = incomplete
        serves = self._config.role == "server"
        if path is None and self._spec.strategy.owners == "servers" and not serves:
            return  # the state is the servers' business
        try:
            job, step = self._prepare.from_job, self._prepare.from_step
            answer = ask_for_parts(self._requests, job, step)
            if not (answer.holders or answer.missing):
                return  # others have it whole, or have begun with it: they hand the state over
            collect(
                answer,
                None if path is None else FoundPart(holder=self._config.name, path=path),
                directory,
                connect=self._connect(),
                progress=self._reporter.progress,
            )
        except CheckpointError as error:
            self._reporter.warning(
                "checkpoint_passed_over",
                f"the checkpoint of {self._prepare.from_job} was not completed: {error}",
            )

    def _serve(self, run: JobSessionRunner, ring: RingCollective) -> None:
        """One generation, from taking over the state to how it ended."""
        assign = ring.assign
        self._reporter.begin_generation(assign)
        self._watch.begin(time.monotonic())
        self._reporter.begins("take over")
        run.leave_behind(told_by(assign))
        try:
            servers = sum(member_.serves for member_ in assign.roster)
            trainers = len(assign.roster) - servers
            run.expect(assign.held_step, rank=assign.rank, world_size=trainers)
            self._take_over(run, ring)
            ring.wait_up()
            roster = assign.roster
            writers = checkpoint_writers(
                [member_.host for member_ in roster],
                self._spec.checkpoint.copies,
                sharded=self._spec.strategy.name in SHARDED,
                servers=servers,
            )
            voters = frozenset(rank for rank, member_ in enumerate(roster) if member_.holds)
            collective = self._collective(ring)
            outcome = run.run(
                collective, assign.generation, writers=writers, voters=voters, servers=servers
            )
        except RingBroken as error:
            self._froze(run, assign, error.suspect, error.evidence, error.message)
        except UnreadableWord as error:
            ring.give_up(error.message)
            suspect = assign.roster[error.rank].name
            self._froze(run, assign, suspect, CORRUPT, error.message)
        except DivergenceError as error:
            self._diverged(run, assign, error)
        else:
            if outcome.kind in ("finished", "stopped"):
                self._finished(run, assign, outcome)
            else:
                self._froze(run, assign, "", "", "the generation ended at a step boundary")
        finally:
            self._watch.end()

    def _collective(self, ring: RingCollective) -> Collective:
        """The ring, or the process group that rests on it."""
        transport = self._spec.sync.transport
        if transport == "ring" or ring.endpoint.star is not None:
            return ring
        from dtd.exchange.group_backends import group_of
        from dtd.exchange.process_group import ProcessGroupCollective

        return ProcessGroupCollective(
            ring,
            lambda: group_of(
                transport,
                rank=ring.rank,
                world_size=ring.world_size,
                host=ring.assign.roster[ring.rank].host,
                device=self._config.device,
                connect_timeout_s=self._silence_s,
            ),
        )

    def _take_over(self, run: JobSessionRunner, ring: RingCollective) -> None:
        """Adopt what this worker holds, or fetch what it lacks; holders offer it to who lacks it.

        A step that is prepared here and committed by the others is committed, not fetched.
        """
        assign = ring.assign
        name = state_resource(assign.generation)
        own = assign.roster[assign.rank]
        if not own.holds:
            donors = [member_ for member_ in assign.roster if member_.holds]
            figures = fetch_state(
                run,
                donors,
                name,
                by=own.name,
                entry=DataCredential.of(assign),
                silence_s=self._silence_s,
                ring=ring,
                connect=ring.connect_data,
            )
            log.info("state_received", **dataclasses.asdict(figures))
            return
        self._adopt(run, ring)
        if not all(member_.holds for member_ in assign.roster):
            image = run.export_state()
            blobs = [memory_blob(str(i), view) for i, view in enumerate(image.blobs)]
            self._offer(name, Resource(manifest=image.manifest, blobs=blobs))

    def _adopt(self, run: JobSessionRunner, ring: RingCollective) -> None:
        """Load the state that this worker has offered.

        A checkpoint may have been damaged since: then it is offered no more, and the next
        generation takes another worker's.  One that is sound and does not fit is the job's fault.
        """
        start = ring.assign.held_generation, ring.assign.held_step
        try:
            run.adopt_local(*start)
        except CheckpointError as error:
            held = run.held()
            if (held.generation, held.step) == start:
                raise
            ring.give_up(error.message)
            raise RingBroken(f"the state that it offered is damaged: {error.message}") from error

    def _froze(
        self,
        run: JobSessionRunner,
        assign: m.Assign,
        suspect: str,
        evidence: str,
        reason: str,
        *,
        diverged: DivergenceError | None = None,
    ) -> None:
        held = _told(run.held())
        prepared = run.prepared_key or (held.generation, held.step)
        self._post(
            m.Frozen(
                job=assign.job,
                generation=assign.generation,
                roster_id=assign.roster_id,
                held=(held, *map(_told, run.saved()))[: m.MAX_HELD],
                prepared_generation=prepared[0],
                prepared_step=prepared[1],
                suspect=suspect,
                evidence=evidence,
                reason=reason,
                diverged_step=diverged.step if diverged is not None else 0,
                differs=one_line(diverged.entry, MAX_ENTRY_CHARACTERS)
                if diverged is not None
                else "",
            )
        )

    def _diverged(self, run: JobSessionRunner, assign: m.Assign, error: DivergenceError) -> None:
        """Workers in the minority restart; without a majority no state is trusted.

        The ring is not given up: every rank reads this from words that are on their way to it, and
        one whose link is reset before that would not learn that its state is not to be trusted.
        """
        said = reaction(assign.rank, dissenters=error.dissenters, majority=error.majority)
        if said is Reaction.START_AFRESH:
            self._post(member.Diverged(generation=assign.generation, reason=error.message))
            return
        if said is Reaction.FORGET:
            run.forget()
        suspect = assign.roster[error.dissenters[0]].name if said is Reaction.KEEP else ""
        self._froze(run, assign, suspect, "diverged", error.message, diverged=error)

    def _finished(self, run: JobSessionRunner, assign: m.Assign, outcome: Outcome) -> None:
        held = run.held()
        finished = m.Finished(
            job=assign.job,
            generation=assign.generation,
            held_generation=held.generation,
            part=_numbers(held.part),
            step=outcome.step,
            digest=outcome.digest,
            result=self._reporter.result(outcome) if assign.rank == 0 else {},
            stopped=outcome.kind == "stopped",
        )
        self._reporter.flush()
        self._post(finished)

    def _fail(self, error: BaseException, *, step: int) -> None:
        """The job's own code, data or numbers failed, or this host: the coordinator judges."""
        blame = "" if isinstance(error, DtdError) else f"{type(error).__name__}: "
        trace = cut_trace(error)
        log.error("training_failed", error=f"{blame}{error}")
        if self._script is not None:
            self._script.failed(error)
            trace = ""  # the script shows it
        with contextlib.suppress(Exception):  # the job may have put its own object there
            sys.stderr.write(trace)  # for `dtdctl logs`
        failed = m.Failed(
            job=self._prepare.job,
            reason=cut(f"{blame}{error}"),
            traceback=trace,
            step=step,
        )
        self._post(failed)


def _told(held: HeldState) -> m.Held:
    """A state that this worker holds, as it is reported."""
    return m.Held(
        job=held.job_id,
        generation=held.generation,
        step=held.step,
        digest=held.digest,
        where=held.where,
        part=_numbers(held.part),
    )


def _numbers(part: ShardSet) -> tuple[int, ...]:
    """A part of a state as messages name it, in which all of it is nothing in particular."""
    return () if part.is_whole else tuple(part.to_wire())
