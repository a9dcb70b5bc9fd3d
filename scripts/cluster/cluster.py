"""Daemons in one directory: started, started again, asked, stopped.

A cluster knows processes, addresses and credentials, nothing of networks, faults and jobs.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.address import Address, Endpoint, SocketPath
from dtd.errors import DtdError
from dtd.host.places import SOCKET_NAME
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.control_client import ControlClient
from dtd.net.clients.join_client import join
from dtd.net.clients.tls import tls_connect
from dtd.security.authority import DIRECTORY, OPERATOR_FILE, Authority
from dtd.security.credential import Credential
from dtd.security.private_files import make_private_directory
from dtd.security.token import Token
from dtd.wire import messages as m
from scripts.cluster.networks import COORDINATOR, HOST, reserved_port
from scripts.cluster.processes import GRACE_S, Child, exit_words, proc_bytes, stop_all

REPOSITORY: Final = Path(__file__).resolve().parents[2]
START_S: Final = 120.0
ANSWER_S: Final = 120.0
LOOK_EVERY_S: Final = 0.05
TOKEN_LIFE_S: Final = 3600
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - what these clusters are for


class Cluster:
    """A coordinator, its workers, and its clients.

    Each daemon has a state directory and a log of its own name in the cluster's directory.

    Attributes:
        children: every daemon that was made, by name.
        address: where the coordinator is called: its socket, or over TLS if it listens beyond.
        operator: the credential to call it with; None where the socket is enough.
        restarts: how often each daemon was started again, by name.
    """

    def __init__(self, directory: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        # Torch puts a directory for compiled code beside all others' temporary files otherwise.
        self.environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "torchinductor"),
            **(environment or {}),
        }
        self.children: dict[str, Child] = {}
        self.address: Endpoint = SocketPath(str(self.state_dir(COORDINATOR) / SOCKET_NAME))
        self.operator: Credential | None = None
        self.restarts: Counter[str] = Counter()
        self._started_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}
        self._not_before_s: dict[str, float] = {}

    # --- daemons -----------------------------------------------------------------------------

    def state_dir(self, name: str) -> Path:
        return self.directory / name

    def log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def add(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Child:
        """A daemon with this command, not started yet."""
        variables = {**self.environment, **(environment or {})}
        self.children[name] = Child(name, command, self.log_path(name), variables)
        return self.children[name]

    def coordinator_command(self, *options: str) -> list[str]:
        """Program and arguments of the coordinator."""
        state = str(self.state_dir(COORDINATOR))
        return [sys.executable, "-m", "dtd.coordinator.main", "--state-dir", state, *options]

    def worker_command(self, name: str, *options: str, credential: Path | None = None) -> list[str]:
        """Program and arguments of a worker; None: the credential of its name, if there is one."""
        own = credential or self.credential_path(name)
        proof = ("--credential", str(own)) if own.exists() else ()
        state = str(self.state_dir(name))
        program = (sys.executable, "-m", "dtd.worker", "--name", name, "--state-dir", state)
        return [*program, *proof, *options]

    def start(self, name: str) -> None:
        """Start a daemon that does not run."""
        self._due_s.pop(name, None)
        self._not_before_s.pop(name, None)
        self._started_s[name] = time.monotonic()
        self.children[name].start()

    def start_coordinator(self, *options: str, wrapper: Sequence[str] = ()) -> Child:
        """Start the coordinator and wait until it listens.

        Args:
            options: with `--listen` it is called over TLS from then on.
            wrapper: program and arguments that run its command.

        Raises:
            DtdError: it ended, or was too slow; the end of its log is in the message.
        """
        if isinstance(self.address, Address) and "--listen" not in options:
            port = self.address.port
            options = ("--listen", f"{_EVERYWHERE}:{port}", "--advertise", HOST, *options)
        state = self.state_dir(COORDINATOR)
        file = state / "address"
        file.unlink(missing_ok=True)
        child = self.add(COORDINATOR, [*wrapper, *self.coordinator_command(*options)])
        self.start(COORDINATOR)
        self.until(file.exists, "has not said where it listens", watched=[child])
        if "--listen" in options:
            listening = Address.parse(file.read_text())
            host = HOST if listening.host == _EVERYWHERE else listening.host
            self.address = Address(host, listening.port)
            self.operator = Credential.load(state / DIRECTORY / OPERATOR_FILE)
        return child

    def start_worker(
        self,
        name: str,
        *options: str,
        credential: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a worker, by default with the credential of its name; it registers when it can."""
        options = ("--coordinator", str(self.address), *options)
        command = self.worker_command(name, *options, credential=credential)
        child = self.add(name, command, environment)
        self.start(name)
        return child

    def await_registered(self, names: Collection[str], timeout_s: float = START_S) -> None:
        """Wait until the coordinator knows these workers.

        Raises:
            DtdError: a daemon ended, or time ran out.
        """

        def registered() -> bool:
            return set(names) <= {worker["name"] for worker in self.ask(m.GetStatus())["workers"]}

        self.until(registered, "has not registered", timeout_s=timeout_s)

    def until(
        self,
        condition: Callable[[], object],
        otherwise: str,
        *,
        watched: Collection[Child] = (),
        timeout_s: float = START_S,
        during: str = "while it was starting",
    ) -> None:
        """Look again and again until a condition holds; `otherwise` says in words that it does not.

        None of the `watched` daemons, by default all that were started, must end meanwhile.

        Raises:
            DtdError: one of them ended, or time ran out.
        """
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            living = [one for one in watched or self.children.values() if one.started]
            for child in living:
                exit_code = child.exit_code()
                if exit_code is not None:
                    raise with_log(child, f"{child.name} {exit_words(exit_code)} {during}")
            if time.monotonic() >= deadline_s:
                raise with_log(living[-1], f"{living[-1].name} {otherwise} in {timeout_s:g} s")
            living[-1].wait(LOOK_EVERY_S)

    def tend(self) -> None:
        """Notice the daemons that have ended, and start those again that are due.

        Raises:
            DtdError: a daemon that is needed has ended (see `restart_after_s`).
        """
        for name, child in self.children.items():
            exit_code, now_s = child.exit_code(), time.monotonic()
            if exit_code is None:
                continue
            if name not in self._due_s:
                lived_s = now_s - self._started_s[name]
                self._due_s[name] = now_s + self.restart_after_s(child, exit_code, lived_s)
            if now_s >= max(self._due_s[name], self._not_before_s.get(name, 0.0)):
                self.start(name)
                self.restarts[name] += 1

    def restart_after_s(self, child: Child, exit_code: int, lived_s: float) -> float:
        """Return the delay before a daemon is started again; infinite is never."""
        del child, exit_code, lived_s
        return math.inf

    def stay_down(self, name: str, seconds: float) -> None:
        """Once it has ended, do not start a daemon again for so long."""
        self._not_before_s[name] = time.monotonic() + seconds

    def kill(self, *names: str) -> None:
        """End daemons by SIGKILL, and wait until they have ended."""
        for name in names:
            self.children[name].signal_group(signal.SIGKILL)
        for name in names:
            self.children[name].wait(math.inf)

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """Stop every daemon; none of their processes is left when this returns."""
        stop_all(self.children.values(), grace_s=grace_s)

    # --- credentials -------------------------------------------------------------------------

    def credential_path(self, name: str) -> Path:
        return self.directory / f"{name}.credential"

    def enrol(self, callers: Sequence[tuple[str, str]], address: Address | None = None) -> None:
        """Make the cluster's authority and a credential for each caller, before any daemon runs.

        Args:
            callers: their roles and names.
            address: where the coordinator will listen; None: a port of this host that it alone has.
        """
        state = self.state_dir(COORDINATOR)
        self.address = at = address or Address(HOST, reserved_port())
        make_private_directory(state)
        authority = Authority.create(state / DIRECTORY)
        authority.equip((at,))
        for role, name in callers:
            authority.enrol(self.credential_path(name), role, name, coordinators=(at,))
        self.operator = Credential.load(state / DIRECTORY / OPERATOR_FILE)

    def token(self, role: str = "worker", **more: Any) -> Token:
        request = m.CreateToken(role=role, **{"life_s": TOKEN_LIFE_S, **more})
        return Token.parse(self.ask(request)["token"])

    def join(
        self,
        name: str,
        role: str = "worker",
        *,
        token: Token | None = None,
        file: str = "",
        **more: Any,
    ) -> Credential:
        """A credential, for a new token unless one is given; kept in a file of its name."""
        path = self.credential_path(file or name)
        return join(token or self.token(role), name=name, path=path, **more)

    # --- asking ------------------------------------------------------------------------------

    def client(
        self, credential: Credential | None = None, timeout_s: float = ANSWER_S
    ) -> ControlClient:
        """A connection to the coordinator, an operator's unless a credential is given."""
        shown = credential or self.operator
        context = shown.client_context() if shown is not None else None
        return ControlClient(self.address, timeout_s=timeout_s, context=context)

    def ask(self, message: m.Message, credential: Credential | None = None) -> dict[str, Any]:
        """One request on a connection of its own."""
        with self.client(credential) as client:
            return client.request(message)

    def link(
        self, role: m.Role, credential: Credential, *, name: str = "", source: str = ""
    ) -> BlockingLink:
        """A caller's open connection over TLS, from an address of this machine."""

        def connect(address: Address, timeout_s: float) -> socket.socket:
            where, own = (address.host, address.port), (source, 0) if source else None
            return socket.create_connection(where, timeout_s, own)

        assert isinstance(self.address, Address)
        return BlockingLink(
            self.address,
            role=role,
            name=name or credential.name,
            timeout_s=ANSWER_S,
            connect=tls_connect(credential.client_context(), COORDINATOR, under=connect),
        )

    def ctl_environment(self) -> dict[str, str]:
        """Variables with which dtdctl finds this cluster and may operate it."""
        shown = {} if self.operator is None else {"DTD_CREDENTIAL": str(self.operator.path)}
        found = {"DTD_COORDINATOR": str(self.address), **shown, "NO_COLOR": "1"}
        return {**os.environ, **self.environment, **found}

    def dtdctl(
        self, *arguments: str, cwd: Path | None = None, timeout_s: float = ANSWER_S
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dtd.ctl.main", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=cwd,
            env=self.ctl_environment(),
        )

    def resident_bytes(self) -> int:
        return proc_bytes(self.children[COORDINATOR].pid, "VmRSS")

    def is_well(self) -> bool:
        """Whether the coordinator answers, and nothing has failed within it."""
        log = self.log_path(COORDINATOR).read_text()
        return (
            self.ask(m.GetStatus())["schema"] == 1
            and self.children[COORDINATOR].exit_code() is None
            and "Traceback" not in log
            and "Fatal error" not in log
        )


def with_log(child: Child, what: str) -> DtdError:
    """An error about a daemon, with the end of its log."""
    tail = "\n".join(f"    {line}" for line in child.log_tail())
    end = f"; its log ends with\n{tail}" if tail else "; its log is empty"
    return DtdError(what + end)
