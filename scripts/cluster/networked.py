"""A cluster on a network and disks that can fail; every daemon that ends is started again.

It is never surprised by a death: each one is written down with its time and exit code, and others
judge what caused it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.address import Address, SocketPath
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.wire import messages as m
from scripts.cluster.cluster import REPOSITORY, START_S, Cluster
from scripts.cluster.disks import PlainDisks, SmallDisks
from scripts.cluster.log_timeline import LogTail
from scripts.cluster.networks import COORDINATOR, Network
from scripts.cluster.processes import Child

RESTART_AFTER_S: Final = 0.1
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

    Args:
        directory: where state and logs go; exists.
        workers: names of all workers that there may ever be.
        network: how they reach each other.
        disks: the daemons' disks.
        coordinator: the coordinator's module, and options beside the usual ones.
        worker: the same for workers.

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
        disks: PlainDisks | SmallDisks | None = None,
        coordinator: Sequence[str] = ("dtd.coordinator.main",),
        worker: Sequence[str] = ("dtd.worker",),
        servers: Collection[str] = (),
    ) -> None:
        self.run = f"{os.getpid()}-{next(_RUNS)}"
        super().__init__(
            directory, environment={"PYTHONPATH": str(REPOSITORY), RUN_VARIABLE: self.run}
        )
        self.network = network
        self.disks = disks or PlainDisks()
        self.workers = [*workers]
        self._servers = servers
        self.deaths: list[Death] = []
        self.starts: list[tuple[str, int, float]] = []
        self.address = network.address
        if isinstance(network.address, Address):
            self.enrol([("worker", name) for name in workers], network.address)
        self._make(COORDINATOR, network.wrapped(COORDINATOR, self._coordinator(coordinator)))
        for name in workers:
            self._make(name, network.wrapped(name, self.disks.wrapped(self._worker(name, worker))))

    def start(self, name: str) -> None:
        """Start a daemon that does not run."""
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
        """Process id of a daemon that was started."""
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

    # --- commands ----------------------------------------------------------------------------

    def _make(self, name: str, command: Sequence[str]) -> None:
        self.state_dir(name).mkdir(exist_ok=True)
        self.log_path(name).touch()
        self.add(name, command)

    def _coordinator(self, program: Sequence[str]) -> list[str]:
        address = self.network.address
        return [
            *(sys.executable, "-m", *program, "--log-format", "json"),
            *("--state-dir", str(self.state_dir(COORDINATOR))),
            *(
                ("--socket", address.path)
                if isinstance(address, SocketPath)
                else ("--listen", str(address))
            ),
        ]

    def _worker(self, name: str, program: Sequence[str]) -> list[str]:
        proof = ("--credential", str(self.credential_path(name))) if self.operator else ()
        return [
            # Steps are judged by what the workers log of them.
            *(sys.executable, "-m", *program, "--log-format", "json", "--log-level", "debug"),
            *("--name", name, "--state-dir", str(self.state_dir(name))),
            *(*self.network.arguments(name), *proof),
            *(("--role", "server") if name in self._servers else ()),
        ]


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
