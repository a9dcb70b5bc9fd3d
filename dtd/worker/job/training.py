"""The job of this process: its training thread, and the ring of each of its generations.

A process takes part in one job.  Two threads share it, and this is how they reach each other:

    event loop -> training thread   a queue of orders: the ring of the next generation, SAVE;
                                    two fields that it reads once a step: flags, a profile's order
    training thread -> event loop   calls that `Bridge` posts: reports to the member core, messages
                                    to the coordinator, buckets of the ring, offers, questions
    what the thread waits for       answers of the ring and of `Requests`, which wake it

The event loop never waits for the training thread.  What it reads of it (figures, marks of
progress) is written by the thread alone, a field at a time.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
from collections.abc import Callable
from typing import Any

import structlog

from dtd.cluster import member
from dtd.cluster.workers.progress import LOOK_AFTER_S, ProgressWatch
from dtd.config import WorkerConfig
from dtd.errors import ConfigError
from dtd.exchange.collective import RingCollective
from dtd.job import JobSpec
from dtd.net.addresses.routes import Routes
from dtd.net.clients.blocking_link import Connect, connect_tcp
from dtd.net.clients.tls import tls_connect
from dtd.security.identity import WORKER
from dtd.text.names import LAUNCHED
from dtd.train.profile import StepProfiler
from dtd.wire import messages as m
from dtd.worker.job.evidence import glance, look_closely, where_stalled
from dtd.worker.job.job_thread import Facilities, JobThread
from dtd.worker.job.launch_thread import LaunchThread
from dtd.worker.job.output import OutputPipe, flush_output
from dtd.worker.job.reporter import FILE, CommittedStep, JobReporter, progress_message
from dtd.worker.job.training_thread import TrainingThread
from dtd.worker.process.host_checks import refuse_if_laxer
from dtd.worker.process.state_directory import fd_directory

log = structlog.get_logger()


class Training:
    """The job of this process, as the event loop sees it; starts the training thread at once.

    Args:
        silence_s: after which a donor that sends nothing is given up.
        output: the job's output; None if it is not read, as that of a script started by hand.
        context: this worker's TLS for calling others; None without a credential.

    Attributes:
        checkpoint_directory: as the job names it; empty: the worker's own.
        ring: the newest generation's; None before the first.

    Raises:
        ConfigError: the job requires a credential or a sandbox that this worker lacks.
    """

    def __init__(
        self,
        prepare: m.Prepare,
        spec: JobSpec,
        worker: Facilities,
        *,
        silence_s: float,
        output: OutputPipe | None,
        context: ssl.SSLContext | None,
    ) -> None:
        _check_fit(worker.config, spec, context)
        self.job = prepare.job
        self.checkpoint_directory = spec.checkpoint.directory
        self.ring: RingCollective | None = None
        self._worker = worker
        self._routes = Routes()
        self._context = context if spec.sync.encryption == "tls" else None
        self._fd_dir = fd_directory(worker.config.state_dir, os.environ)
        self._output = output
        self._chunk_bytes = spec.sync.chunk_kib * 1024
        self._lossless = spec.sync.lossless
        self._watch = ProgressWatch(
            first_stall_limit_s=spec.elastic.warmup_timeout_s,
            least_stall_limit_s=spec.elastic.stall_timeout_s,
            busy_limit_s=spec.elastic.busy_timeout_s,
        )
        record = CommittedStep(worker.config.state_dir / FILE, f"{prepare.job} {prepare.identity}")
        self._reporter = self._new_reporter(record)
        self.profiler = StepProfiler(
            sees_torch=spec.sync.transport == "ring", begins=self._reporter.begins
        )
        parts = {
            "reporter": self._reporter,
            "watch": self._watch,
            "post": self._report,
            "connect": self._connect_data,
        }
        self._thread: JobThread
        if spec.job.task.endswith(LAUNCHED):
            assert output is not None, "a script that was started by hand joins"
            self._thread = LaunchThread(prepare, spec, worker, output=output, **parts)
        else:
            self._thread = TrainingThread(
                prepare,
                spec,
                worker,
                silence_s=silence_s,
                committed=record.before,
                profiler=self.profiler,
                **parts,
            )
        self._thread.start()

    def _new_reporter(self, record: CommittedStep) -> JobReporter:
        tell, posting = self._worker.tell, self._worker.bridge.posting
        return JobReporter(
            self.job,
            posting(tell),
            posting(lambda progress, steps: tell(progress_message(progress, steps))),
            self._watch,
            record,
            on_gpu=self._worker.config.device != "cpu",
        )

    def _report(self, event: member.Event) -> None:
        """Hand over an event of the training thread, after the job's earlier output."""
        flush_output()
        if self._output is not None:
            self._output.read_all()
        self._worker.bridge.post(self._worker.feed, event)

    def _connect_data(self) -> Connect:
        """Return the function that connects to other workers: encrypted if the job is."""
        return connect_tcp if self._context is None else tls_connect(self._context, WORKER)

    @property
    def rank(self) -> int:
        """In the newest generation; 0 before the first."""
        return self.ring.rank if self.ring is not None else 0

    @property
    def step(self) -> int:
        """Committed steps, as last reported."""
        return int(self._reporter.heartbeat_fields().get("step", 0))

    @property
    def roster(self) -> tuple[m.Member, ...]:
        """The newest generation's; empty before the first."""
        return self.ring.assign.roster if self.ring is not None else ()

    @property
    def disk_failure(self) -> str:
        """Why no checkpoint could be written; empty when the last one was."""
        return self._reporter.disk_failure

    def form_ring(
        self,
        assign: m.Assign,
        *,
        beat_interval_s: float,
        silence_s: float,
        agreed: Callable[[], None],
    ) -> None:
        """Become a member of a generation, and leave the previous one."""
        structlog.contextvars.bind_contextvars(
            job=assign.job, generation=assign.generation, rank=assign.rank
        )
        log.info("generation_assigned", roster=[member_.name for member_ in assign.roster])
        if self.ring is not None:
            self.ring.endpoint.end(f"generation {assign.generation} follows")
        self._worker.data.withdraw()
        self.ring = RingCollective(
            self._worker.bridge,
            assign,
            self._worker.data,
            chunk_bytes=self._chunk_bytes,
            beat_interval_s=beat_interval_s,
            silence_s=silence_s,
            agreed=self._worker.bridge.posting(self._on_agreed, assign, agreed),
            lifeline=self._worker.lifeline,
            context=self._context,
            fd_dir=self._fd_dir,
            lossless=self._lossless,
            routes=self._routes,
        )
        self.ring.endpoint.connect()
        self._thread.assign(self.ring)

    def use(self, context: ssl.SSLContext) -> None:
        """TLS for calling other workers from the next generation on."""
        if self._context is not None:
            self._context = context

    def break_ring(self, reason: str) -> None:
        assert self.ring is not None
        self.ring.endpoint.end(reason)

    def save(self, save: m.Save) -> None:
        self._thread.save(save)

    def end_at_boundary(self, *, stop: bool, leave: bool) -> None:
        self._reporter.end_at_boundary(stop=stop, leave=leave)

    def heartbeat_fields(self, interval_s: float) -> dict[str, Any]:
        """Figures, and whether the thread makes progress; waiting for the ring is not a stall."""
        figures = self._reporter.heartbeat_fields()
        if not self._watch.training:
            return figures
        waits = self.ring is not None and self.ring.waiting_since is not None
        seen = glance()
        stalled_s = self._watch.look(seen.at_s, tick_s=interval_s, waits=waits)
        if stalled_s >= LOOK_AFTER_S:
            enough = self._watch.is_enough(seen)
            self._watch.saw(seen if enough else look_closely(self._thread, seen))
        verdict = self._watch.verdict(seen.at_s, stalled_s)
        return (
            figures
            | dataclasses.asdict(verdict)
            | {"where": where_stalled(self._thread.ident, stalled_s)}
        )

    def _on_agreed(self, assign: m.Assign, agreed: Callable[[], None]) -> None:
        """Nobody needs to fetch the state any more."""
        self._worker.data.withdraw()
        agreed()
        self._worker.feed(
            m.Running(job=assign.job, generation=assign.generation, step=assign.held_step)
        )


def _check_fit(config: WorkerConfig, spec: JobSpec, context: ssl.SSLContext | None) -> None:
    """Check that this worker may run the job at all."""
    if spec.sync.encryption == "tls" and context is None:
        raise ConfigError(
            "the job is encrypted, and this worker has no credential for that",
            remedy="join this host as well: `dtdctl token create`, `dtd-worker join TOKEN`",
        )
    refuse_if_laxer(config.sandbox, spec.job.sandbox)
