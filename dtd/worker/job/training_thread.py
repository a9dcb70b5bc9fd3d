"""The training thread: the thread of a job whose steps dtd trains.

It connects `dtd.train` (state, loop) with the data plane: it loads the state from which a
generation starts, and runs the loop on the ring.  torch is imported here and not before, so an idle
worker has not paid for it.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from dtd.checkpoint.assemble import FoundPart
from dtd.cluster import member
from dtd.cluster.figures import told
from dtd.cluster.generation.branches import told_by
from dtd.engine.agenda import checkpoint_writers
from dtd.engine.shards import ShardSet
from dtd.engine.step_protocol import Reaction, reaction
from dtd.errors import (
    CheckpointError,
    DivergenceError,
    LoopLeft,
    RingBroken,
)
from dtd.exchange.collective import RingCollective
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED
from dtd.net.data_port.resources import Resource, memory_blob
from dtd.text.shown import one_line
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from dtd.worker.environment.packages import task_digest
from dtd.worker.files.checkpoint_parts import ask_for_parts, collect
from dtd.worker.job.fetch import fetch_state
from dtd.worker.job.job_thread import Facilities, JobThread

if TYPE_CHECKING:
    from dtd.exchange.api import Collective
    from dtd.train.profile import StepProfiler
    from dtd.train.record import HeldState, Outcome, WarmupReport
    from dtd.train.run import JobSessionRunner

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


def state_resource(generation: int) -> str:
    """Name under which the source of a generation offers its state."""
    return f"state/{generation}"


class TrainingThread(JobThread):
    """The thread of a job that trains: a task, or a script that joins.

    Args:
        silence_s: after which a donor that sends nothing is given up.
        committed: (generation, step) of the last commit by an earlier process of this worker.
    """

    def __init__(
        self,
        prepare: m.Prepare,
        spec: JobSpec,
        worker: Facilities,
        *,
        silence_s: float,
        committed: tuple[int, int] = (0, 0),
        profiler: StepProfiler | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(prepare, spec, worker, **parts)
        self._requests = worker.requests
        self._script = worker.script
        self._offer = worker.bridge.posting(worker.data.offer)
        self._silence_s = silence_s
        self._committed = committed
        self._profiler = profiler
        self._session: JobSessionRunner

    def _save(self, order: m.Save) -> None:
        try:
            self._session.save(order.generation, order.step)
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator asks another one
            self._reporter.warning("checkpoint_failed", str(error))

    def _committed_step(self) -> int:
        return self._session.committed_step

    def _held(self) -> tuple[m.Held, ...]:
        held = (self._session.held(), *self._session.saved())
        return tuple(map(_told, held[: m.MAX_HELD]))

    def _prepared(self) -> tuple[int, int]:
        held = self._session.held()
        return self._session.prepared_key or (held.generation, held.step)

    def _warm_up(self) -> None:
        with made_to_last():
            from dtd.own_loop.script import load_job_code
            from dtd.train.record import InitFrom
            from dtd.train.run import JobSessionRunner
            from dtd.train.warm_up.fingerprints import environment
        if self._spec.sync.transport != "ring":
            from dtd.exchange.group_backends import check_backend

            check_backend(self._spec.sync.transport, self._config.device)
        prepare, packages = self._prepare, self._packages
        place = self._place_of_code()
        parent = None
        if prepare.from_job:
            parent = InitFrom(
                job_id=prepare.from_job,
                step=prepare.from_step or None,
                mode="weights" if prepare.from_mode == "weights" else "resume",
                identity=prepare.from_identity,
            )
        run = self._session = JobSessionRunner(
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
            serves=self._config.role == "server",
            profiler=self._profiler,
            load=load_job_code if self._script is None else self._script.load,
        )
        report = run.prepare()
        self._complete_origin(run)
        leave_out_what_is_there()  # in no ring yet: nobody waits for it
        self._watch.mark(time.monotonic())  # reading checkpoints may take as long again
        here = environment(self._config.device) | self._required()
        self._post(self._warmed(report, place, told(here)))

    def _warmed(
        self,
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
            held=self._held(),
            batches=report.batches,
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

    def _serve(self, ring: RingCollective) -> None:
        try:
            super()._serve(ring)
        except DivergenceError as error:
            self._diverged(ring.assign, error)
        except LoopLeft as error:
            if isinstance(error.__cause__, Exception | None):
                raise
            self._leave(ring, error)

    def _leave(self, ring: RingCollective, error: LoopLeft) -> None:
        """The script was interrupted: the others redo the step, and what is held here is saved."""
        self._froze(ring.assign, "", "", error.message)
        ring.give_up(error.message)
        held = self._session.held()
        if held.where == "memory" and held.step:
            key = {"generation": held.generation, "step": held.step}
            self._save(m.Save(job=self._prepare.job, **key))

    def _trace(self, error: BaseException) -> str:
        if self._script is None:
            return super()._trace(error)
        self._script.failed(error)
        return ""  # the script shows it

    def _generation(self, ring: RingCollective) -> Outcome:
        run, assign, roster = self._session, ring.assign, ring.assign.roster
        self._reporter.begins("take over")
        run.leave_behind(told_by(assign))
        servers = sum(member_.serves for member_ in roster)
        trainers = len(roster) - servers
        run.expect(assign.held_step, rank=assign.rank, world_size=trainers)
        self._take_over(run, ring)
        ring.wait_up()
        writers = checkpoint_writers(
            [str((member_.host, *member_.others)) for member_ in roster],
            self._spec.checkpoint.copies,
            sharded=self._spec.strategy.name in SHARDED,
            servers=servers,
        )
        voters = frozenset(rank for rank, member_ in enumerate(roster) if member_.holds)
        collective = self._collective(ring)
        return run.run(
            collective,
            assign.generation,
            writers=writers,
            voters=voters,
            servers=servers,
            names=[member_.name for member_ in roster],
        )

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
                host=ring.host(),
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
                coded=self._spec.sync.lossless != "off",
                routes=ring.endpoint.routes,
            )
            log.info("state_received", **dataclasses.asdict(figures))
            return
        self._adopt(run, ring)
        if not all(member_.holds for member_ in assign.roster):
            image = run.export_state()
            parts = enumerate(zip(image.blobs, image.item_bytes, strict=True))
            blobs = [memory_blob(str(i), view, item_bytes) for i, (view, item_bytes) in parts]
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

    def _diverged(self, assign: m.Assign, error: DivergenceError) -> None:
        """Workers in the minority restart; without a majority no state is trusted.

        The ring is not given up: every rank reads this from words that are on their way to it, and
        one whose link is reset before that would not learn that its state is not to be trusted.
        """
        said = reaction(
            assign.rank, step=error.step, dissenters=error.dissenters, majority=error.majority
        )
        if said is Reaction.START_AFRESH:
            self._post(member.Diverged(generation=assign.generation, reason=error.message))
            return
        if said is not Reaction.KEEP:
            self._session.forget()
        self._froze(
            assign,
            "" if said is Reaction.FORGET else assign.roster[error.dissenters[0]].name,
            "diverged",
            error.message,
            diverged_step=error.step,
            differs=one_line(error.entry, MAX_ENTRY_CHARACTERS),
        )


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
