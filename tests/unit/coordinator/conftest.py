"""A real coordinator on loopback, operators that ask it, and workers that are played by tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dtd import __version__
from dtd.address import SocketPath
from dtd.config import CoordinatorConfig
from dtd.coordinator import daemon as daemon_module
from dtd.coordinator.coordinator import Coordinator
from dtd.coordinator.store.store import Store
from dtd.host.places import SOCKET_NAME
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m
from dtd.wire.frames import frame_bytes
from tests.played_loop import PlayedLoop

PATIENCE_S = 30.0
MessageT = TypeVar("MessageT")

OF_RATES = ("test_message_rates.py", "test_answers.py", "test_report_quotas.py")
"""Tests in which nobody regains what it has used up unless time is played."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop on which a test runs."""
    if item.path.name in OF_RATES:
        return {"played": PlayedLoop}
    return {"asyncio": asyncio.new_event_loop}


class Daemon:
    """A coordinator on the loop of another thread."""

    def __init__(self, loop_thread: Any, state_dir: Path) -> None:
        self._loop_thread = loop_thread
        self.config = CoordinatorConfig(
            state_dir=state_dir,
            socket=state_dir / SOCKET_NAME,
            heartbeat_timeout_s=600.0,
        )
        self._made: daemon_module.Daemon = loop_thread.run(self._start())
        self.coordinator: Coordinator = self._made.coordinator
        self.address = SocketPath(str(self.config.socket))

    async def _start(self) -> daemon_module.Daemon:
        made = daemon_module.Daemon(self.config, Store(self.config.state_dir))
        await made.start()
        self._running = asyncio.create_task(made.run())
        return made

    def run(self, coroutine: Any) -> Any:
        return self._loop_thread.run(coroutine)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._loop_thread.call(function, *arguments)

    def connect(self) -> ControlClient:
        return ControlClient(self.address, timeout_s=PATIENCE_S)

    def ask(self, message: m.Message) -> dict[str, Any]:
        with self.connect() as client:
            return client.request(message)

    def stop(self) -> None:
        """Ask it to end; whatever it failed with is raised here."""

        async def end() -> None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            await self._made.stop()

        self._loop_thread.run(end())


class PlayedWorker:
    """A worker's control connection; the test says what it says."""

    def __init__(self, daemon: Daemon, name: str, *, pid: int) -> None:
        self.name = name
        self.environment: tuple[str, ...] = ()
        self._kept: list[str] = []
        self._link = BlockingLink(
            daemon.address, role=m.Role.WORKER, name=name, timeout_s=PATIENCE_S
        )
        self.register = m.Register(
            name=name,
            incarnation=pid,
            pid=pid,
            host="somewhere",
            device="cpu",
            data_host="10.0.0.1",
            data_port=4000,
            version=__version__,
        )

    def say(self, message: m.Message, payload: bytes = b"") -> None:
        if payload:
            self._link._socket.sendall(frame_bytes(m.encode_header(message), payload))
        else:
            self._link.send(message)

    def hear(self, kind: type[MessageT]) -> MessageT:
        """The next message of this kind; others are passed over."""
        return self.hear_all(kind)[0]

    def hear_all(self, kind: type[MessageT]) -> tuple[MessageT, bytes]:
        """The next message of this kind and its payload."""
        while True:
            message, payload = self._link.receive(timeout_s=PATIENCE_S)
            if isinstance(message, kind):
                return message, bytes(payload)

    def join(self) -> m.Registered:
        self.say(self.register)
        return self.hear(m.Registered)

    def warm_up(self) -> m.Prepare:
        """Answer PREPARE."""
        prepare = self.hear(m.Prepare)
        self.tell_warm(prepare.job)
        return prepare

    def tell_warm(self, job: str) -> None:
        """Say with what it trains."""
        self.say(
            m.Warmed(
                job=job,
                dataset_rows=100,
                dataset_fingerprint="f",
                plan_digest="p",
                numerics_fingerprint="n",
                parameters=10,
                steps_total=20,
                held=(m.Held(job=job, generation=0, step=0, digest="", where="none"),),
                environment=self.environment,
            )
        )

    def run_alone(self) -> m.Assign:
        """Warm up, and run in a generation of its own."""
        self.warm_up()
        assign = self.hear(m.Assign)
        self.say(m.Running(job=assign.job, generation=assign.generation, step=assign.held_step))
        return assign

    def save(self, assign: m.Assign, step: int, *kept: str, **changed: Any) -> None:
        """Report a checkpoint."""
        name = f"g{assign.generation:06}-s{step:09}"
        values: dict[str, Any] = {
            "job": assign.job,
            "generation": assign.generation,
            "step": step,
            "digest": "ab",
            "size_bytes": 1000,
            "directory": f"/state/checkpoints/{assign.job}/{name}",
            "metrics": {"accuracy": 0.5},
            "kept": (*kept, name),
        }
        self._kept = [*kept, name]
        saved = m.CheckpointSaved(**(values | changed))
        self.agree(saved)
        self.say(saved)

    def agree(self, saved: m.CheckpointSaved) -> None:
        """All ranks have agreed on the digest of this state."""
        key = {"generation": saved.generation, "step": saved.step}
        self.say(m.Agreed(job=saved.job, digest=saved.digest, **key))

    def finish(self, assign: m.Assign, step: int = 20, **changed: Any) -> None:
        """Report the end of the job, whose last state is saved."""
        self.save(assign, step, *self._kept)
        values: dict[str, Any] = {
            "job": assign.job,
            "generation": assign.generation,
            "held_generation": assign.generation,
            "step": step,
            "digest": "ab",
            "result": {"steps": step, "train_loss": 0.5},
        }
        self.say(m.Finished(**(values | changed)))

    def close(self) -> None:
        self._link.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(state_dir: Path) -> Iterator[Store]:
    made = Store(state_dir)
    yield made
    made.close()


@pytest.fixture
def start_daemon(loop_thread: Any, state_dir: Path) -> Iterator[Callable[[], Daemon]]:
    """Starts coordinators, one after the other, on the same state directory."""
    started: list[Daemon] = []

    def start() -> Daemon:
        if started:
            started[-1].stop()
        started.append(Daemon(loop_thread, state_dir))
        return started[-1]

    yield start
    if started:
        started[-1].stop()


@pytest.fixture
def daemon(start_daemon: Callable[[], Daemon]) -> Daemon:
    return start_daemon()


@pytest.fixture
def play() -> Iterator[Callable[..., PlayedWorker]]:
    """Connects workers that the test plays."""
    played: list[PlayedWorker] = []

    def start(
        daemon: Daemon, name: str = "worker-0", *, pid: int = 4711, joins: bool = True
    ) -> PlayedWorker:
        played.append(PlayedWorker(daemon, name, pid=pid))
        if joins:
            played[-1].join()
        return played[-1]

    yield start
    for worker in played:
        worker.close()


@pytest.fixture
def spec() -> dict[str, Any]:
    """A valid job that does not wait for more workers."""
    text = '[job]\nname="digits"\ntask="digits"\nepochs=1\nglobal_batch_size=64\n'
    return to_mapping(parse_job(text + "[elastic]\nsettle_s=0\n", source="test"))
