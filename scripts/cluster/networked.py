"""The daemons of a chaos run under supervision: whoever dies is started again, as systemd would.

It knows processes, not what happens in them, and it is never surprised by a death: every one is
written down with its time and exit code, and it is for others to say whose fault it was.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.address import Address, SocketPath
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.net.control_client import ControlClient
from dtd.wire import messages as m
from scripts.cluster.access import ClusterAccess
from scripts.cluster.disks import PlainDisks, SmallDisks
from scripts.cluster.local import COORDINATOR
from scripts.cluster.networks import Network
from scripts.cluster.processes import GRACE_S, Child, stop_all

RESTART_AFTER_S: Final = 0.1
REPOSITORY: Final = Path(__file__).resolve().parents[2]
RUN_VARIABLE: Final = "DTD_CHAOS_RUN"
_REQUEST_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A daemon's process ended."""

    name: str
    pid: int
    at_s: float
    exit_code: int


class ChaosCluster:
    """One coordinator and some workers; where they talk TCP, each has a credential.

    Args:
        directory: where state and logs go; exists.
        workers: names of all workers that there may ever be.
        network: how they reach each other.
        disks: what they write to.
        coordinator: the coordinator's module, and options beside the usual ones.
        worker: the same for workers.

    Attributes:
        run: marks the daemons' processes in their environment.
        deaths: of all daemons, oldest first.
        starts: of all daemons, as (name, pid, time).
    """

    def __init__(
        self,
        *,
        directory: Path,
        workers: Sequence[str],
        network: Network,
        disks: PlainDisks | SmallDisks,
        coordinator: Sequence[str] = ("dtd.coordinator.main",),
        worker: Sequence[str] = ("dtd.worker.main",),
    ) -> None:
        self.directory = directory
        self.network = network
        self.disks = disks
        self.run = f"{os.getpid()}-{next(_RUNS)}"
        self.deaths: list[Death] = []
        self.starts: list[tuple[str, int, float]] = []
        self._children: dict[str, Child] = {}
        self._due_s: dict[str, float] = {}
        self._not_before_s: dict[str, float] = {}
        address = network.address
        self._access = self._let_in(address, workers) if isinstance(address, Address) else None
        command = self._coordinator_command(coordinator)
        self._add(COORDINATOR, network.wrapped(COORDINATOR, command))
        for name in workers:
            command = disks.wrapped(self._worker_command(name, worker))
            self._add(name, network.wrapped(name, command))

    # --- life --------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a daemon that does not run."""
        self._due_s.pop(name, None)
        self._not_before_s.pop(name, None)
        self._children[name].start()
        self.starts.append((name, self._children[name].pid, time.time()))

    def tend(self) -> None:
        """Notice who has died, and start again who is due."""
        now_s = time.time()
        for name, child in self._children.items():
            exit_code = child.exit_code()
            if exit_code is None:
                continue
            if name not in self._due_s:
                death = Death(name=name, pid=child.pid, at_s=now_s, exit_code=exit_code)
                self.deaths.append(death)
                self._due_s[name] = now_s + RESTART_AFTER_S
            elif now_s >= max(self._due_s[name], self._not_before_s.get(name, 0.0)):
                self.start(name)

    def stay_down(self, name: str, until_s: float) -> None:
        """Once it has died, do not start it again before then."""
        self._not_before_s[name] = until_s

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Stop every daemon; none of their processes is left when this returns."""
        stop_all(self._children.values(), grace_s=grace_s)

    # --- questions and orders ----------------------------------------------------------------

    @property
    def names(self) -> set[str]:
        """All daemons, started or not."""
        return {*self._children}

    def runs(self, name: str) -> bool:
        """Whether the daemon's process exists, stopped or not."""
        child = self._children[name]
        return child.started and child.exit_code() is None

    def pid(self, name: str) -> int:
        """Process id of a daemon that was started."""
        return self._children[name].pid

    def log_path(self, name: str) -> Path:
        """Where the daemon's log is appended."""
        return self._children[name].log_path

    def state_dir(self, name: str) -> Path:
        """Where the daemon keeps what must survive."""
        return self.directory / name

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon and to what it has started."""
        self._children[name].signal_group(number)

    def ask(self, message: m.Message) -> dict[str, Any] | None:
        """One request to the coordinator; None when it is away or says no."""
        context = self._access.operator_context if self._access else None

        def ask() -> dict[str, Any] | None:
            try:
                with ControlClient(
                    self.network.address, timeout_s=_REQUEST_TIMEOUT_S, context=context
                ) as client:
                    return client.request(message)
            except (CoordinatorUnreachable, RequestRefused):
                return None

        return self.network.inside(ask)

    def left_over(self) -> list[int]:
        """Processes that carry this run's mark; none once everything is stopped."""
        mark = f"{RUN_VARIABLE}={self.run}".encode()
        return [pid for pid in _all_pids() if mark in _environment(pid).split(b"\0")]

    # --- credentials and commands ------------------------------------------------------------

    def _let_in(self, coordinator: Address, workers: Sequence[str]) -> ClusterAccess:
        return ClusterAccess(
            coordinator_dir=self.state_dir(COORDINATOR),
            coordinator=coordinator,
            credentials_dir=self.directory / "credentials",
            workers=workers,
        )

    def _add(self, name: str, command: Sequence[str]) -> None:
        environment = {
            "PYTHONPATH": str(REPOSITORY),
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "torchinductor"),
            RUN_VARIABLE: self.run,
        }
        self.state_dir(name).mkdir(exist_ok=True)
        log_path = self.directory / f"{name}.log"
        log_path.touch()
        self._children[name] = Child(name, command, log_path, environment)

    def _coordinator_command(self, program: Sequence[str]) -> list[str]:
        return [
            *(sys.executable, "-m", *program, "--log-format", "json"),
            *("--state-dir", str(self.state_dir(COORDINATOR))),
            *(
                ("--socket", self.network.address.path)
                if isinstance(self.network.address, SocketPath)
                else ("--listen", str(self.network.address))
            ),
        ]

    def _worker_command(self, name: str, program: Sequence[str]) -> list[str]:
        return [
            # Steps are judged by what the workers log of them.
            *(sys.executable, "-m", *program, "--log-format", "json", "--log-level", "debug"),
            *("--name", name),
            *("--state-dir", str(self.state_dir(name))),
            *self.network.arguments(name),
            *(self._access.arguments(name) if self._access else ()),
        ]


_RUNS = itertools.count()


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
