"""The worker as a process: member core, control connection, data port and training thread.

The event loop maintains the connection to the coordinator (and reconnects when it is lost), sends
heartbeats, and moves the ring's bytes; the training thread trains.  After a job the process
replaces itself, so that the next job starts in a clean interpreter.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from dtd import diagnostics
from dtd.cluster import member
from dtd.cluster.transitions import MemberState
from dtd.config import WorkerConfig
from dtd.errors import CheckpointError, ConfigError, DtdError, JobSpecError, RequestRefused
from dtd.exchange.collective import Bridge
from dtd.host.process_memory import resident_bytes
from dtd.job import JobSpec, from_mapping
from dtd.net.clients.blocking_link import Connect, connect_tcp
from dtd.net.clients.tls import tls_connect
from dtd.net.data_port.data_server import DataServer
from dtd.net.data_port.resources import Resource
from dtd.net.link import Link
from dtd.net.liveness import Lifeline
from dtd.observe.metrics.endpoint import members_only
from dtd.observe.metrics.worker import WorkerMetrics
from dtd.security.credential import Credential
from dtd.security.identity import WORKER
from dtd.security.targets import Target
from dtd.text.shown import cut, cut_trace
from dtd.wire import messages as m
from dtd.wire.session import State
from dtd.worker.cluster_access import (
    CredentialRenewal,
    coordinator_targets,
    registration,
    with_hosts,
)
from dtd.worker.control import ControlConnection, Requests
from dtd.worker.environment.environments import ENVIRONMENTS, Environments
from dtd.worker.environment.packages import PACKAGES, TaskPackages
from dtd.worker.files.checkpoints import drop_checkpoint, open_checkpoint
from dtd.worker.files.data_offer import PREFIX as DATA
from dtd.worker.files.datasets import JobData
from dtd.worker.files.models import MODELS, PREFIX, PinnedModels, open_model
from dtd.worker.job.job_thread import Facilities, OwnScript
from dtd.worker.job.output import JobLines, OutputPipe
from dtd.worker.job.training import Training
from dtd.worker.measure.links import PeerDiagnostics, probe
from dtd.worker.measure.measure import measure
from dtd.worker.measure.profiles import PREFIX as PROFILES
from dtd.worker.measure.profiles import PROFILE, Profiles
from dtd.worker.process.host_checks import ATEN_CPU_CAPABILITY
from dtd.worker.status import TrafficMeter, status_line

log = structlog.get_logger()

OUTPUT_EVERY_S: Final = 0.1
GIB: Final = 1 << 30
_PACKAGE: Final = Path(diagnostics.__file__).parent
DEFAULT_HEARTBEAT_INTERVAL_S: Final = 0.25
DEFAULT_HEARTBEAT_TIMEOUT_S: Final = 1.5
_FINAL: Final = frozenset(
    {diagnostics.REFUSED, "not-followed", "credential-refused", "may-not-open"}
)
"""Kinds of a coordinator's answer that another attempt does not change."""


class Worker:
    """One worker on the running event loop.

    Args:
        credential: the worker's identity for other workers, for jobs that are encrypted.
        last_end: how the process before this one ended, if not in good order.
        script: the script of a process that was started by hand; None in a daemon.

    Attributes:
        drilled: an operator had it send itself a signal, to see it come back.
        failure: the exception in its own code for which this process ends; None if there is none.
    """

    def __init__(
        self,
        config: WorkerConfig,
        coordinators: Callable[[], Sequence[Target]],
        credential: Credential | None = None,
        *,
        last_end: str = "",
        instance: str = "",
        script: OwnScript | None = None,
    ) -> None:
        self.drilled = False
        self.failure: Exception | None = None
        self._last_end = last_end
        self._instance = instance
        self._script = script
        self._known = script is None
        self.config = config
        self._coordinators = coordinators
        self._calls_tls = credential.client_context() if credential is not None else None
        self._serves_tls = credential.server_context() if credential is not None else None
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_exception)
        self.ending: asyncio.Future[member.Restart | member.Exit] = self._loop.create_future()
        self._control = ControlConnection(
            coordinators,
            name=config.name,
            opened=lambda: self._feed(member.ControlOpened()),
            received=self._on_message,
            troubled=self._on_trouble,
        )
        self._renewal: CredentialRenewal | None = None
        if credential is not None:
            self._renewal = CredentialRenewal(
                credential, config.state_dir, send=self._control.send, renewed=self._use
            )
        self._parts = self._new_parts()
        send = self._parts.bridge.posting(self._control.send)
        self._profiles = Profiles(config.state_dir, send)
        self._models = PinnedModels(
            config.state_dir / MODELS,
            worker=config.name,
            checkpoints=self._checkpoint_directories,
            connect=self._connect_to_workers,
            send=send,
        )
        self._metrics = self._new_metrics(credential)
        self._traffic = TrafficMeter()
        self._interval_s = DEFAULT_HEARTBEAT_INTERVAL_S
        self._silence_s = DEFAULT_HEARTBEAT_TIMEOUT_S
        self._training: Training | None = None
        self._prepared = asyncio.Event()
        self._output: OutputPipe | None = None
        self._lines = JobLines(self._control.send)
        self._measuring: set[asyncio.Task[None]] = set()
        self._peers = PeerDiagnostics()
        self._receivers = self._message_table()
        self._effects = self._effect_table()
        self._core: member.Member

    def _new_parts(self) -> Facilities:
        bridge, lifeline = Bridge(self._loop), Lifeline()
        lifeline.start()
        requests = Requests(send=self._control.send, post=bridge.post)
        return Facilities(
            config=self.config,
            bridge=bridge,
            data=DataServer(self.config.name, self._open_on_disk),
            lifeline=lifeline,
            packages=TaskPackages(self.config.state_dir / PACKAGES, requests),
            datasets=JobData(
                self.config.state_dir / "data",
                int(self.config.data_cache_gib * GIB),
                by=self.config.name,
                requests=requests,
                tell=self._control.send,
            ),
            environments=Environments(
                self.config.state_dir / ENVIRONMENTS, int(self.config.environments_gib * GIB)
            ),
            requests=requests,
            tell=self._control.send,
            feed=self._feed,
            script=self._script,
        )

    def _new_metrics(self, credential: Credential | None) -> WorkerMetrics:
        config = self.config
        only_members = config.metrics_for == "members"
        made = WorkerMetrics(
            config.name,
            config.device,
            config.metrics,
            (lambda: members_only(self._serves_tls)) if only_members else None,
        )
        if credential is not None:
            made.certificate_expires_s = credential.expires.timestamp()
        return made

    def _message_table(self) -> Mapping[type[m.Message], Callable[[Any, memoryview], None]]:
        """By type of message; all others are for the member core."""
        answered = self._parts.requests.received
        return {
            m.Package: lambda message, payload: answered(message, bytes(payload)),
            m.Parts: lambda message, _: answered(message),
            m.DataSources: lambda message, _: answered(message),
            m.DropCheckpoint: lambda message, _: self._begin_drop(message),
            m.PinModel: lambda message, _: self._models.order(message),
            m.UnpinModel: lambda message, _: self._models.order(message),
            m.Renewed: lambda message, _: self._on_renewed(message),
            m.Measure: lambda message, _: self._begin_measuring(message),
            m.Registered: lambda message, _: self._on_registered(message),
        }

    def _effect_table(self) -> Mapping[type[member.Effect], Callable[[Any], None]]:
        return {
            member.Tell: self._on_tell,
            m.Prepare: self._warm_up,
            m.Assign: self._form_ring,
            m.Save: lambda save: self._job().save(save),
            m.Probe: self._probe,
            m.Signal: self._raise,
            member.BreakRing: lambda effect: self._job().break_ring(effect.reason),
            member.EndAtBoundary: lambda effect: self._job().end_at_boundary(
                stop=effect.stop, leave=effect.leave
            ),
            member.Restart: self._end,
            member.Exit: self._end,
        }

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data port: from now on others can call."""
        bound = await self._parts.data.listen(self.config.listen, context=self._serves_tls)
        register = registration(
            self.config, bound, last_end=self._last_end, instance=self._instance
        )
        self._core = member.Member(register, self._script.spec if self._script else None)
        await asyncio.to_thread(self._metrics.exposition.start)
        log.info("worker_started", worker=self.config.name, data_port=bound.port, pid=os.getpid())

    async def run(self) -> member.Restart | member.Exit:
        """Serve until it is time to restart or exit."""
        self._parts.packages.remove_abandoned()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._control.keep()),
                tasks.create_task(self._keep_heartbeats()),
                tasks.create_task(self._keep_output()),
                tasks.create_task(self._metrics.keep()),
            ]
            ending = await self.ending
            for task in running:
                task.cancel()
        if self._output is not None:
            await asyncio.to_thread(self._output.read_all)
        self._send_output(ended=True)
        await self._control.leave(ending.reason)
        self._parts.data.close()
        await asyncio.to_thread(self._metrics.exposition.close)
        log.info("worker_ends", reason=ending.reason, how=type(ending).__name__.lower())
        return ending

    def stop(self, reason: str) -> None:
        """Leave in good order; a second call leaves at once."""
        if not self._control.is_open or self._core.stopping:
            self._end(member.Exit(reason=reason))
            return
        log.info("worker_stopping", reason=reason)
        self._feed(member.StopAsked(reason=reason))

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """End this process: an exception that nobody expected has left a callback or a task.

        What the callback was to do is undone for ever, so that a worker which went on would wait
        for it.  A stranger's bytes end no worker, but only the connection on which they came; nor
        does what a library raises in a callback of its own, which cost a connection at most.
        """
        error, protocol = context.get("exception"), context.get("protocol")
        stranger = isinstance(protocol, Link) and protocol.session.state is not State.OPEN
        if not isinstance(error, Exception) or stranger or not _is_ours(error):
            loop.default_exception_handler(context)
        elif self.failure is None:
            self.failure = error
            cause = cut(f"{type(error).__name__}: {error}")
            trace = cut_trace(error)
            log.error("worker_failed", cause=cause, traceback=trace)
            self._end(member.Exit(reason="internal error"))
            if self._training is not None:
                self._control.send(
                    m.Failed(
                        job=self._training.job,
                        reason=cut(f"internal error of dtd-worker: {cause}"),
                        traceback=trace,
                        step=self._training.step,
                    )
                )

    def describe(self) -> str:
        absent = "" if self._control.is_open else ", ".join(map(str, self._coordinators()))
        diagnostic = self._control.diagnostic or self._peers.first
        if diagnostic is None and self._training is not None and self._training.disk_failure:
            diagnostic = diagnostics.disk(self.config.name, self._training.disk_failure)
        said = str(diagnostic) if diagnostic is not None else ""
        return status_line(
            self._heartbeat(), self._core.assign, coordinator=absent, diagnostic=said
        )

    def _on_message(self, message: m.Message, payload: memoryview) -> None:
        try:
            self._act_on(message, payload)
        except OSError as error:  # which asyncio would take for the end of the connection
            raise RuntimeError(f"{m.message_name(type(message))}: {error}") from error

    def _act_on(self, message: m.Message, payload: memoryview) -> None:
        receive = self._receivers.get(type(message))
        if receive is not None:
            receive(message, payload)
        else:
            self._feed(message)

    def _on_registered(self, message: m.Registered) -> None:
        self._parts.data.worker_secret = message.secret
        self._interval_s = message.heartbeat_interval_s
        self._silence_s = message.heartbeat_timeout_s
        self._parts.requests.ask_again()
        self._models.order(message)
        self._known = True
        if message.refused and self._script is not None:
            self._give_up(RequestRefused(message.refused))
        if message.refused:
            log.warning("coordinator_refused", reason=message.refused)
        self._feed(message)
        self._parts.datasets.tell_again()

    def _on_renewed(self, message: m.Renewed) -> None:
        if self._renewal is not None:
            self._renewal.received(message)

    def _use(self, credential: Credential) -> None:
        """Connections that are made from now on show this credential."""
        self._calls_tls, self._serves_tls = credential.client_context(), credential.server_context()
        self._parts.data.use(self._serves_tls)
        self._control.use(coordinator_targets(self.config, credential, os.environ))
        if self._training is not None:
            self._training.use(self._calls_tls)
        self._metrics.certificate_expires_s = credential.expires.timestamp()

    def _begin_measuring(self, message: m.Measure) -> None:
        """Measure beside the job, or in it."""
        if message.what == PROFILE:
            self._profiles.begin(message, self._training)
        else:
            task = asyncio.create_task(self._measure(message))
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)

    async def _measure(self, message: m.Measure) -> None:
        idle = self._core.state is MemberState.IDLE
        fetch = self._parts.packages.fetch
        self._control.send(await measure(message, self.config, fetch_package=fetch, idle=idle))

    def _begin_drop(self, message: m.DropCheckpoint) -> None:
        """Delete it in a thread, and answer."""

        def answer(done: asyncio.Future[str]) -> None:
            dropped = m.CheckpointDropped(directory=message.directory, reason=done.result())
            self._control.send(dropped)

        self._loop.run_in_executor(None, drop_checkpoint, message).add_done_callback(answer)

    def _feed(self, event: member.Event) -> None:
        """Pass an event to the member core, and do what it decides."""
        if not self.ending.done():
            for effect in self._core.handle(event):
                self._effects[type(effect)](effect)

    # --- effects -----------------------------------------------------------------------------

    def _on_tell(self, effect: member.Tell) -> None:
        message = effect.message
        if isinstance(message, m.Finished | m.Failed):
            self._send_output(ended=True)  # a client that waits for the end finds all output
        elif isinstance(message, m.Register):
            message = dataclasses.replace(with_hosts(message), clock_s=self._loop.time())
        self._control.send(message)

    def _raise(self, order: m.Signal) -> None:
        log.warning("signal_raised", signal=order.signal)
        self.drilled = True
        os.kill(os.getpid(), getattr(signal, f"SIG{order.signal}"))

    def _job(self) -> Training:
        assert self._training is not None, "the core orders this of a job only"
        return self._training

    def _end(self, ending: member.Restart | member.Exit) -> None:
        if not self.ending.done():
            self.ending.set_result(ending)

    def _warm_up(self, prepare: m.Prepare) -> None:
        """Begin the job; what cannot begin is a failure of the job on this host."""
        log.info("job_prepared", job=prepare.job)
        self._prepared.set()
        try:
            spec = from_mapping(prepare.spec, source=f"job {prepare.job}")
            self._begin_training(prepare, spec)
        except (ConfigError, JobSpecError, OSError) as error:
            log.error("training_failed", error=str(error))
            self._feed(m.Failed(job=prepare.job, reason=cut(str(error)), traceback=""))

    def _begin_training(self, prepare: m.Prepare, spec: JobSpec) -> None:
        if prepare.instructions:
            os.environ[ATEN_CPU_CAPABILITY] = prepare.instructions
        if self._script is None:
            sys.argv = [spec.job.task]  # a script's arguments are its own, not the worker's
            self._output = OutputPipe()
        self._training = Training(
            prepare,
            spec,
            self._parts,
            silence_s=self._silence_s,
            output=self._output,
            context=self._calls_tls,
        )

    def _form_ring(self, assign: m.Assign) -> None:
        self._job().form_ring(
            assign,
            beat_interval_s=self._interval_s,
            silence_s=self._silence_s,
            agreed=self._peers.forget,
        )

    def _probe(self, message: m.Probe) -> None:
        """Call another worker, in a thread of its own: many may be unreachable at a time."""

        def call() -> None:
            probed = probe(message, by=self.config.name, timeout_s=self._silence_s)
            self._parts.bridge.post(self._on_probed, message, probed)

        threading.Thread(target=call, name="probe", daemon=True).start()

    def _on_probed(self, message: m.Probe, probed: m.Probed) -> None:
        self._peers.probed(message, probed)
        self._feed(probed)

    def _open_on_disk(self, resource: str) -> Resource:
        """Open a resource that other workers fetch from files; in a thread."""
        if resource.startswith(PREFIX):
            return open_model(self.config.state_dir / MODELS, resource)
        if resource.startswith(DATA):
            return self._parts.datasets.open(resource)
        if resource.startswith(PROFILES):
            return self._profiles.open(resource)
        return open_checkpoint(self._checkpoint_directories(), resource)

    def _checkpoint_directories(self) -> list[Path]:
        directories = [self.config.state_dir / "checkpoints"]
        if self._training is not None and self._training.checkpoint_directory:
            directories.insert(0, Path(self._training.checkpoint_directory))
        return directories

    def _connect_to_workers(self, encrypted: bool) -> Connect:
        """Return what connects to other workers for copies of models; called in their thread."""
        if not encrypted:
            return connect_tcp
        if self._calls_tls is None:
            raise CheckpointError("the job is encrypted, and this worker has no credential")
        return tls_connect(self._calls_tls, WORKER)

    # --- heartbeats and output ---------------------------------------------------------------

    async def _keep_heartbeats(self) -> None:
        while True:
            self._control.look(self._loop.time())
            beat = self._heartbeat()
            if not self._core.introducing:
                self._control.beat(beat)
            self._metrics.publish(beat, self._training.roster if self._training else ())
            await asyncio.sleep(self._interval_s)

    def _on_trouble(self, said: diagnostics.Diagnostic) -> None:
        """End a process that was started by hand, and that the coordinator does not accept.

        A daemon goes on calling, since the reason may pass.
        """
        if not self._known and said.kind in _FINAL:
            self._give_up(RequestRefused(said.sentence, remedy=said.remedy))

    def _give_up(self, error: DtdError) -> None:
        self.failure = error
        self._end(member.Exit(reason=error.message))

    def _heartbeat(self) -> m.Heartbeat:
        training, measured = self._training, self._metrics.heartbeat_fields()
        ring = training.ring if training is not None else None
        figures: dict[str, Any] = {}
        if training is not None:
            figures = training.heartbeat_fields(self._interval_s)
        return m.Heartbeat(
            state=self._core.state.value,
            job=training.job if training is not None else "",
            memory_bytes=resident_bytes(),
            waiting=self._parts.datasets.doing
            or self._parts.environments.doing
            or self._core.explain(),
            **measured,
            **self._traffic.heartbeat_fields(ring.endpoint if ring is not None else None),
            **figures,
        )

    async def _keep_output(self) -> None:
        """From the first job on; a process that waits for one has nothing to send, and sleeps."""
        await self._prepared.wait()
        while True:
            await asyncio.sleep(OUTPUT_EVERY_S)
            self._send_output()

    def _send_output(self, *, ended: bool = False) -> None:
        if self._training is None or self._output is None or not self._control.is_open:
            return
        lines = self._output.take(ended=ended)
        self._lines.tell(self._training.job, self._training.rank, lines)


def _is_ours(error: Exception) -> bool:
    """Whether a function of dtd took part in raising it."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(one.filename).is_relative_to(_PACKAGE) for one in frames)
