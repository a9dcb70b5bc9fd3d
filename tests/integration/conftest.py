"""Real daemons, jobs that stop where a test wants them to, and questions to both."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from dtd.address import Address
from dtd.job import parse_job, to_mapping
from dtd.net.clients.control_client import ControlClient
from dtd.net.local_socket import call
from dtd.wire import messages as m
from scripts.cluster import processes
from scripts.cluster.local import LocalCluster
from scripts.cluster.processes import Child, Process
from tests.integration.fork_client import ForkServers, launch_unprepared

PATIENCE_S = 100.0
LOOK_AGAIN_S = 0.05

SILENT_S = 6.0
"""How long workers may be silent: a machine that is busy for some seconds has lost nobody, and
whoever was stopped is missed by this."""

LONGEST_FIRST = (
    *("test_own_loop", "test_launched_script", "test_job_process", "test_instructions"),
    *("test_examples", "test_launch_local", "test_troubles", "test_renewal", "test_chaos"),
    *("test_operating", "test_foreign_text", "test_doctor"),
)
"""Files: the last one to begin ought not to be one that takes a minute."""

GATED_JOB = """
[job]
name = "gated"
task = "gated_task:Gated"
epochs = 4
global_batch_size = 128
seed = 7
[optimizer]
momentum = 0.9
[checkpoint]
every_steps = 10
[elastic]
settle_s = 0.0
stall_timeout_s = 100.0
"""


Command = Callable[..., tuple[int, str, str]]
"""Runs a command line of dtdctl: (exit code, stdout, stderr)."""


class Gates:
    """The gates of one job, all closed at first."""

    def __init__(self, directory: Path, holds: list[int]) -> None:
        directory.mkdir()
        self.task = {"gates": str(directory), "holds": holds}
        self._locks: list[IO[str]] = []
        for index in range(len(holds)):
            gate = (directory / str(index)).open("w")
            fcntl.flock(gate, fcntl.LOCK_EX)
            self._locks.append(gate)

    def open(self, index: int) -> None:
        """Let everyone pass; harmless when it is open."""
        self._locks[index].close()

    def open_all(self) -> None:
        for lock in self._locks:
            lock.close()


class Daemons:
    """A coordinator, some workers, and questions to them."""

    def __init__(
        self,
        directory: Path,
        workers: int,
        servers: int = 0,
        web: Address | None = None,
        device: str = "cpu",
    ) -> None:
        self.directory = directory
        self.cluster = LocalCluster(
            directory=directory,
            workers=workers,
            device=device,
            say=lambda _text: None,
            servers=servers,
            web=web,
        )
        self.gates: list[Gates] = []
        self._seen = 0

    def child(self, name: str) -> Child:
        return self.cluster.children[name]

    def connect(self) -> ControlClient:
        return ControlClient(self.cluster.address, timeout_s=PATIENCE_S)

    def ask(self, message: m.Message) -> dict[str, Any]:
        with self.connect() as client:
            return client.request(message)

    def hold(self, *holds: int) -> Gates:
        """Gates at which a job of `GATED_JOB` will stop."""
        made = Gates(self.directory / f"gates-{len(self.gates)}", list(holds))
        self.gates.append(made)
        return made

    def submit(
        self, *overrides: str, gates: Gates | None = None, text: str = GATED_JOB, **request: Any
    ) -> str:
        """Submit a job and return its id."""
        spec = to_mapping(parse_job(text, source="test", overrides=overrides))
        if gates is not None:
            spec["task"] |= gates.task
        return str(self.ask(m.SubmitJob(spec=spec, **request))["job"])

    def wait(self, job: str) -> dict[str, Any]:
        """Its answer to WAIT_JOB."""
        return self.ask(m.WaitJob(job=job))

    def await_event(self, kind: str, containing: str = "", *, job: str = "") -> dict[str, Any]:
        """The next event of this kind, about this job, after the last one that was awaited."""
        while True:
            page = self.ask(m.ReadEvents(after=self._seen, follow=True))
            for event in page["events"]:
                self._seen = event["seq"]
                told = event["kind"] == kind and containing in event["message"]
                if told and job in ("", event["job"]):
                    return dict(event)

    def events(self, kind: str, job: str) -> list[dict[str, Any]]:
        """All events of this kind about this job."""
        found = self.ask(m.ReadEvents())["events"]
        return [event for event in found if (event["kind"], event["job"]) == (kind, job)]

    def step(self, job: str) -> int:
        """The job's committed steps, whatever its state is."""
        return int(self.ask(m.ShowJob(job=job))["step"])

    def until(self, job: str, condition: Callable[[], bool]) -> None:
        """Look again and again while the job has not ended, and once after its end."""
        with self.connect() as waiting:
            waiting.ask(m.WaitJob(job=job))
            while not condition():
                ended = waiting.answer(timeout_s=LOOK_AGAIN_S)
                if ended is not None:
                    assert condition(), ended
                    return

    def await_idle(self) -> None:
        """All workers wait for a job; events from now on are awaited."""
        while True:
            seen = self.ask(m.ReadEvents())["next"]
            if {worker["state"] for worker in self.ask(m.GetStatus())["workers"]} == {"idle"}:
                self._seen = seen
                return
            self.ask(m.ReadEvents(after=seen, follow=True))

    def pids(self) -> dict[str, int]:
        return {worker["name"]: worker["pid"] for worker in self.ask(m.GetStatus())["workers"]}

    def crash(self) -> None:
        """Everything is killed at once."""
        children = list(self.cluster.children.values())
        for child in children:
            child.signal_group(signal.SIGKILL)
        for child in children:
            child.wait(PATIENCE_S)

    def start_worker(self, name: str) -> None:
        """One that has died is started again, and no other."""
        self.cluster.start(name)

    def start_again(self) -> None:
        """Whatever has died is started again, with the same state."""
        for name, child in self.cluster.children.items():
            if child.exit_code() is not None:
                self.cluster.start(name)
        coordinator = self.child("coordinator")
        while True:
            try:
                call(self.cluster.address, PATIENCE_S).close()
            except (ConnectionRefusedError, FileNotFoundError):
                assert coordinator.wait(LOOK_AGAIN_S) is None, coordinator.log_tail()
            else:
                return

    def stop(self) -> None:
        self.cluster.stop()
        for gates in self.gates:
            gates.open_all()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows the last lines of its daemons' logs."""
    del call
    report = yield
    daemons = item.funcargs.get("daemons")
    if report.failed and isinstance(daemons, Daemons):
        for name, child in daemons.cluster.children.items():
            report.sections.append((f"log of {name}", "\n".join(child.log_tail())))
    return report


@pytest.fixture(scope="session", autouse=True)
def prepared() -> Iterator[ForkServers]:
    """Daemons and dtdctl come from interpreters that have imported what they need."""
    servers = ForkServers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "launch", servers.launch)
        patch.setattr(subprocess, "run", servers.run)
        patch.setenv("DTD_HEARTBEAT_TIMEOUT_S", str(SILENT_S))
        try:
            yield servers
        finally:
            servers.close()


@pytest.fixture(scope="module")
def unprepared(prepared: ForkServers) -> Iterator[None]:
    """Workers are started as users start them, and begin afresh by execve."""

    def launch(command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> Process:
        is_worker = "dtd.worker" in command
        return (launch_unprepared if is_worker else prepared.launch)(command, log, environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "launch", launch)
        yield


@pytest.fixture(scope="module")
def start_daemons(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Daemons]]:
    """Starts clusters of so many workers; none of their processes outlives the module's tests."""
    started: list[Daemons] = []

    def start(
        workers: int, servers: int = 0, web: Address | None = None, device: str = "cpu"
    ) -> Daemons:
        made = Daemons(tmp_path_factory.mktemp("cluster"), workers, servers, web, device)
        started.append(made)
        made.cluster.start_all()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        try:
            yield start
        finally:
            for one in started:
                one.stop()


@pytest.fixture(scope="module")
def dtdctl(daemons: Daemons) -> Command:
    """Runs a command line of dtdctl against the module's `daemons`; in a directory, with `cwd`."""

    def run(*words: str, cwd: Path | None = None) -> tuple[int, str, str]:
        environ = {
            **os.environ,
            "DTD_COORDINATOR": str(daemons.cluster.address),
            "NO_COLOR": "1",
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-m", "dtd.ctl.main", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            cwd=cwd,
            env=environ,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run
