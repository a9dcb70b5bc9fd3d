"""A coordinator that every address of this machine can call, with credentials made beforehand.

For attacks by real processes: whoever calls has TLS and the credential of his role, or nothing.
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dtd.address import Address
from dtd.errors import CoordinatorUnreachable, DtdError
from dtd.net.blocking_link import BlockingLink
from dtd.net.control_client import ControlClient
from dtd.net.tls_connect import tls_connect
from dtd.security.authority import DIRECTORY, OPERATOR_FILE, Authority
from dtd.security.credential import Credential
from dtd.security.identity import COORDINATOR
from dtd.security.private_files import make_private_directory
from dtd.wire import messages as m
from scripts.cluster.processes import Child, stop_all

START_S: Final = 60.0
ANSWER_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.05


class ExposedCoordinator:
    """One coordinator, and the credentials of those who call it.

    Args:
        directory: for its state, its log and the credentials; exists.
        callers: role and name of each credential to make.
        descriptors: how many files it may have open; None: as many as this process.
    """

    def __init__(
        self,
        directory: Path,
        callers: Sequence[tuple[str, str]],
        *,
        descriptors: int | None = None,
    ) -> None:
        self.directory = directory
        self.address = Address("127.0.0.1", _free_port())
        state = directory / "coordinator"
        make_private_directory(state)
        authority = Authority.create(state / DIRECTORY)
        authority.equip((self.address,))
        for role, name in callers:
            authority.enrol(self.path(name), role, name, coordinators=(self.address,))
        self.operator_path = state / DIRECTORY / OPERATOR_FILE
        self.operator = Credential.load(self.operator_path)
        command = [sys.executable, "-m", "dtd.coordinator.main", "--state-dir", str(state)]
        command += ["--listen", f"0.0.0.0:{self.address.port}", "--advertise", str(self.address)]
        if descriptors is not None:
            command = ["/usr/bin/prlimit", f"--nofile={descriptors}", *command]
        self.child = Child(
            "coordinator", command, directory / "coordinator.log", {"HOME": str(directory)}
        )

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            DtdError: it ended, or is too slow.
        """
        self.child.start()
        deadline_s = time.monotonic() + START_S
        while self.child.wait(_LOOK_AGAIN_S) is None and time.monotonic() < deadline_s:
            try:
                self.ask(m.GetStatus())
            except CoordinatorUnreachable:
                continue
            return
        raise DtdError("the coordinator did not start\n" + "\n".join(self.child.log_tail()))

    def stop(self) -> None:
        """End it; nothing is left when this returns."""
        stop_all([self.child])

    def path(self, name: str) -> Path:
        """Where a caller's credential lies."""
        return self.directory / f"{name}.credential"

    def context(self, name: str) -> ssl.SSLContext:
        """TLS with a caller's credential."""
        return Credential.load(self.path(name)).client_context()

    def client(self, timeout_s: float = ANSWER_S) -> ControlClient:
        """An operator's connection."""
        context = self.operator.client_context()
        return ControlClient(self.address, timeout_s=timeout_s, context=context)

    def ask(self, message: m.Message) -> dict[str, Any]:
        """An operator's request on a connection of its own."""
        with self.client() as client:
            return client.request(message)

    def link(self, role: m.Role, name: str, *, source: str = "127.0.0.1") -> BlockingLink:
        """A caller's open connection, from an address of this machine."""

        def connect(address: Address, timeout_s: float) -> socket.socket:
            where = address.host, address.port
            return socket.create_connection(where, timeout_s, (source, 0))

        return BlockingLink(
            self.address,
            role=role,
            name=name,
            timeout_s=ANSWER_S,
            connect=tls_connect(self.context(name), COORDINATOR, under=connect),
        )

    def resident_bytes(self) -> int:
        """Memory that its process holds."""
        text = Path(f"/proc/{self.child.pid}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
