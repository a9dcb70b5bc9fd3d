"""A cluster on a network and disks that can fail; every daemon that ends is started again.

It is never surprised by a death: each one is written down with its time and exit code, and others
judge what caused it.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.address import Address, SocketPath
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.wire import messages as m
from scripts.cluster.cluster import REPOSITORY, START_S, Cluster
from scripts.cluster.disks import SmallDisks
from scripts.cluster.log_timeline import LogTail
from scripts.cluster.networks import COORDINATOR, Network
from scripts.cluster.processes import Child

RESTART_AFTER_S: Final = 0.1
_LOGS: Final = ("--log-format", "json")
RUN_VARIABLE: Final = "DTD_CHAOS_RUN"
_REQUEST_TIMEOUT_S: Final = 5.0
_RUNS: Final = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A daemon's process ended."""

    name: str
    pid: int
    at_s: float
    exit_code: int


class NetworkedCluster(Cluster):
    """One coordinator and some workers; where they talk TCP, each has a credential.

    Attributes:
        run: marks the daemons' processes in their environment.
        deaths: of all daemons, oldest first.
        starts: of all daemons, as (name, pid, time).
    """

    def __init__(
        self,
        directory: Path,
        *,
        workers: Sequence[str],
        network: Network,
        disks: SmallDisks | None = None,
        settings: Sequence[str] = (),
        servers: Collection[str] = (),
    ) -> None:
        self.run = f"{os.getpid()}-{next(_RUNS)}"
        super().__init__(
            directory, environment={"PYTHONPATH": str(REPOSITORY), RUN_VARIABLE: self.run}
        )
        self.network = network
        self.disks = disks
        self.workers = [*workers]
        self.deaths: list[Death] = []
        self.starts: list[tuple[str, int, float]] = []
        self.address = network.address
        if isinstance(network.address, Address):
            self.enrol([("worker", name) for name in workers], network.address)
        where = ("--socket",) if isinstance(network.address, SocketPath) else ("--listen",)
        at = network.address.path if isinstance(network.address, SocketPath) else network.address
        command = self.coordinator_command(*_LOGS, *where, str(at), *settings)
        self._make(COORDINATOR, network.wrapped(COORDINATOR, command))
        for name in workers:
            # Steps are judged by what the workers log of them.
            options = [*_LOGS, "--log-level", "debug", *network.arguments(name)]
            options += ["--role", "server"] if name in servers else []
            command = self.worker_command(name, *options)
            command = disks.wrapped(command) if disks is not None else command
            self._make(name, network.wrapped(name, command))

    def start(self, name: str) -> None:
        super().start(name)
        self.starts.append((name, self.pid(name), time.time()))

    def start_all(self, timeout_s: float = START_S) -> None:
        """Start all daemons and wait until all workers are registered.

        Raises:
            DtdError: a daemon ended, or they were too slow.
        """
        for name in self.children:
            self.start(name)
        self.until(
            lambda: (
                len((self.try_ask(m.GetStatus()) or {"workers": []})["workers"])
                >= len(self.workers)
            ),
            "has not registered",
            timeout_s=timeout_s,
        )

    def restart_after_s(self, child: Child, exit_code: int, lived_s: float) -> float:
        """Soon, as systemd would; the death is written down."""
        del lived_s
        death = Death(name=child.name, pid=child.pid, at_s=time.time(), exit_code=exit_code)
        self.deaths.append(death)
        return RESTART_AFTER_S

    def log_tail(self) -> LogTail:
        """Reads all daemons' logs while they grow."""
        return LogTail({name: self.log_path(name) for name in self.children})

    @property
    def names(self) -> set[str]:
        """All daemons, started or not."""
        return {*self.children}

    def runs(self, name: str) -> bool:
        """Whether the daemon's process exists, stopped or not."""
        child = self.children[name]
        return child.started and child.exit_code() is None

    def pid(self, name: str) -> int:
        return self.children[name].pid

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon and to its child processes."""
        self.children[name].signal_group(number)

    def request(self, message: m.Message) -> dict[str, Any]:
        """One request to the coordinator.

        Raises:
            CoordinatorUnreachable: it does not answer.
            RequestRefused: by the coordinator.
        """

        def ask() -> dict[str, Any]:
            with self.client(timeout_s=_REQUEST_TIMEOUT_S) as client:
                return client.request(message)

        return self.network.inside(ask)

    def try_ask(self, message: m.Message) -> dict[str, Any] | None:
        """One request to the coordinator; None when it is unreachable or refuses."""
        try:
            return self.request(message)
        except (CoordinatorUnreachable, RequestRefused):
            return None

    def left_over(self) -> list[int]:
        """Processes that carry this run's mark; none once everything is stopped."""
        mark = f"{RUN_VARIABLE}={self.run}".encode()
        return [pid for pid in _all_pids() if mark in _environment(pid).split(b"\0")]

    def _make(self, name: str, command: Sequence[str]) -> None:
        self.state_dir(name).mkdir(exist_ok=True)
        self.log_path(name).touch()
        self.add(name, command)


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
