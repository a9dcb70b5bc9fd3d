"""Figures of real daemons that only members of the cluster may read, and several at once."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.security.credential import Credential, bare_client_context
from scripts.cluster.processes import Child, stop_all

pytestmark = pytest.mark.integration

PATIENCE_S = 30.0
SILENT = 7
FOR_MEMBERS = ("--metrics", "127.0.0.1:0", "--metrics-for", "members")


def said(child: Child, event: str) -> dict[str, object]:
    """The fields of an event in a daemon's log, once it is there."""
    while True:
        lines = child.log_path.read_text().splitlines() if child.log_path.exists() else []
        for line in lines:
            if line.startswith("{") and json.loads(line)["event"] == event:
                return dict(json.loads(line))
        assert child.wait(0.05) is None, child.log_tail()


def daemon(kind: str, place: Path, *arguments: str) -> Child:
    module = {"coordinator": "dtd.coordinator.main", "worker": "dtd.worker"}[kind]
    command = [sys.executable, "-m", module, "--state-dir", str(place / kind)]
    made = Child(kind, [*command, *arguments], place / f"{kind}.log", {"HOME": str(place)})
    made.start()
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("members")


@pytest.fixture(scope="module")
def coordinator(place: Path) -> Iterator[Child]:
    made = daemon("coordinator", place, "--listen", "127.0.0.1:0", *FOR_MEMBERS)
    yield made
    stop_all([made])


def read(address: Address, context: ssl.SSLContext) -> str:
    with (
        socket.create_connection((address.host, address.port), PATIENCE_S) as plain,
        context.wrap_socket(plain) as secured,
    ):
        secured.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: secured.recv(65536), b"")).decode()


def test_a_coordinators_figures_are_for_members(coordinator: Child, place: Path) -> None:
    address = Address("127.0.0.1", int(str(said(coordinator, "metrics_listening")["port"])))
    said(coordinator, "coordinator_listening")
    member = Credential.load(place / "coordinator" / "pki" / "operator.credential")
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection((address.host, address.port)))
        assert "dtd_coordinator_uptime_seconds" in read(address, member.client_context())
    with pytest.raises(OSError):  # noqa: PT011 - an alert of TLS, or the end
        read(address, bare_client_context())


def test_a_worker_without_a_credential_has_no_members(coordinator: Child, place: Path) -> None:
    worker = daemon("worker", place, "--name", "w", *FOR_MEMBERS)
    assert worker.wait(PATIENCE_S) == 78
    assert 'metrics_for = "members" needs a credential' in "\n".join(worker.log_tail())
    stop_all([worker])
