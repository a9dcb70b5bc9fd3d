"""The worker as a process: member core, control connection, data port and training thread.

The event loop keeps the connection to the coordinator (and calls again when it is lost), sends
heartbeats, and moves the ring's bytes; the training thread trains.  After a job the process
replaces itself, so that the next job starts in a clean interpreter.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from dtd import __version__
from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.core import member
from dtd.net.data_server import DataServer
from dtd.net.driver import Driver
from dtd.net.lifeline import Lifeline
from dtd.net.resource import Resource
from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES
from dtd.worker.bridge import Bridge, RingCollective
from dtd.worker.checkpoint_files import open_checkpoint
from dtd.worker.control import ControlConnection
from dtd.worker.memory import resident_bytes
from dtd.worker.output import capture_output
from dtd.worker.probe import probe
from dtd.worker.progress import ProgressWatch
from dtd.worker.reporter import JobReporter
from dtd.worker.trainer import Trainer

log = structlog.get_logger()

MAX_WAITING_LINES: Final = 1000
OUTPUT_EVERY_S: Final = 0.1
DEFAULT_HEARTBEAT_INTERVAL_S: Final = 0.25
DEFAULT_HEARTBEAT_TIMEOUT_S: Final = 1.5
MAX_PROBES: Final = 16


class Worker:
    """One worker on the running event loop.

    Args:
        config: who it is and where the coordinator is.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self.ending: asyncio.Future[member.Restart | member.Exit] = self._loop.create_future()
        self._bridge = Bridge(self._loop)
        self._data = DataServer(config.name, self._open_checkpoint)
        self._lifeline = Lifeline()
        self._lifeline.start()
        self._control = ControlConnection(
            config.coordinator,
            name=config.name,
            opened=lambda: self._feed(member.ControlOpened()),
            received=self._on_message,
        )
        self._interval_s = DEFAULT_HEARTBEAT_INTERVAL_S
        self._silence_s = DEFAULT_HEARTBEAT_TIMEOUT_S
        self._trainer: Trainer | None = None
        self._reporter: JobReporter | None = None
        self._watch: ProgressWatch | None = None
        self._ring: RingCollective | None = None
        self._job = ""
        self._chunk_bytes = 0
        self._checkpoint_directory = ""
        self._lines: deque[str] = deque(maxlen=MAX_WAITING_LINES)
        self._probes: set[asyncio.Task[None]] = set()
        self._core: member.Member
        self._driver: Driver[member.Event, member.Effect]

    # --- life --------------------------------------------------------------------------------

    async def run(self) -> member.Restart | member.Exit:
        """Serve until it is time to restart or exit."""
        bound = await self._data.listen(self.config.listen)
        self._core = member.Member(self._registration(bound))
        self._driver = Driver(self._core, self._perform, _never)
        log.info("worker_started", worker=self.config.name, data_port=bound.port, pid=os.getpid())
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._control.keep()),
                tasks.create_task(self._keep_heartbeats()),
                tasks.create_task(self._keep_output()),
            ]
            ending = await self.ending
            for task in running:
                task.cancel()
        self._send_output()
        self._control.close(ending.reason)
        self._data.close()
        log.info("worker_ends", reason=ending.reason, how=type(ending).__name__.lower())
        return ending

    def stop(self, reason: str) -> None:
        """Leave in good order; a second call leaves at once."""
        if not self._control.is_open or self._core.stopping:
            self._end(member.Exit(reason=reason))
            return
        log.info("worker_stopping", reason=reason)
        self._driver.handle(member.StopAsked(reason=reason))

    def _registration(self, bound: Address) -> m.Register:
        advertised = self.config.advertised(bound)
        return m.Register(
            name=self.config.name,
            incarnation=secrets.randbits(62) | 1,
            pid=os.getpid(),
            host=socket.gethostname(),
            device=self.config.device,
            data_host=advertised.host,
            data_port=advertised.port,
            version=__version__,
        )

    def _on_message(self, message: m.Message) -> None:
        """The coordinator says what to do."""
        if isinstance(message, m.Registered):
            self._interval_s = message.heartbeat_interval_s
            self._silence_s = message.heartbeat_timeout_s
        self._feed(member.FromCoordinator(message=message))

    def _feed(self, event: member.Event) -> None:
        if not self.ending.done():
            self._driver.handle(event)

    # --- effects -----------------------------------------------------------------------------

    def _perform(self, effect: member.Effect) -> None:
        if isinstance(effect, member.Tell):
            if isinstance(effect.message, m.Finished | m.Failed):
                self._send_output()  # who waits for the end finds all that was printed before it
            self._control.send(effect.message)
        elif isinstance(effect, member.WarmUp):
            self._warm_up(effect.prepare)
        elif isinstance(effect, member.FormRing):
            self._form_ring(effect.assign)
        elif isinstance(effect, member.BreakRing):
            assert self._ring is not None
            self._ring.end(effect.reason)
        elif isinstance(effect, member.EndAtBoundary):
            assert self._reporter is not None
            self._reporter.end_at_boundary(stop=effect.stop, leave=effect.leave)
        elif isinstance(effect, member.ProbePeer):
            self._probe(effect.probe)
        elif isinstance(effect, member.Raise):
            log.warning("signal_raised", signal=effect.signal)
            os.kill(os.getpid(), getattr(signal, f"SIG{effect.signal}"))
        else:
            self._end(effect)

    def _end(self, ending: member.Restart | member.Exit) -> None:
        if not self.ending.done():
            self.ending.set_result(ending)

    def _warm_up(self, prepare: m.Prepare) -> None:
        log.info("job_prepared", job=prepare.job)
        self._job = prepare.job
        self._chunk_bytes = int(prepare.spec["sync"]["chunk_kib"]) * 1024
        self._checkpoint_directory = str(prepare.spec["checkpoint"]["directory"])
        capture_output(self._from_thread(self._lines.append))
        elastic = prepare.spec["elastic"]
        self._watch = ProgressWatch(
            first_patience_s=float(elastic["warmup_timeout_s"]),
            least_patience_s=float(elastic["stall_timeout_s"]),
        )
        self._reporter = JobReporter(
            prepare.job, self._from_thread(self._control.send), self._watch
        )
        self._trainer = Trainer(
            prepare,
            device=self.config.device,
            threads=self.config.threads,
            state_dir=self.config.state_dir,
            silence_s=self._silence_s,
            reporter=self._reporter,
            watch=self._watch,
            post=self._from_thread(self._feed),
            offer=self._from_thread(self._data.offer),
        )
        self._trainer.start()

    def _form_ring(self, assign: m.Assign) -> None:
        assert self._trainer is not None
        structlog.contextvars.bind_contextvars(
            job=assign.job, generation=assign.generation, rank=assign.rank
        )
        log.info("generation_assigned", roster=[member_.name for member_ in assign.roster])
        if self._ring is not None:
            self._ring.end(f"generation {assign.generation} follows")
        self._data.withdraw()
        self._ring = RingCollective(
            self._bridge,
            assign,
            self._data,
            chunk_bytes=self._chunk_bytes,
            beat_interval_s=self._interval_s,
            silence_s=self._silence_s,
            agreed=self._from_thread(self._on_agreed, assign),
            lifeline=self._lifeline,
        )
        self._ring.connect()
        self._trainer.assign(self._ring)

    def _on_agreed(self, assign: m.Assign) -> None:
        """All ranks hold the same state: nobody needs to fetch it any more."""
        self._data.withdraw()
        running = member.TrainerRunning(generation=assign.generation, step=assign.held_step)
        self._feed(running)

    def _probe(self, message: m.Probe) -> None:
        """Try to reach another worker and say what became of it; a few at a time."""
        if len(self._probes) >= MAX_PROBES:
            return
        task = asyncio.create_task(self._answer_probe(message))
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _answer_probe(self, message: m.Probe) -> None:
        probed = await probe(message, by=self.config.name, timeout_s=self._silence_s)
        self._feed(member.ProbeAnswered(probed=probed))

    def _from_thread(self, function: Callable[..., object], *first: object) -> Callable[..., None]:
        """A function for other threads that runs `function` on the event loop."""

        def post(*arguments: object) -> None:
            self._bridge.post(function, *first, *arguments)

        return post

    def _open_checkpoint(self, resource: str) -> Resource:
        directories = [self.config.state_dir / "checkpoints"]
        if self._checkpoint_directory:
            directories.insert(0, Path(self._checkpoint_directory))
        return open_checkpoint(directories, resource)

    # --- heartbeats and output ---------------------------------------------------------------

    async def _keep_heartbeats(self) -> None:
        while True:
            self._control.look(self._loop.time())
            self._control.send(self._heartbeat())
            await asyncio.sleep(self._interval_s)

    def _heartbeat(self) -> m.Heartbeat:
        figures = self._reporter.heartbeat_fields() if self._reporter is not None else {}
        return m.Heartbeat(
            state=self._core.state.value,
            job=self._job,
            memory_bytes=resident_bytes(),
            waiting=self._core.explain(),
            **self._progress(),
            **figures,
        )

    def _progress(self) -> dict[str, Any]:
        """Whether the training thread gets on; a wait for the ring is no stall of its own."""
        watch, ring, trainer = self._watch, self._ring, self._trainer
        if watch is None or ring is None or trainer is None:
            return {}
        waits = ring.waiting_since is not None
        return watch.heartbeat_fields(time.monotonic(), waits=waits, thread_ident=trainer.ident)

    async def _keep_output(self) -> None:
        while True:
            await asyncio.sleep(OUTPUT_EVERY_S)
            self._send_output()

    def _send_output(self) -> None:
        if not self._lines or not self._control.is_open:
            return
        lines = [*self._lines]
        self._lines.clear()
        for line in lines:
            log.info("job_output", line=line)
        text = "\n".join(lines).encode("utf-8", "replace")[:DEFAULT_MAX_PAYLOAD_BYTES]
        rank = self._ring.rank if self._ring is not None else 0
        self._control.send(m.JobOutput(job=self._job, rank=rank), text)


def _never() -> member.Event:
    raise AssertionError("a member has no deadlines")
