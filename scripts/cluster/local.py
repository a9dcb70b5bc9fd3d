"""A coordinator and some workers on this machine: started, kept alive, stopped.

It knows processes and addresses, nothing of jobs.  Everything lies in one directory: the
coordinator's state with its socket, at which the workers call, each worker's state, and a log per
daemon.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dtd.address import Address, SocketPath
from dtd.errors import CoordinatorUnreachable, DtdError
from dtd.net.control_client import ControlClient
from dtd.places import SOCKET_NAME
from dtd.wire import messages as m
from scripts.cluster.processes import EX_CONFIG, Child, RestartPolicy, exit_words, stop_all

START_TIMEOUT_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.05
COORDINATOR: Final = "coordinator"

Say = Callable[[str], None]


class LocalCluster:
    """The daemons of one local run.

    Args:
        directory: where state and logs go; exists.
        listen: where the coordinator serves other hosts besides; None: nowhere.
        workers: how many.
        device: theirs.
        say: told what happens to the daemons.

    Attributes:
        address: the coordinator's socket.
        restarts: how often each daemon was started again, by name.
    """

    def __init__(
        self, *, directory: Path, workers: int, device: str, say: Say, listen: Address | None = None
    ) -> None:
        self._directory = directory
        self._say = say
        self._device = device
        self._workers = workers
        self._children: dict[str, Child] = {}
        self._policies: dict[str, RestartPolicy] = {}
        self._started_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}
        self._given_up: set[str] = set()
        self.address = SocketPath(str(directory / SOCKET_NAME))
        self._listen = listen
        self.restarts: Counter[str] = Counter()

    def start(self) -> None:
        """Start all daemons and wait until every worker is registered.

        Raises:
            DtdError: one of them died or was too slow; the end of its log is in the message.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        address_file = self._directory / "address"
        address_file.unlink(missing_ok=True)
        coordinator = self._add(COORDINATOR, self._coordinator_command())
        while not address_file.exists():
            self._check_starting(coordinator, deadline_s, "it has not said where it listens")
            coordinator.wait(_LOOK_AGAIN_S)
        names = [f"worker-{index}" for index in range(self._workers)]
        for name in names:
            self._add(name, self._worker_command(name))
        try:
            self._await_registered(names, deadline_s)
        except CoordinatorUnreachable as error:
            raise _with_log(coordinator, error.message) from None

    def tend(self) -> None:
        """Start again what has died, each when it is due.

        Raises:
            DtdError: the coordinator or the last worker is gone for good.
        """
        now_s = time.monotonic()
        for name, child in self._children.items():
            exit_code = child.exit_code()
            if exit_code is None or name in self._given_up:
                continue
            if name not in self._due_s:
                self._plan_restart(child, exit_code, now_s)
            if now_s >= self._due_s.get(name, math.inf):
                del self._due_s[name]
                self._start(child)
                self.restarts[name] += 1

    def stop(self) -> None:
        """Stop every daemon; none is left when this returns."""
        stop_all(self._children.values())

    def _add(self, name: str, command: Sequence[str]) -> Child:
        # Torch puts a directory for compiled code beside all others' temporary files otherwise.
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(self._directory / "torchinductor")}
        child = Child(name, command, self._directory / f"{name}.log", environment)
        self._children[name] = child
        self._policies[name] = RestartPolicy()
        self._start(child)
        return child

    def _start(self, child: Child) -> None:
        self._started_s[child.name] = time.monotonic()
        child.start()

    def _coordinator_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "dtd.coordinator.main"),
            *("--state-dir", str(self._directory)),
            *("--socket", self.address.path),
            *(("--listen", str(self._listen)) if self._listen is not None else ()),
        ]

    def _worker_command(self, name: str) -> list[str]:
        return [
            *(sys.executable, "-m", "dtd.worker.main"),
            *("--coordinator", str(self.address)),
            *("--name", name),
            *("--device", self._device),
            *("--state-dir", str(self._directory / name)),
        ]

    def _await_registered(self, names: Sequence[str], deadline_s: float) -> None:
        with ControlClient(self.address) as client:
            missing = set(names)
            while missing:
                for name in names:
                    self._check_starting(self._children[name], deadline_s, "it has not registered")
                self._check_starting(self._children[COORDINATOR], deadline_s, "it is slow")
                self._children[min(missing)].wait(_LOOK_AGAIN_S)
                status = client.request(m.GetStatus())
                missing = set(names) - {worker["name"] for worker in status["workers"]}

    def _check_starting(self, child: Child, deadline_s: float, late: str) -> None:
        exit_code = child.exit_code()
        if exit_code is not None:
            raise _with_log(child, f"{child.name} {exit_words(exit_code)} while it was starting")
        if time.monotonic() >= deadline_s:
            raise _with_log(child, f"{child.name}: {late} within {START_TIMEOUT_S:g} s")

    def _plan_restart(self, child: Child, exit_code: int, now_s: float) -> None:
        lived_s = now_s - self._started_s[child.name]
        due_s = self._policies[child.name].next_start_s(exit_code, now_s, lived_s=lived_s)
        if due_s is not None:
            self._due_s[child.name] = due_s
            self._say(f"{child.name} {exit_words(exit_code)}; it is started again")
            return
        self._given_up.add(child.name)
        why = {0: "left in good order", EX_CONFIG: "is configured wrongly"}
        self._say(f"{child.name} {why.get(exit_code, 'died too often')}; it is not started again")
        if child.name == COORDINATOR or len(self._given_up) == self._workers:
            raise _with_log(child, f"{child.name} {exit_words(exit_code)} and is the last one")


def _with_log(child: Child, what: str) -> DtdError:
    tail = "\n".join(f"    {line}" for line in child.log_tail())
    end = f"; its log ends with\n{tail}" if tail else "; its log is empty"
    return DtdError(what + end)
